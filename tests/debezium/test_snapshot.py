"""Each row from before the stream comes once, however many are written meanwhile or when it is killed."""

import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import psycopg
import pytest
from processes import PGCDC, wait_until
from test_stream_snapshot import KILLED, STEPS
from warm_process import run_warm

from pgcdc_cli.catalog.table_facts import describe_alone
from pgcdc_cli.stream.snapshot.initial_snapshot import SlotSnapshot
from pgcdc_cli.stream.snapshot.snapshot_rows import Snapshot
from pgcdc_cli.stream.snapshot.snapshot_tables import WantedRows, find_tables


def command(database, output, *more, mode="initial"):
    return [
        *PGCDC, "stream", "-d", database.uri, "-f", str(output),
        "--format", "debezium", "-c", "topic.prefix=srv", "-c", f"snapshot.mode={mode}",
        "-c", f"slot.name=s_{database.name}", "-c", "key.converter.schemas.enable=false",
        "-c", "value.converter.schemas.enable=false", "--no-progress", *more,
    ]  # fmt: skip


def run(database, output, *more, mode="initial"):
    line = command(database, output, *more, mode=mode)
    ended = run_warm(line)
    assert ended.returncode == 0, ended.stderr


def events(output):
    return [json.loads(line)["value"] for line in output.read_text().splitlines()]


def test_rows_written_meanwhile_come_once(database, tmp_path):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t SELECT generate_series(1, 20000)")
    stop = threading.Event()

    def write():
        with psycopg.connect(database.uri, autocommit=True) as connection:
            number = 20000
            while not stop.is_set():
                number += 1
                connection.execute("INSERT INTO t VALUES (%s)", (number,))
                time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    out = tmp_path / "out"
    try:
        with subprocess.Popen(command(database, out)) as process:
            wait_until(lambda: out.exists() and '"op":"c"' in out.read_text(), pause=0.2)
            process.terminate()
        assert process.returncode == 0
    finally:
        stop.set()
        writer.join()
    run(database, out, "--endpos", "now")
    found = events(out)
    assert {event["op"] for event in found} == {"r", "c"}
    last = database.execute("SELECT max(id) FROM t").fetchone()[0]
    assert sorted(event["after"]["id"] for event in found) == list(range(1, last + 1))


def test_a_killed_snapshot_is_read_anew(database18, tmp_path):
    database18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database18.execute("INSERT INTO t SELECT n, repeat('x', 200) FROM generate_series(1, 100000) n")
    output = tmp_path / "out"
    with subprocess.Popen(command(database18, output)) as process:
        wait_until(lambda: output.exists() and output.stat().st_size, pause=0.005)
        assert process.poll() is None
        process.kill()
    database18.execute("INSERT INTO t VALUES (100001, '')")
    run(database18, output, "--endpos", "now")
    assert [event["after"]["id"] for event in events(output)] == list(range(1, 100002))


@pytest.mark.parametrize(("mode", "again"), [("initial", 0), ("always", 3), ("never", 0)])
def test_a_second_run_reads_again_only_where_asked(database18, tmp_path, mode, again):
    database18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database18.execute("INSERT INTO t VALUES (1), (2), (3)")
    run(database18, tmp_path / "out", "--endpos", "now", mode=mode)
    before = len(events(tmp_path / "out"))
    assert before == (0 if mode == "never" else 3)
    run(database18, tmp_path / "out", "--endpos", "now", mode=mode)
    assert len(events(tmp_path / "out")) - before == again


@pytest.mark.parametrize(
    ("first", "then", "read_again"),
    [
        ("initial", "no_data", False),
        ("never", "initial", False),
        ("initial_only", "initial", False),
        ("no_data", "always", True),
    ],
)
def test_the_snapshot_mode_may_differ_from_run_to_run(database18, tmp_path, first, then, read_again):
    """As in Debezium: of a stream that has begun, only `always` reads the rows again."""
    database18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database18.execute("INSERT INTO t VALUES (1)")
    run(database18, tmp_path / "out", "--endpos", "now", mode=first)
    before = events(tmp_path / "out")
    assert [event["op"] for event in before] == (["r"] if first.startswith("initial") else [])
    database18.execute("INSERT INTO t VALUES (2)")
    run(database18, tmp_path / "out", "--endpos", "now", mode=then)
    found = [(event["op"], event["after"]["id"]) for event in events(tmp_path / "out")[len(before) :]]
    assert found == ([("r", 1), ("r", 2)] if read_again else []) + [("c", 2)] * (not read_again)


