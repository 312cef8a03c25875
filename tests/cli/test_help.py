"""Every command and option is in the help, the manual pages and the completions, all of them up to date."""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from psycopg import pq

from pgcdc_cli import __version__
from pgcdc_cli.cli import units
from pgcdc_cli.cli.command_tree import example_lines, summary, walk
from pgcdc_cli.cli.generate import generated, stale
from pgcdc_cli.cli.printing import talk
from pgcdc_cli.cli.root_command import COMMANDS, root_command
from pgcdc_cli.directory.checkpoint import Checkpoint, StreamSource, encode
from pgcdc_cli.directory.file_names import CHECKPOINT
from pgcdc_cli.errors import ErrorKind
from pgcdc_cli.lsn import Lsn

PROJECT = Path(__file__).parents[2]
TREE = list(walk(root_command()))
IDS = ["-".join(path) for path, _ in TREE]
EVERY = pytest.mark.parametrize(("path", "command"), TREE, ids=IDS)
EVERY_PATH = pytest.mark.parametrize("path", [path for path, _ in TREE], ids=IDS)
EVERY_COMMAND = pytest.mark.parametrize("command", [command for _, command in TREE], ids=IDS)


def roff(text):
    return text.replace("-", "\\-").replace("'", "\\(aq").replace("~", "\\(ti")


def page(path):
    return (PROJECT / "man" / f"{'-'.join(path)}.1").read_text("utf-8")


def test_the_commands_of_this_release_are_there():
    assert [" ".join(path) for path, _ in TREE] == [
        "pgcdc",
        "pgcdc demo",
        "pgcdc doctor",
        "pgcdc slot",
        "pgcdc slot create",
        "pgcdc slot drop",
        "pgcdc slot peek",
        "pgcdc slot advance",
        "pgcdc slot copy",
        "pgcdc slot alter",
        "pgcdc slot list",
        "pgcdc slot show",
        "pgcdc publication",
        "pgcdc publication create",
        "pgcdc publication alter",
        "pgcdc publication drop",
        "pgcdc publication list",
        "pgcdc publication show",
        "pgcdc stream",
        "pgcdc snapshot",
        "pgcdc recvlogical",
        "pgcdc show",
        "pgcdc status",
        "pgcdc spark-submit",
        "pgcdc help",
    ]


@EVERY
def test_help_has_every_option_and_an_example(path, command, pgcdc):
    ran = pgcdc(*path[1:], "--help", env={"COLUMNS": "80"})
    assert (ran.status, ran.err) == (0, "")
    assert "\n  Example" in ran.out
    assert f"\n    {' '.join(path)}" in ran.out or path[1:] == ()
    for parameter in command.params:
        if not parameter.hidden:
            assert parameter.help
            names = parameter.opts if parameter.param_type_name == "option" else [parameter.metavar]
            assert all(name in ran.out for name in names)


def test_help_says_which_options_are_repeatable(pgcdc):
    shown = pgcdc("stream", "--help").out
    command = dict(TREE)["pgcdc", "stream"]
    repeatable = [one.opts[-1] for one in command.params if getattr(one, "multiple", False)]
    said = re.findall(
        r"^  (?:-\w, )?(--[\w-]+)(?:(?!\n  -|\n\n).)*\[repeatable\]", shown, re.MULTILINE | re.DOTALL
    )
    assert sorted(said) == sorted(repeatable)


def test_the_first_help_says_of_each_command_what_its_own_help_says():
    commands = root_command().commands
    assert {name: f"{summary(commands[name])}." for name in commands if not commands[name].hidden} == COMMANDS


def test_help_has_a_short_name(pgcdc):
    assert pgcdc("slot", "create", "-?").out == pgcdc("slot", "create", "--help").out


@EVERY_PATH
def test_help_is_a_command_too(path, pgcdc):
    assert pgcdc("help", *path[1:]) == pgcdc(*path[1:], "--help")


def test_the_first_help_fits_a_screen(pgcdc):
    lines = pgcdc("--help", env={"COLUMNS": "80"}).out.splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) < 80


@EVERY_PATH
def test_no_summary_of_a_command_is_cut(path, pgcdc):
    assert "...\n" not in pgcdc(*path[1:], "--help", env={"COLUMNS": "80"}).out.partition("Commands:")[2]


@EVERY_COMMAND
def test_examples_are_commands_that_pgcdc_understands(command):
    assert example_lines(command)
    for line in example_lines(command):
        words = shlex.split(line)
        assert words[0] == "pgcdc"
        understand(words[1:])


def understand(words):
    """Read a command line as pgcdc does, and run nothing; raises what refuses it."""
    root = root_command()
    context = root.make_context("pgcdc", list(words))
    name, member, rest = root.resolve_command(context, [*context._protected_args, *context.args])
    while hasattr(member, "commands"):
        context = member.make_context(name, rest, parent=context)
        name, member, rest = member.resolve_command(context, [*context._protected_args, *context.args])
    member.make_context(name, rest, parent=context)


