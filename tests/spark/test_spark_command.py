"""`pgcdc spark-submit` for scripts and for people, with a shell script in place of Spark."""

import fcntl
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from executables import executable
from merge_directories import FORMATS, Directory, merge_into
from merge_histories import INT4, pg_type, table_schema
from merge_oracle import Change
from processes import shown_on
from pyspark.sql import SparkSession

from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.spark.pgcdc_merge.options import PROGRESS, MergeOptions
from pgcdc_cli.spark.warehouse import last_merged, local_path, read_record, refuse_unwritable

ONE = table_schema("one", {"id": pg_type(INT4)}, ("id",))
TWO = table_schema("two", {"id": pg_type(INT4)}, ("id",))
TABLE = {
    "table": "public.one",
    "mode": "merge",
    "path": "file:/lake/public/one",
    "segment": 2,
    "lsn": "0/1C",
    "version": 1,
    "inserted": 1200,
    "updated": 30,
    "deleted": 4,
    "unfit": 0,
    "missing": 0,
    "problem": None,
    "hint": None,
}
SUMMARY = {
    "format_version": 1,
    "mode": "merge",
    "segment": 2,
    "lsn": "0/1C",
    "tables": [TABLE, {**TABLE, "table": "public.two", "mode": "changelog", "inserted": 1}],
    "warnings": [],
    "unmatched": [],
    "error": None,
    "seconds": 1.5,
}
DONE = {"table": "public.one", "mode": "merge", "done": 1, "of": 2, "problem": None}
DONE |= {"inserted": 1200, "updated": 30, "deleted": 4}


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """A Spark that leaves a trace, makes noise, reports a table and prints a summary; and an input directory.

    As with Spark's own PythonRunner, everything that the job prints comes by standard output.
    """
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "manifest.jsonl").touch()
    said = tmp_path / "summary"
    said.write_text(json.dumps(SUMMARY) + "\n")
    executable(
        tmp_path / "spark" / "bin" / "spark-submit",
        f"echo started >> {tmp_path}/trace\necho noise >&2\necho '{PROGRESS}{json.dumps(DONE)}'\ncat {said}",
    )
    return tmp_path / "spark"


def command(spark_home: Path, *arguments: str) -> dict[str, Any]:
    line = [
        sys.executable,
        "-m",
        "pgcdc_cli",
        "spark-submit",
        "--input",
        "in",
        "--warehouse",
        "wh",
        *arguments,
    ]
    environment = {**os.environ, "SPARK_HOME": str(spark_home), "NO_COLOR": "1", "COLUMNS": "200"}
    return {"args": line, "cwd": spark_home.parent, "env": environment}


