"""`pgcdc snapshot`: the rows of tables as of one moment, without a slot."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from processes import PGCDC, stream_command, wait_until
from segments import contents, manifest
from standbys import replayed
from stream_runs import refused
from test_stream_snapshot import KILLED
from warm_process import run_warm

DEBEZIUM = (
    *("--format", "debezium", "-c", "topic.prefix=shop"),
    *("-c", "key.converter.schemas.enable=false", "-c", "value.converter.schemas.enable=false"),
)
TABLES = """
CREATE TABLE t (a int PRIMARY KEY, b text, c int GENERATED ALWAYS AS (a * 2) STORED);
CREATE TABLE u (a int PRIMARY KEY, b text);
CREATE TABLE root (a int PRIMARY KEY, b text) PARTITION BY LIST (a);
CREATE TABLE leaf PARTITION OF root FOR VALUES IN (1, 2);
INSERT INTO t SELECT g, 'x' || g FROM generate_series(1, 4) g;
INSERT INTO u VALUES (1, 'secret'); INSERT INTO root VALUES (1, 'one'), (2, 'two');
CREATE PUBLICATION pub FOR TABLE t WHERE (a > 2), u (a), root WITH (publish_via_partition_root = true);
"""
PUB = ("--publication", "pub")


def command(uri: str, *arguments: object) -> list[str]:
    return [*PGCDC, "snapshot", "-d", uri, *map(str, arguments)]


def run(uri: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run_warm(command(uri, *arguments), timeout=60)


def printed(uri: str, *arguments: object) -> dict[str, list[dict]]:
    """The rows that the command prints as JSON lines, by table."""
    ended = run(uri, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    found: dict[str, list[dict]] = {}
    for line in map(json.loads, ended.stdout.splitlines()):
        assert line["op"] == "R"
        assert line["commit_lsn"] > "0/0"
        row = {name: value for name, value in line["new"].items() if value is not None}
        found.setdefault(f"{line['schema']}.{line['table']}", []).append(row)
    return found


@pytest.fixture
def shop(database):
    database.execute(TABLES)
    return database


@pytest.fixture
def shop18(database18):
    database18.execute(TABLES)
    return database18


def test_a_publication_s_rows_are_its_columns_filters_and_roots_and_no_slot_is_made(shop):
    assert printed(shop.uri, *PUB) == {
        "public.root": [{"a": 1, "b": "one"}, {"a": 2, "b": "two"}],
        "public.t": [{"a": 3, "b": "x3"}, {"a": 4, "b": "x4"}],
        "public.u": [{"a": 1}],
    }
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    assert shop.execute(slots).fetchone() == (0,)


def test_tables_by_pattern_are_whole_and_partitions_come_once(shop18):
    every = printed(shop18.uri, "--table", "public.*")
    assert printed(shop18.uri, "--table", "u") == {"public.u": every["public.u"]}
    assert {table: len(rows) for table, rows in every.items()} == {
        "public.root": 2,
        "public.t": 4,
        "public.u": 1,
    }
    assert printed(shop18.uri, "--table", "public.leaf") == {
        "public.leaf": [{"a": 1, "b": "one"}, {"a": 2, "b": "two"}]
    }
    assert list(printed(shop18.uri, "--table", "public.?", "--exclude-table", "public.t")) == ["public.u"]


def test_where_and_columns_choose_and_a_filter_holds_beside(shop18):
    chosen = printed(shop18.uri, *PUB, "--table", "public.t", "--where", "a < 4 OR b = 'x' -- and so on")
    assert chosen == {"public.t": [{"a": 3, "b": "x3"}]}
    assert printed(shop18.uri, "--table", "public.t", "--columns", 'C, "b"')["public.t"][0] == {
        "a": 1,
        "b": "x1",
        "c": 2,
    }
    keys = printed(shop18.uri, "--table", "public.u", "--columns", "a", "--exclude-column", "*.*.a")
    assert keys == {"public.u": [{"a": 1}]}


def test_a_sample_is_some_of_the_rows(shop18):
    shop18.execute("INSERT INTO u SELECT g FROM generate_series(2, 2000) g")
    sampled = printed(shop18.uri, "--table", "public.u", "--sample", "20")["public.u"]
    assert 100 < len(sampled) < 900
    assert len(printed(shop18.uri, "--table", "public.u", "--sample", "100")["public.u"]) == 2000


@pytest.mark.parametrize("form", [("--format", "jsonl"), ("--format", "arrow"), DEBEZIUM])
def test_a_directory_is_one_finished_segment_that_show_reads(shop18, tmp_path, form):
    out = tmp_path / "out"
    ended = run(shop18.uri, *PUB, "-D", out, *form, "--json")
    [segment] = manifest(out)
    found = json.loads(ended.stdout)
    assert (ended.stderr, found["format_version"], found["lsn"]) == ("", 1, segment["end_lsn"])
    assert found["tables"] == [
        {"table": "public.root", "rows": 2},
        {"table": "public.t", "rows": 2},
        {"table": "public.u", "rows": 1},
    ]
    assert not list(out.rglob("*.partial"))
    if form is not DEBEZIUM:
        shown = subprocess.run([*PGCDC, "show", out], capture_output=True, text=True, check=True)
        assert len(shown.stdout.splitlines()) == 5
    status = subprocess.run(
        [*PGCDC, "status", out, "-d", shop18.uri], capture_output=True, text=True, check=True
    ).stdout
    assert f"slot          - (a snapshot without one), database {shop18.name}" in status


def test_pretty_is_for_a_person_and_a_file_is_one(shop18, tmp_path):
    assert "secret" in run(shop18.uri, "--table", "public.u", "--format", "pretty").stdout
    file = tmp_path / "rows.json"
    assert run(shop18.uri, "--table", "public.u", "-f", file).returncode == 0
    assert json.loads(file.read_text())["new"] == {"a": 1, "b": "secret"}


def test_values_and_schemas_are_those_of_a_stream_s_snapshot(shop18, tmp_path):
    alone, first = tmp_path / "alone", tmp_path / "first"
    assert run(shop18.uri, *PUB, "-D", alone, "--format", "arrow").returncode == 0
    slot = f"s_{shop18.name}"
    stream = stream_command(shop18.uri, slot, "-D", first, "--format", "arrow", "--snapshot", "only")
    subprocess.run(stream, check=True)
    assert without_stamps(alone) == without_stamps(first)
    assert schemas(alone) == schemas(first)


def without_stamps(out: Path) -> dict[str, list]:
    return {
        str(table): [
            one if isinstance(one, pa.Schema) else {k: v for k, v in one.items() if k[0] != "_"}
            for one in rows
        ]
        for table, rows in contents(out).items()
    }


def schemas(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "schemas").iterdir()}


@pytest.mark.parametrize("form", [(), DEBEZIUM])
def test_a_standby_gives_its_rows_too(shop18, servers, standby18, form):
    shop18.execute("CREATE UNLOGGED TABLE gone (a int); INSERT INTO gone VALUES (1)")
    replayed(standby18, servers[18])
    ended = run(standby18.uri(shop18.name), "--table", "public.*", *form, "-f", "-")
    assert (ended.returncode, ended.stderr, len(ended.stdout.splitlines())) == (0, "", 7)


def test_what_a_standby_cancels_may_be_tried_again(shop18):
    shop18.execute(
        "CREATE FUNCTION conflict() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE 'canceling statement due to conflict with recovery' USING ERRCODE = '40001'; END $$"
    )
    ended = run(shop18.uri, "--table", "public.t", "--where", "public.conflict()")
    hint = "run again; hot_standby_feedback = on keeps a standby from having to cancel queries"
    reason = 'read the rows of table "public.t": canceling statement due to conflict with recovery'
    refused(ended, 3, reason, hint)


def test_a_role_needs_no_right_but_select_and_what_lacks_is_named_first(shop, tmp_path):
    role = f"r_{shop.name}"
    shop.execute(f"CREATE ROLE {role} LOGIN; GRANT SELECT ON t TO {role}; GRANT SELECT (a) ON u TO {role}")
    uri = shop.uri.replace("postgresql://postgres@", f"postgresql://{role}@")
    try:
        assert len(printed(uri, "--table", "public.t", "--table", "public.u", "--columns", "a")) == 2
        hint = f'it needs: GRANT SELECT ON TABLE "public"."root" TO "{role}"'
        for logged_in in (uri, f"{shop.uri}&options=-c%20role%3D{role}"):
            ended = run(logged_in, *PUB, "-D", tmp_path / "out")
            refused(ended, 4, 'read table "public.root": permission denied', hint)
        assert not contents(tmp_path / "out")
    finally:
        shop.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_what_is_written_is_never_written_over(shop18, tmp_path):
    out = tmp_path / "out"
    assert run(shop18.uri, *PUB, "-D", out).returncode == 0
    before = contents(out)
    hint = "write to another directory or file: the data there is as of another moment"
    error = f'write a snapshot to "{out}": a snapshot already exists'
    # No options would do, so none is asked for.
    for options in ([], ["--numeric", "number"]):
        refused(run(shop18.uri, *PUB, "-D", out, *options), 2, error, hint)
    stream = stream_command(shop18.uri, shop18.create_slot(), "-D", out, "--endpos", "now")
    hint = "write to another directory or file; --snapshot initial begins a stream with the existing rows"
    for options in ([], ["--table", "public.*"]):
        ended = subprocess.run([*stream, *options], capture_output=True, text=True, check=False)
        refused(ended, 13, "continue from the checkpoint: it belongs to a snapshot without a slot", hint)
    assert contents(out) == before


def test_a_table_of_a_stream_is_read_again_by_the_stream_itself(shop18, tmp_path):
    out = tmp_path / "out"
    line = stream_command(shop18.uri, shop18.create_slot(), "-D", out, "--endpos", "now")
    subprocess.run(line, check=True)
    ended = run(shop18.uri, "--table", "public.t", "-D", out)
    assert (ended.returncode, ended.stdout) == (2, "")
    slot = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    [(name,)] = shop18.execute(slot).fetchall()
    assert f"a stream of slot {name} already exists\n" in ended.stderr
    assert "hint: write to another directory or file; pgcdc stream --resnapshot PATTERN" in ended.stderr


def test_a_file_of_somebody_else_is_not_written_over(shop18, tmp_path):
    out = tmp_path / "notes"
    out.write_text("precious")
    hint = "move it away, or write to another file; if pgcdc wrote it, put notes.checkpoint back next to it"
    reason = "it has 8 bytes, and there is no checkpoint for it"
    refused(run(shop18.uri, *PUB, "-f", out), 10, f'continue from "{out}": {reason}', hint)
    assert out.read_text() == "precious"


def test_a_snapshot_is_taken_again_after_its_file_was_removed_as_the_hint_says(shop18, tmp_path):
    out = tmp_path / "out"
    assert run(shop18.uri, *PUB, "-f", out).returncode == 0
    before = len(out.read_text().splitlines())
    out.unlink()
    ended = run(shop18.uri, *PUB, "-f", out)
    assert ended.returncode == 10
    assert ended.stderr.endswith(
        "; if it is gone for good, remove out.checkpoint, and run again from the start\n"
    )
    (tmp_path / "out.checkpoint").unlink()
    assert run(shop18.uri, *PUB, "-f", out).returncode == 0
    assert len(out.read_text().splitlines()) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_rows_and_the_next_begins_anew(shop18, proxy18, tmp_path, number):
    shop18.execute("INSERT INTO u SELECT g, repeat('x', 100000) FROM generate_series(2, 300) g")
    out = tmp_path / "out"
    arguments = "--table", "public.u", "-D", out, "--rotate-size", "1MB"
    reading = (
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE query ~ '^COPY' AND datname = current_database()"
    )
    proxy18.delay(0.05)
    with subprocess.Popen(command(proxy18.uri(shop18.name), *arguments)) as process:
        wait_until(lambda: shop18.execute(reading).fetchall() == [(True,)])
        proxy18.stall()
        process.send_signal(number)
        assert process.wait(30) == (-number if number == signal.SIGKILL else 128 + number)
    assert not contents(out)
    assert run(shop18.uri, *arguments).returncode == 0
    assert len(contents(out)["public.u"]) == 300
    assert not list(out.rglob("*.partial"))


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            "--table public.none",
            'find a table to read: nothing matches "public.none"',
            "a pattern is schema.table, with names that have capitals in double quotes: 'public.\"Users\"'",
        ),
        (
            "--publication empty",
            "find a table to read",
            "see what is published with: pgcdc publication show NAME",
        ),
        (
            "--table public.t --columns a,nope",
            'find column "nope" in table "public.t"',
            "it lacks the column, or the publication leaves it out; --table chooses among tables",
        ),
        (
            "--table public.t --where nope",
            'read the rows of table "public.t": column "nope" does not exist',
            "check --where, which must fit every table that is read, ",
        ),
        (
            "--table public.t --where lastval()=1",
            'read the rows of table "public.t": lastval is not yet defined in this session',
            "check --where, which must fit every table that is read, ",
        ),
        (
            "--table public.t --where b::regrole>0",
            'read the rows of table "public.t": role "x1" does not exist',
            "check --where, which must fit every table that is read, ",
        ),
        (
            "--table public.t --where 1/(a-1)=1",
            'read the rows of table "public.t": division by zero',
            "check --where, which must fit every table that is read, ",
        ),
    ],
)
def test_what_is_not_there_is_named(shop18, tmp_path, arguments, message, hint):
    shop18.execute("CREATE PUBLICATION empty")
    ended = run(shop18.uri, *arguments.split(), "-D", tmp_path / "out")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"pgcdc: error: could not {message}\nhint: {hint}" in ended.stderr
    assert not contents(tmp_path / "out")


def test_publications_are_not_a_list(shop18):
    shop18.execute("CREATE PUBLICATION second")
    ended = run(shop18.uri, "--publication", "pub,second")
    assert ended.returncode == 7
    assert "\nhint: name each of them: --publication pub --publication second\n" in ended.stderr


def test_a_publication_that_is_missing_is_named(shop18):
    ended = run(shop18.uri, "--publication", "pup")
    assert ended.returncode == 7
    assert 'could not find publication "pup"\nhint: did you mean "pub"' in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("", "--publication or --table is missing"),
        (
            "--table a.b --format raw",
            "--format: raw output is what the plugin sends, which has no rows of tables",
        ),
        ("--table a.b --format wal2json", "--format: wal2json can't represent existing rows"),
        ("--table a.b --format csv", '"csv" is not one of "jsonl", "arrow", "debezium", "pretty"\n'),
        ("--table a.b --json", "--json: the rows go to standard output; use -f or -D"),
        ("--table a.b --columns a,,b", '--columns: "a,,b" is not a list of columns, such as id,name'),
        ("--table a.b --where=", "--where: the condition is empty"),
        ("--table a.b --sample 0", '"0" is not a percentage: a number above 0, 100 at most'),
    ],
)
def test_what_does_not_go_together(arguments, reason):
    ended = run("host=/nowhere dbname=never_asked", *arguments.split())
    assert (ended.returncode, ended.stdout) == (2, "")
    assert reason in ended.stderr


@pytest.mark.parametrize("source", [[], ["--publication", "pub"]], ids=["all", "published"])
def test_a_table_that_is_missing_is_refused_before_anything_is_written(source, shop18, tmp_path):
    """Unlike in a stream the table can't appear later, and nothing can be added to a written snapshot."""
    out = tmp_path / "out"
    given = [*source, "--table", "public.t", "--table", "public.missing", "--table", "nowhere.*"]
    ended = run(shop18.uri, *given, "-D", out)
    assert (ended.returncode, ended.stdout) == (2, "")
    first, hint, *more = ended.stderr.splitlines()
    reason = 'nothing matches "public.missing", "nowhere.*"'
    assert (first, more) == (f"pgcdc: error: could not find a table to read: {reason}", [])
    assert hint.startswith("hint: ")
    assert run(shop18.uri, *source, "--table", "public.t", "-D", out).returncode == 0