@pytest.mark.parametrize("mode", ["never", "no_data"])
def test_a_snapshot_is_completed_before_a_run_may_do_without(database18, tmp_path, mode):
    """Otherwise the output would lack the tables that weren't read yet."""
    for name in ("a", "b"):
        database18.execute(f"CREATE TABLE {name} AS SELECT 1 AS id")
    database18.execute("INSERT INTO b SELECT generate_series(2, 20000)")
    output = tmp_path / "out"
    line = [sys.executable, "-c", KILLED, *STEPS["when all rows are read"].split()]
    line += command(database18, output, "-F", "0")[len(PGCDC) :]
    assert subprocess.run(line, check=False).returncode == -signal.SIGKILL
    ended = run_warm(command(database18, output, "--endpos", "now", mode=mode))
    assert ended.returncode == 2
    assert "the snapshot that the stream begins with was not finished" in ended.stderr
    assert "snapshot.mode=initial" in ended.stderr
    run(database18, output, "--endpos", "now", mode="initial")
    assert sorted(event["after"]["id"] for event in events(output)) == sorted([1, *range(1, 20001)])


def test_a_table_may_join_the_include_list(database18, tmp_path):
    """A filtered publication follows, as when a connector is restarted; heartbeats may begin then, too."""
    for name in ("a", "b"):
        database18.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    filtered = ("-c", "publication.autocreate.mode=filtered", "--endpos", "now")
    run(database18, tmp_path / "out", *filtered, "-c", "table.include.list=public.a")
    more = (*filtered, "-c", "table.include.list=public.(a|b)", "-c", "heartbeat.interval.ms=60000")
    told = [run_warm(command(database18, tmp_path / "out", *more)).stderr for _ in range(2)]
    # The wrong file, or a mistyped name, would be seen.
    differs = "table.include.list differs from the last run's: from here on, other changes are written"
    assert told == [f"pgcdc: warning: {differs}\n", ""]
    database18.execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (2)")
    run(database18, tmp_path / "out", *more)
    found = [(event["source"]["table"], event["after"]["id"]) for event in events(tmp_path / "out")]
    assert found == [("a", 1), ("b", 2)]


def test_a_table_that_the_lists_leave_out_is_not_read_again(database18, tmp_path):
    """It would count as read once the lists have it."""
    for name in ("a", "b"):
        database18.execute(f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1)")
    line = ("--resnapshot", "public.b", "--endpos", "now", "-c", "table.exclude.list=public.b")
    run(database18, tmp_path / "out", *line[2:])
    ended = run_warm(command(database18, tmp_path / "out", *line))
    assert ended.returncode == 2
    assert 'nothing in the publications matches "public.b"' in ended.stderr
    run(database18, tmp_path / "out", *line[:4])
    assert [event["source"]["table"] for event in events(tmp_path / "out")] == ["a", "b"]