def run(spark_home: Path, *arguments: str) -> tuple[int, str, str]:
    ran = subprocess.run(**command(spark_home, *arguments), capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout, ran.stderr


def on_a_terminal(spark_home: Path, *arguments: str) -> str:
    ours, theirs = pty.openpty()
    subprocess.run(**command(spark_home, *arguments), stdout=theirs, stderr=theirs, check=True)
    os.close(theirs)
    return shown_on(ours).decode().replace("\r\n", "\n")


def test_one_line_where_nobody_looks_unless_only_errors_are_wanted(spark_home: Path) -> None:
    (spark_home.parent / "wh").mkdir()
    line = "merged 2 tables up to segment 2, LSN 0/1C: 1201 inserted, 60 updated, 8 deleted, in 1.5 s\n"
    assert run(spark_home) == (0, line, "")
    assert (spark_home.parent / "wh" / "_pgcdc.log").read_text() == "noise\n"
    assert run(spark_home, "--verbose") == (0, line, "noise\n")
    assert run(spark_home, "--quiet") == (0, "", "")
    assert json.loads(run(spark_home, "--quiet", "--json")[1]) == SUMMARY
    assert json.loads(run(spark_home, "--json")[1]) == SUMMARY


def test_progress_and_a_table_on_a_terminal(spark_home: Path) -> None:
    shown = on_a_terminal(spark_home).splitlines()
    assert shown[0] == "pgcdc: [1/2] public.one: 1,200 inserted, 30 updated, 4 deleted"
    assert shown[1].split()[:3] == ["table", "inserted", "updated"]
    assert shown[3].startswith("public.two (changelog)")
    assert shown[-1] == "took          1.5 s"
    assert on_a_terminal(spark_home, "--quiet") == ""


def test_values_that_became_null_are_counted_where_there_are_any(spark_home: Path) -> None:
    said = {**SUMMARY, "tables": [{**TABLE, "unfit": 2}, {**TABLE, "missing": 1000}]}
    (spark_home.parent / "summary").write_text(json.dumps(said) + "\n")
    assert "8 deleted, 2 unfit, 1000 missing, in" in run(spark_home)[1]
    shown = [line.split() for line in on_a_terminal(spark_home).splitlines()]
    assert shown[1][4:7] == ["unfit", "missing", "segment"]
    assert (shown[2][4:6], shown[3][4:6]) == (["2", "0"], ["0", "1,000"])


def test_a_dry_run_leaves_not_even_a_log(spark_home: Path) -> None:
    (spark_home.parent / "wh").mkdir()
    plan = {"path": "file:/lake/public/one", "first_segment": 2, "last_segment": 5, "files": 3}
    plan |= {"rows": 4000, "bytes": 2048}
    said = {**SUMMARY, "dry_run": True, "tables": [{**TABLE, "plan": plan}, {**TABLE, "plan": None}]}
    (spark_home.parent / "summary").write_text(json.dumps(said) + "\n")
    status, shown, _ = run(spark_home, "--dry-run")
    assert status == 0
    assert shown.splitlines()[1].split() == [
        "public.one", "2-5", "3", "4,000", "2.0", "kB", "file:/lake/public/one",
    ]  # fmt: skip
    assert list((spark_home.parent / "wh").iterdir()) == []
    said["tables"] = [{**TABLE, "plan": None}]
    (spark_home.parent / "summary").write_text(json.dumps(said) + "\n")
    assert run(spark_home, "--dry-run")[1] == "nothing to merge beyond segment 2, LSN 0/1C\n"


def test_a_pattern_that_fits_no_table_is_an_error_behind_the_summary(spark_home: Path) -> None:
    said = {**SUMMARY, "unmatched": ["shop.ordres", "*.gone"]}
    (spark_home.parent / "summary").write_text(json.dumps(said) + "\n")
    status, shown, error = run(
        spark_home, "--table", "shop.ordres", "--table", "*.gone", "--table", "public.*"
    )
    assert (status, shown.startswith("merged 2 tables")) == (2, True)
    assert error == (
        'pgcdc: error: could not find "shop.ordres", "*.gone": no table with changes matches --table\n'
        "hint: a pattern is like schema.table, with * and ?, in quotes: 'public.*'\n"
    )


def test_a_pattern_that_fits_no_table_is_an_error_before_spark_is_started(
    spark_home: Path, tmp_path: Path
) -> None:
    """Unless a table's segments may have been moved away, or another pattern fits."""
    trace = spark_home.parent / "trace"
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    for number in (1, 2):
        directory.segment([(ONE, [Change("I", number * 10, 0, {"id": "1"})])])
    for more in ((), ("--if-new",), ("--dry-run",)):
        status, shown, error = run(spark_home, "--table", "shop.*", "--table", "public.oen", *more)
        assert (status, shown, trace.exists()) == (2, "", False)
        assert error.startswith('pgcdc: error: could not find "shop.*", "public.oen": no table with changes')
    assert run(spark_home, "--table", "shop.*", "--table", "*.one")[0] == 0
    assert trace.exists()
    trace.unlink()
    del directory.lines[0]
    directory.write_manifest()
    assert run(spark_home, "--table", "shop.*")[0] == 0
    assert trace.exists()


def test_a_warehouse_that_can_not_be_written_to_is_an_error_before_spark_is_started(
    spark_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    error = (
        f'pgcdc: error: could not write to "file/wh": "{tmp_path}/file" is not a directory\n'
        "hint: give --warehouse a directory that this user can write to\n"
    )
    assert run(spark_home, "--warehouse", "file/wh") == (14, "", error)
    assert not (spark_home.parent / "trace").exists()
    assert run(spark_home, "--warehouse", "new/wh")[0] == 0
    # Root could write anywhere.
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(PgcdcError, match=f'this user can\'t write to "{tmp_path}"'):
        refuse_unwritable(f"{tmp_path}/a/b")


def test_another_merge_stops_this_one_before_spark_is_started(spark_home: Path) -> None:
    (spark_home.parent / "wh").mkdir()
    with (spark_home.parent / "wh" / "_pgcdc.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(spark_home) == (
            11,
            "",
            'pgcdc: error: could not merge into "wh": another merge is under way\nhint: wait for it to end\n',
        )
    assert not (spark_home.parent / "trace").exists()
    assert run(spark_home)[0] == 0


def test_the_jobs_own_word_of_another_merge_has_that_status_too(spark_home: Path) -> None:
    error = {"message": "could not merge: another", "hint": "wait", "locked": True}
    said = {"format_version": 1, "segment": None, "error": error}
    (spark_home.parent / "summary").write_text(json.dumps(said) + "\n")
    assert run(spark_home) == (11, "", "pgcdc: error: could not merge: another\nhint: wait\n")


def test_a_name_alone_is_in_the_schema_public_as_in_a_stream(spark_home: Path) -> None:
    spark = spark_home / "bin" / "spark-submit"
    executable(spark, f'echo "$@" > {spark_home.parent}/given; cat {spark_home.parent}/summary')
    assert run(spark_home, "--table", "one")[0] == 0
    assert "--table=public.one" in (spark_home.parent / "given").read_text()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--until", "12"], 'read the command line: --until: "12" is not an LSN, such as 0/1A2B3C8'),
        (["--table", "o*"], 'read the command line: --table: "o*" is not like schema.table'),
        (
            ["--decimal", "39,2"],
            'read the command line: --decimal: "39,2" is not a precision and scale, such as 38,18',
        ),
        (
            ["--retain", "7"],
            'read the command line: --retain: "7" is less than an hour: a number with a unit',
        ),
        (["--mode", "history"], "read the command line: --mode:"),
    ],
)
def test_options_are_read_strictly(spark_home: Path, arguments: list[str], reason: str) -> None:
    status, _, error = run(spark_home, *arguments)
    assert status == 2
    assert reason in error
    assert not (spark_home.parent / "trace").exists()