def test_an_excluded_table_that_is_missing_is_a_warning(shop18, tmp_path):
    ended = run(shop18.uri, *PUB, "--exclude-table", "public.missing", "-D", tmp_path / "out")
    assert ended.returncode == 0
    assert ended.stderr == 'pgcdc: warning: no table or column that could be read matches "public.missing"\n'


@pytest.mark.parametrize(
    ("before", "later"),
    [
        ([*DEBEZIUM, *PUB, "-c", "table.include.list=public.u"], [*DEBEZIUM, *PUB]),
        (["--table", "t"], ["--table", "t", "--table", "u"]),
    ],
)
def test_one_that_was_killed_may_begin_again_with_other_lists(shop18, tmp_path, before, later):
    """Nothing is kept that was written with the earlier ones, so there is nothing to warn of."""
    killed = [sys.executable, "-c", KILLED, "sink", "start", "after"]
    killed += command(shop18.uri, *before, "-D", tmp_path / "out")[len(PGCDC) :]
    assert subprocess.run(killed, check=False, timeout=60).returncode == -signal.SIGKILL
    ended = run(shop18.uri, *later, "-D", tmp_path / "out")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert {"public.t", "public.u"} <= contents(tmp_path / "out").keys()


@pytest.mark.parametrize("asked", ["snapshot --table a.b", "stream -S s --publication p"])
def test_a_file_in_a_folder_that_is_missing_is_refused(asked, tmp_path):
    words = [*asked.split(), "-d", "host=/nowhere dbname=never_asked", "-f", "no/such/out"]
    ended = subprocess.run([*PGCDC, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 9
    assert 'error: could not lock "no/such/out.lock": No such file or directory\n' in ended.stderr
    assert list(tmp_path.iterdir()) == []