def test_a_table_that_may_not_be_published_does_not_end_a_stream(database18, tmp_path):
    """Somebody else has created it, and the filters let it through."""
    database18.execute(
        f"CREATE ROLE r_{database18.name} LOGIN REPLICATION; CREATE TABLE t (id int PRIMARY KEY);"
        f"ALTER TABLE t OWNER TO r_{database18.name};"
        f"GRANT CREATE ON DATABASE {database18.name} TO r_{database18.name}"
    )
    filtered = ("-c", "publication.autocreate.mode=filtered", "--endpos", "now")
    role = ("-U", f"r_{database18.name}")
    uri = database18.uri.replace("postgres@", "")
    owned = SimpleNamespace(uri=uri, name=database18.name)
    database18.execute("CREATE PUBLICATION dbz_publication")
    ended = run_warm(command(owned, tmp_path / "out", *filtered, *role))
    assert ended.returncode == 4
    assert "hint: only its owner or a superuser may" in ended.stderr
    database18.execute("DROP PUBLICATION dbz_publication")
    run(owned, tmp_path / "out", *filtered, *role)
    database18.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    ended = run_warm(command(owned, tmp_path / "out", *filtered, *role))
    reason = 'could not alter publication "dbz_publication": must be owner of table other'
    warning = f"pgcdc: warning: {reason}; it publishes what it did before\n"
    assert (ended.returncode, ended.stderr) == (0, warning)
    assert [event["after"]["id"] for event in events(tmp_path / "out")] == [1]
    database18.execute(f"DROP OWNED BY r_{database18.name}; DROP ROLE r_{database18.name}")


def test_tables_that_a_publication_has_already_keep_what_was_added_by_hand(database18, tmp_path):
    """Also if others join or leave it, and however long they are being vacuumed."""
    database18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    filtered = ("-c", "publication.autocreate.mode=filtered", "--endpos", "now")
    run(database18, tmp_path / "out", *filtered)
    database18.execute("CREATE TABLE gone (id int PRIMARY KEY); CREATE SCHEMA whole")
    database18.execute(
        "ALTER PUBLICATION dbz_publication SET TABLE t WHERE (id > 1), gone, TABLES IN SCHEMA whole"
    )
    database18.execute("CREATE TABLE late (id int PRIMARY KEY)")
    with psycopg.connect(database18.uri) as other:
        other.execute("LOCK t IN SHARE UPDATE EXCLUSIVE MODE")
        run(database18, tmp_path / "out", *filtered, "-c", "table.exclude.list=public.gone")
    database18.execute("INSERT INTO t VALUES (1), (2); INSERT INTO late VALUES (3)")
    run(database18, tmp_path / "out", *filtered, "-c", "table.exclude.list=public.gone")
    assert [event["after"] for event in events(tmp_path / "out")] == [{"id": 2}, {"id": 3}]
    published = "SELECT tablename FROM pg_publication_tables ORDER BY 1"
    assert database18.execute(published).fetchall() == [("late",), ("t",)]
    assert database18.execute("SELECT FROM pg_publication_namespace").fetchone() is None


def test_filters_that_no_table_passes_are_named(database18, tmp_path):
    filtered = ("-c", "publication.autocreate.mode=filtered", "-c", "table.include.list=orders")
    ended = run_warm(command(database18, tmp_path / "out", *filtered))
    error, hint = ended.stderr.splitlines()
    reason = 'limit publication "dbz_publication" to the tables that pass the filters: there are none'
    assert (ended.returncode, error) == (2, f"pgcdc: error: could not {reason}")
    assert hint.startswith("hint: check table.include.list")


def test_only_the_publication_of_the_stream_s_own_source_is_changed(database18, tmp_path):
    """Of another server, or with another's name, the run is refused, and has changed nothing."""
    for name in ("a", "b"):
        database18.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    database18.execute("CREATE PUBLICATION theirs FOR TABLE b")
    filtered = ("-c", "publication.autocreate.mode=filtered", "-c", "table.include.list=public.a")
    run(database18, tmp_path / "out", *filtered, "--endpos", "now")
    ended = run_warm(command(database18, tmp_path / "out", *filtered, "-c", "publication.name=theirs"))
    assert ended.returncode == 13
    theirs = "SELECT tablename FROM pg_publication_tables WHERE pubname = 'theirs'"
    assert database18.execute(theirs).fetchall() == [("b",)]


PUBLISHED = "SELECT tablename FROM pg_publication_tables ORDER BY 1"