def test_if_new_ends_without_spark_once_all_is_merged(
    spark: SparkSession, spark_home: Path, tmp_path: Path
) -> None:
    """With real merges in between: what is not merged yet in any mode and table is new."""
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    directory.segment([(ONE, [Change("I", 10, 0, {"id": "1"})])])
    assert is_new(spark_home)
    merge_into(spark, directory, tmp_path / "wh")
    assert not is_new(spark_home)
    assert not is_new(spark_home, "--until", "0/1")
    assert is_new(spark_home, "--mode", "both")
    assert run(spark_home, "--if-new", "--verbose")[1] == "nothing new: merged up to segment 1, LSN 0/12\n"
    summary = json.loads(run(spark_home, "--if-new", "--json")[1])
    assert (summary["segment"], summary["lsn"], summary["tables"], summary["error"]) == (1, "0/12", [], None)

    directory.segment([(ONE, [Change("I", 20, 0, {"id": "2"})]), (TWO, [Change("I", 21, 0, {"id": "2"})])])
    assert is_new(spark_home)
    assert not is_new(spark_home, "--until", "0/12")
    merge_into(spark, directory, tmp_path / "wh", tables=["public.one"])
    assert is_new(spark_home)
    assert not is_new(spark_home, "--table", "*.one")
    assert is_new(spark_home, "--table", "*.one", "--table", "*.oen")
    rows = read_record(str(tmp_path / "wh"))
    assert rows is not None
    assert {(row.table, row.segment, row.version) for row in rows} == {
        ("", 2, None),
        ("public.one", 2, 1),
        ("public.two", 0, None),
    }
    for line in directory.lines:
        line["stream_id"] = "another"
    directory.write_manifest()
    assert is_new(spark_home, "--table", "*.one")


def test_if_new_ends_without_spark_if_a_stream_has_not_finished_a_segment(
    spark_home: Path, tmp_path: Path
) -> None:
    """As in the first nights of a source that nobody writes to. A manifest that is lost is an error."""
    checkpoint = tmp_path / "in" / "checkpoint.json"
    (tmp_path / "in" / "manifest.jsonl").unlink()
    checkpoint.write_text('{"segment":1}')
    assert not is_new(spark_home)
    assert run(spark_home, "--if-new", "--verbose")[1] == "nothing new: no segment is finished yet\n"
    assert on_a_terminal(spark_home, "--if-new") == "nothing new: no segment is finished yet\n"
    assert on_a_terminal(spark_home, "--if-new", "--quiet") == ""
    summary = json.loads(run(spark_home, "--if-new", "--json")[1])
    assert (summary["segment"], summary["lsn"], summary.keys()) == (0, "0/0", SUMMARY.keys())
    assert run(spark_home)[0] == 14
    checkpoint.write_text('{"segment":2}')
    assert run(spark_home, "--if-new")[0] == 14


def test_an_input_that_no_stream_writes_is_a_usage_error_as_for_show(
    spark_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "in" / "manifest.jsonl").unlink()
    for name in ("nope", "in"):
        for more in ((), ("--if-new",), ("--dry-run",)):
            status, shown, error = run(spark_home, "--input", name, *more)
            assert (status, shown) == (2, "")
            assert error.startswith(f'pgcdc: error: could not read "{name}/manifest.jsonl": there is no such')
        show = [sys.executable, "-m", "pgcdc_cli", "show", str(tmp_path / name)]
        assert subprocess.run(show, capture_output=True, check=False).returncode == 2
    assert not (spark_home.parent / "trace").exists()


def is_new(spark_home: Path, *arguments: str) -> bool:
    trace = spark_home.parent / "trace"
    trace.unlink(missing_ok=True)
    status, shown, error = run(spark_home, "--if-new", *arguments)
    assert status == 0
    assert error == ""
    assert trace.exists() == bool(shown)
    return trace.exists()


def test_what_is_elsewhere_cannot_be_told_without_spark(spark_home: Path) -> None:
    status, _, error = run(spark_home, "--if-new", "--warehouse", "s3a://lake/shop")
    assert (status, error) == (
        0,
        "pgcdc: can't tell without Spark whether anything is new: not everything is on this machine\n",
    )
    assert (spark_home.parent / "trace").exists()
    assert local_path("file:///a/b") == Path("/a/b")
    assert local_path("hdfs://host/a") is None


def test_a_record_that_makes_no_sense_is_no_answer(tmp_path: Path) -> None:
    options = MergeOptions(str(tmp_path), str(tmp_path), until=Lsn(1))
    assert last_merged(options) is None
    (tmp_path / "_pgcdc.json").write_text('{"rows": [{}]}')
    with pytest.raises(PgcdcError, match=r"could not read .*_pgcdc\.json"):
        last_merged(options)