@pytest.mark.parametrize(
    "document", [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_commands_in_documents_are_ones_that_pgcdc_understands(document, monkeypatch):
    """Those on lines of their own, also from cron or behind another command."""
    monkeypatch.setattr(talk, "verbosity", 0)
    for words in commands_in(document.read_text()):
        understand(words)


def commands_in(text):
    lines = re.findall(r"^    (?:\$ )?((?:.*\\\n)*.*)", text, re.MULTILINE)
    for line in lines:
        if "pgcdc " not in line or re.search(r"\.\.\. |…", line):
            continue
        reader = shlex.shlex(line.replace("\\\n", ""), posix=True, punctuation_chars="|&;()<>")
        reader.whitespace_split = True
        for command in re.split(r"\n(?:[|&;]+)\n", "\n".join(reader)):
            words = re.sub(r"\A(?:[\d*/]+\n|\w+=.*\n)+", "", command).split("\n")
            if words[0].rpartition("/")[2] == "pgcdc":
                yield words[1:]


def test_commands_in_documents_are_found():
    found = [words for page in (PROJECT / "docs").glob("*.md") for words in commands_in(page.read_text())]
    assert len(found) > 50
    assert ["-q", "spark-submit", "--input", "/srv/changes", "--warehouse", "/srv/lake", "--if-new"] in found


@EVERY
def test_the_manual_page_has_every_option_default_and_variable(path, command):
    text = page(path)
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"):
        assert f".SH {heading}\n" in text
    for parameter in command.params:
        for option in parameter.opts if parameter.param_type_name == "option" else ():
            assert roff(option) in text
        if parameter.hidden:
            continue
        assert roff(parameter.help) in text
        if parameter.param_type_name == "option" and parameter.default not in (None, False, [], ()):
            assert roff(str(parameter.default)) in text
        if parameter.envvar:
            assert roff(f"Environment: {parameter.envvar}.") in text
    for line in example_lines(command):
        assert roff(line) in text


def test_the_first_manual_page_has_every_unit():
    _, _, section = page(["pgcdc"]).partition(".SH VALUES")
    said, _, _ = section.partition(".SH")
    assert set(units._BYTES) | set(units._SECONDS) <= set(re.findall(r"\w+", said))


def test_no_default_of_a_property_looks_like_the_end_of_its_sentence():
    defaults = re.findall(r"Default: (.*)\.$", page(["pgcdc", "stream"]), re.MULTILINE)
    assert '"."' in defaults
    assert "." not in defaults


def test_the_help_of_a_snapshot_says_what_its_size_of_files_means(pgcdc):
    shown = pgcdc("snapshot", "--help", env={"COLUMNS": "200"}).out
    assert "--rotate-size SIZE" in shown
    assert "segment" not in shown


@EVERY_PATH
def test_the_manual_page_has_every_exit_status(path):
    text = page(path)
    if path[-1] == "recvlogical":
        assert re.findall(r"\\fB(\d+)\\fR", text) == ["0", "1", "130", "141"]
        return
    for kind in ErrorKind:
        assert f"\\fB{kind.rule.exit_status}\\fR\n" in text
        assert roff(kind.rule.hint) in text


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff isn't installed")
@EVERY_PATH
def test_the_manual_page_has_no_roff_warnings(path):
    file = PROJECT / "man" / f"{'-'.join(path)}.1"
    ran = subprocess.run(["groff", "-man", "-ww", "-Tutf8", file], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert "-".join(path) in ran.stdout


def test_nothing_generated_is_stale():
    assert stale(PROJECT) == [], "run: python -m pgcdc_cli.cli.generate"


def test_what_is_generated_depends_on_no_terminal_and_no_locale():
    program = "from pgcdc_cli.cli.generate import generated; print(hash(tuple(sorted(generated().items()))))"

    def run(**env):
        return subprocess.run(
            [sys.executable, "-c", program],
            env={"PATH": os.environ["PATH"], "PYTHONHASHSEED": "0", **env},
            capture_output=True,
            check=True,
        ).stdout

    odd = {
        "COLUMNS": "40",
        "LC_ALL": "tr_TR.UTF-8",
        "LANGUAGE": "de",
        "TERM": "dumb",
        "PGCDC_FORMAT": "arrow",
    }
    assert run(COLUMNS="200", LC_ALL="C") == run(**odd)


def test_the_generator_mends_what_is_missing_changed_or_left_over(tmp_path):
    def generate(*arguments):
        command = [sys.executable, "-m", "pgcdc_cli.cli.generate", *arguments, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert generate("--check").returncode == 1
    assert generate().returncode == 0
    assert generate("--check").returncode == 0
    (tmp_path / "man" / "pgcdc-old.1").write_text("")
    (tmp_path / "man" / "pgcdc.1").write_text("")
    (tmp_path / "completions" / "_pgcdc").unlink()
    ran = generate("--check")
    assert (ran.returncode, ran.stdout) == (1, "completions/_pgcdc\nman/pgcdc-old.1\nman/pgcdc.1\n")
    generate()
    assert stale(tmp_path) == []
    assert generated().keys() == {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}


def imported(*arguments):
    """Run pgcdc, and return the names of the modules that it imported."""
    program = "import sys; from pgcdc_cli.cli.app import run; run(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", program, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(ran.stdout.splitlines()[-1].split())


def slow(*arguments):
    """Run pgcdc, and return the names of slow modules that it imported."""
    packages = {"numpy", "psycopg", "pyarrow", "pydantic", "pyspark", "rich"}
    return imported(*arguments) & (packages | {"pgcdc_cli.changes.table"})


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["stream", "--nope"]])
def test_help_version_and_usage_errors_import_nothing_slow(arguments):
    assert slow(*arguments) == set()


def test_a_command_imports_no_other():
    modules = {f"pgcdc_cli.cli.{name.replace('-', '_')}" for name in COMMANDS}
    assert not imported("--help") & modules
    assert imported("stream", "--help") & modules == {"pgcdc_cli.cli.stream"}
    assert "typer" not in imported("--version")


@EVERY_PATH
def test_no_command_imports_anything_slow_for_its_help(path):
    assert slow(*path[1:], "--help") == set()


def test_commands_import_only_what_they_use(tmp_path):
    nowhere = ["-h", str(tmp_path), "-d", "shop"]
    assert slow("slot", "list", *nowhere) == {"psycopg", "pgcdc_cli.changes.table"}
    made = ["publication", "create", "shop", "--table", "a", "--table", "b", *nowhere]
    assert slow(*made) == {"psycopg", "pgcdc_cli.changes.table"}
    assert slow("spark-submit", "--input", str(tmp_path), "--warehouse", "lake") == set()
    to_directory = ["-D", str(tmp_path), "--format", "arrow", "--endpos", "now", "--no-loop"]
    streamed = slow("stream", "-S", "shop", "--publication", "shop", *to_directory, *nowhere)
    assert streamed == {"psycopg", "pyarrow", "numpy", "pgcdc_cli.changes.table"}


def test_status_reads_a_checkpoint_without_numpy_and_pyarrow(tmp_path):
    source = StreamSource("7", 1, "shop", "shop", ("shop",))
    checkpoint = Checkpoint(source, Lsn(7), {"format": "jsonl"})
    (tmp_path / CHECKPOINT).write_bytes(encode(checkpoint))
    shown = slow("status", str(tmp_path), "-h", str(tmp_path), "-d", "shop")
    assert shown == {"psycopg", "pgcdc_cli.changes.table"}


def test_pandas_is_not_imported_where_it_is_installed(tmp_path):
    (tmp_path / "pandas.py").write_text("raise SystemExit('pandas was imported')\n")
    reach = ["stream", "-S", "s", "--publication", "p", "-h", str(tmp_path), "-d", "shop", "--no-loop"]
    found = subprocess.run(
        [sys.executable, "-m", "pgcdc_cli", *reach, "-D", str(tmp_path / "out"), "--format", "arrow"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, "was imported" in found.stderr) == (3, False)


def test_version_names_what_a_report_needs(pgcdc):
    python = ".".join(map(str, sys.version_info[:3]))
    for option in ("-V", "--version"):
        ran = pgcdc(option, new=True)
        assert (ran.status, ran.out) == (0, f"pgcdc {__version__} (Python {python})\n")


def test_debug_names_libpq_too_where_it_was_used(pgcdc, tmp_path):
    libpq = f"{pq.version() // 10000}.{pq.version() % 10000}"
    python = ".".join(map(str, sys.version_info[:3]))
    ran = pgcdc("--debug", "slot", "list", "-h", str(tmp_path), new=True)
    assert ran.err.startswith(f"pgcdc {__version__} (libpq {libpq}, Python {python})\nTraceback")
    ran = pgcdc("--debug", "show", "nowhere", new=True)
    assert ran.err.startswith(f"pgcdc {__version__} (Python {python})\nTraceback")


@pytest.mark.parametrize("arguments", [["--version", "--json"], ["--json", "-V"]])
def test_version_as_json_names_every_part(pgcdc, arguments):
    ran = pgcdc(*arguments)
    told = json.loads(ran.out)
    assert (ran.status, told["pgcdc"], told["protocols"]) == (0, __version__, [1, 2, 3, 4])
    assert told["libpq"] == f"{pq.version() // 10000}.{pq.version() % 10000}"
    assert told["python"] == platform.python_version()
    assert {name: version(name) for name in ("psycopg", "pyarrow", "numpy")}.items() <= told.items()


def test_a_stream_starts_without_the_functions_that_pyarrow_makes(tmp_path):
    reach = ["stream", "-S", "s", "--publication", "p", "-h", str(tmp_path), "-d", "shop", "--no-loop"]
    command = [sys.executable, "-X", "importtime", "-m", "pgcdc_cli", *reach, "-D", str(tmp_path / "out")]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert "pyarrow.lib\n" in said
    assert "pyarrow.compute\n" not in said