def test_tables_that_inherit_from_one_another_join_and_leave_by_themselves(database18, tmp_path):
    """ALTER PUBLICATION would take those that inherit from a table along with it, or be refused."""
    database18.execute(
        "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)"
    )
    filtered = ("-c", "publication.autocreate.mode=filtered", "--endpos", "now", "-c")
    for number, names in enumerate(["parent", "child|parent", "child", "child|parent", "parent"]):
        run(database18, tmp_path / "out", *filtered, f"table.include.list=public.({names})")
        assert "|".join(name for (name,) in database18.execute(PUBLISHED)) == names
        database18.execute("INSERT INTO child VALUES (%s)", (number,))
    assert [event["after"]["id"] for event in events(tmp_path / "out")] == [1, 2]


def test_a_partition_that_the_lists_name_is_published_by_itself(database18, tmp_path):
    """With its root, if they have that, too."""
    database18.execute(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE m (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF m FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE high PARTITION OF m FOR VALUES FROM (100) TO (200)"
    )
    filtered = ("-c", "publication.autocreate.mode=filtered", "--endpos", "now", "-c")
    for number, names in enumerate(["t|low", "t|m|low", "low"]):
        run(database18, tmp_path / "out", *filtered, f"table.include.list=public.({names})")
        database18.execute("INSERT INTO m VALUES (%s), (%s)", (number, 100 + number))
    run(database18, tmp_path / "out", *filtered, "table.include.list=public.low")
    assert [event["after"]["id"] for event in events(tmp_path / "out")] == [0, 1, 2]


def test_what_leaves_a_publication_is_said_since_another_stream_may_need_it(database18, tmp_path):
    for name in ("a", "b"):
        database18.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    filtered = ("-c", "publication.autocreate.mode=filtered", "--endpos", "now", "-c")
    run(database18, tmp_path / "out", *filtered, "table.include.list=public.a")
    other = ("-S", f"o_{database18.name}", *filtered, "table.include.list=public.b")
    ended = run_warm(command(database18, tmp_path / "other", *other))
    warning = 'pgcdc: warning: publication "dbz_publication" no longer publishes "public.a": the lists leave'
    assert (ended.returncode, ended.stderr.startswith(warning)) == (0, True)
    assert "needs a publication of its own" in ended.stderr


@pytest.mark.parametrize("mode", ["all_tables", "filtered"])
def test_a_table_that_may_not_be_updated_once_it_is_published_is_warned_of(database18, tmp_path, mode):
    """Applications fail then; with filtered, also as soon as a table joins."""
    database18.execute("CREATE TABLE a (id int)")
    options = ("-c", f"publication.autocreate.mode={mode}", "--endpos", "now")
    fails = 'updates and deletes of table "public.{}" fail on the source: it has no replica identity'
    told = run_warm(command(database18, tmp_path / "out", *options)).stderr
    assert fails.format("a") in told
    assert run_warm(command(database18, tmp_path / "out", *options)).stderr == ""
    database18.execute("CREATE TABLE b (id int)")
    told = run_warm(command(database18, tmp_path / "out", *options)).stderr
    assert (fails.format("b") in told) == (mode == "filtered")


def test_the_publication_of_a_slot_that_is_being_read_is_not_changed(database18, tmp_path):
    """Two connectors without a slot.name have the same slot: the one that comes later is refused."""
    for name in ("a", "b"):
        database18.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    filtered = ("-c", "publication.autocreate.mode=filtered", "-c")
    run(database18, tmp_path / "out", *filtered, "table.include.list=public.a", "--endpos", "now")
    database18.execute("INSERT INTO a VALUES (1)")
    line = command(database18, tmp_path / "out", *filtered, "table.include.list=public.a")
    with subprocess.Popen(line) as reader:
        wait_until((tmp_path / "out").read_text)
        more = (*filtered, "table.include.list=public.b", "--no-loop")
        ended = run_warm(command(database18, tmp_path / "other", *more))
        reader.terminate()
    assert (ended.returncode, "is reading it" in ended.stderr) == (5, True)
    assert database18.execute(PUBLISHED).fetchall() == [("a",)]


def test_lists_that_a_killed_run_had_are_known_once_the_publication_has_followed_them(database18, tmp_path):
    """Who goes back to the earlier ones is told: what came between has no event."""
    for name in ("a", "b"):
        database18.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    filtered = ("-c", "publication.autocreate.mode=filtered", "--endpos", "now")
    run(database18, tmp_path / "out", *filtered)
    only = command(database18, tmp_path / "out", *filtered, "-c", "table.include.list=public.a")
    line = [sys.executable, "-c", KILLED, "catalog", "alter_publication", "after", *only[len(PGCDC) :]]
    assert subprocess.run(line, check=False).returncode == -signal.SIGKILL
    assert database18.execute(PUBLISHED).fetchall() == [("a",)]
    ended = run_warm(command(database18, tmp_path / "out", *filtered))
    differs = "table.include.list differs from the last run's: from here on, other changes are written"
    assert (ended.returncode, ended.stderr) == (0, f"pgcdc: warning: {differs}\n")


def test_a_publication_for_all_tables_is_not_filtered(database18, tmp_path):
    database18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database18.execute("CREATE PUBLICATION dbz_publication FOR ALL TABLES")
    filtered = ("-c", "publication.autocreate.mode=filtered", "--endpos", "now")
    ended = run_warm(command(database18, tmp_path / "out", *filtered))
    assert (ended.returncode, "publication.autocreate.mode=all_tables" in ended.stderr) == (7, True)


def test_initial_only_ends_by_itself(database18, tmp_path):
    database18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database18.execute("INSERT INTO t VALUES (1), (2), (3)")
    run(database18, tmp_path / "out", mode="initial_only")
    assert [e["source"]["snapshot"] for e in events(tmp_path / "out")] == ["first", "true", "last"]


def test_a_filtered_publication_has_what_the_filters_let_through(database18, tmp_path):
    for name in ("a", "b", "c"):
        database18.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
    filtered = ("-c", "publication.autocreate.mode=filtered", "-c", "table.include.list=public.(a|c)")
    run(database18, tmp_path / "out", *filtered, "--endpos", "now")
    found = database18.execute("SELECT tablename FROM pg_publication_tables ORDER BY 1").fetchall()
    assert found == [("a",), ("c",)]


@pytest.mark.parametrize("mode", ["all_tables", "filtered"])
def test_a_publication_that_is_made_may_publish_partitions_as_their_root(database18, tmp_path, mode):
    database18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    newer = ("-c", f"publication.autocreate.mode={mode}", "-c", "publish.via.partition.root=true")
    run(database18, tmp_path / "out", *newer, "--endpos", "now")
    assert database18.execute("SELECT pubviaroot FROM pg_publication").fetchall() == [(True,)]


def test_a_snapshot_that_cannot_begin_yet_does_not_outlast_a_signal(database18, tmp_path):
    """To create the slot, the server waits for every open transaction."""
    database18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database18.create_slot(f"s_{database18.name}")
    waiting = (
        "SELECT count(*) FROM pg_replication_slots"
        " WHERE slot_name LIKE 'pgcdc_snapshot_%' AND database = current_database()"
    )
    with psycopg.connect(database18.uri) as other:
        other.execute("SELECT txid_current()")
        process = subprocess.Popen(command(database18, tmp_path / "out"), stderr=subprocess.PIPE)
        try:
            wait_until(lambda: database18.execute(waiting).fetchone() != (0,))
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60)[1] == b""
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 0
    assert (tmp_path / "out").read_text() == ""


def test_the_timeouts_of_other_sessions_do_not_cut_a_snapshot_short(database):
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT n, repeat('x', 300) FROM generate_series(1, 40000) n")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        database.execute(f"ALTER DATABASE {database.name} SET {name} = '500ms'")
    with closing(SlotSnapshot(database.uri)) as exported:
        time.sleep(1)
        tables = find_tables(exported.session, WantedRows(["p"]), describe_alone)
        slices = Snapshot(exported.session, exported.position).slices(tables)
        rows = sum(map(len, next(slices).changes))
        time.sleep(1)
        rows += sum(len(batch) for part in slices for batch in part.changes)
    assert rows == 40000
