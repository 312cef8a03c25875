"""A snapshot reads what the publications have, as the stream does, and only with the privileges for it."""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import every_type
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from processes import PGCDC, stream_command, wait_until
from segments import contents, manifest
from servers import new_slot_name
from stream_runs import NOW, insert, refused, repeating, stream
from warm_process import run_warm

from pgcdc_cli.catalog import Catalog
from pgcdc_cli.catalog.table_facts import describe_alone
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.stream.snapshot.initial_snapshot import SlotSnapshot
from pgcdc_cli.stream.snapshot.snapshot_rows import Snapshot
from pgcdc_cli.stream.snapshot.snapshot_session import FOREVER, SnapshotSession
from pgcdc_cli.stream.snapshot.snapshot_tables import WantedRows, find_tables
from pgcdc_cli.types.binary.arrow_values import can_read
from pgcdc_cli.types.pg_type import TYPES, builtin

DEBEZIUM = (
    *("--format", "debezium", "-c", "topic.prefix=shop", "-c", "snapshot.mode=initial"),
    *("-c", "key.converter.schemas.enable=false", "-c", "value.converter.schemas.enable=false"),
)
EVERY_TYPE = (
    *("--format", "debezium", "-c", "topic.prefix=shop", "-c", "include.unknown.datatypes=true"),
    *("-c", "key.converter.schemas.enable=false", "-c", "value.converter.schemas.enable=false"),
)
INITIAL = ("--snapshot", "initial", *NOW)
ONLY = ("--snapshot", "only")


def read(uri: str, out: Path, *arguments: str, publications=("pub",)) -> dict[str, list[dict]]:
    """Take a snapshot; return the rows by table, in the order in which they were read."""
    command = stream_command(uri, new_slot_name(), "-D", out, *arguments, publications=publications)
    assert run_warm(command).returncode == 0
    return lines(out, "R")


def lines(out: Path, op: str) -> dict[str, list[dict]]:
    """The rows of JSON lines by table, with columns that are JSON null."""
    every = {str(table): map(json.loads, some) for table, some in contents(out).items()}
    return {
        table: [{**row["new"], **dict.fromkeys(row.get("json_null", ()))} for row in some if row["op"] == op]
        for table, some in every.items()
    }


def events(out: Path, op: str) -> dict[str, list[dict]]:
    """The rows of Debezium events by table."""
    kinds = {"R": "r", "I": "c"}
    every = {str(table): map(json.loads, some) for table, some in contents(out).items()}
    return {
        table: [one["value"]["after"] for one in some if one["value"] and one["value"]["op"] == kinds[op]]
        for table, some in every.items()
        if table.startswith("public.")
    }


def columns(out: Path, op: str) -> dict[str, list[str]]:
    """The columns of Arrow files by table, as Arrow prints them, with rows sorted by key."""
    found = {}
    for file in manifest(out)[0]["files"]:
        with pa.ipc.open_file(out / file["path"]) as reader:
            table = reader.read_all()
        rows = table.take(pc.sort_indices(table["id"])).filter(pc.field("_op") == op)
        wanted = [name for name in table.column_names if name == "_unfit" or name[0] != "_"]
        values = (rows[name].combine_chunks() for name in wanted)
        found[file["table"]] = [value.to_string(window=1000, container_window=1000) for value in values]
    return found


@pytest.mark.parametrize("form", ["jsonl", "arrow", "debezium"])
def test_every_value_is_the_stream_s(any_database, tmp_path, form):
    """Rows that a snapshot reads equal the same rows streamed as inserts."""
    database = any_database
    every_type.fill(database)
    every_type.insert(database)
    if form == "debezium":
        without_days_that_differ(database)
    more = {"jsonl": (), "arrow": ("--format", "arrow"), "debezium": EVERY_TYPE}[form]
    command = stream_command(database.uri, new_slot_name(), "-D", tmp_path / "snapshot", *more)
    assert run_warm([*command, *INITIAL]).returncode == 0
    rows_of = {"jsonl": lines, "arrow": columns, "debezium": events}[form]
    for table in ("single", "several"):
        database.execute(f"CREATE TEMP TABLE copy AS TABLE {table}; DELETE FROM {table}")
        slot = database.create_slot()
        database.execute(f"INSERT INTO {table} SELECT * FROM copy; DROP TABLE copy")
        out, name = tmp_path / table, f"public.{table}"
        command = stream_command(database.uri, slot, "-D", out, *more, "--snapshot", "never", *NOW)
        assert run_warm(command).returncode == 0
        read, streamed = rows_of(tmp_path / "snapshot", "R")[name], rows_of(out, "I")[name]
        assert sorted(map(repr, read)) == sorted(map(repr, streamed))
        assert len(streamed) > 3


def test_values_that_come_in_binary_are_the_stream_s(database, tmp_path):
    """Arrow files of a table whose types are all read in binary."""
    names = ["bool", "int2", "int4", "int8", "oid", "float4", "float8", "text", "bpchar", "json", "jsonb"]
    names += ["uuid", "bytea", "date", "time", "timestamp", "timestamptz"]
    oids = {name: oid for name, _, oid, _ in TYPES}
    assert can_read([builtin(oids[name], -1) for name in names])
    declared = ", ".join(f"c{place} {name}" for place, name in enumerate(names))
    for table in ("t", "usual"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, {declared}, n numeric(12,2))")
    database.execute("CREATE PUBLICATION pub FOR TABLE t, usual")
    slot = database.create_slot()
    for row in range(max(len(every_type.VALUES[name]) for name in names)):
        values = [(*every_type.VALUES[name], *[None] * 99)[row] for name in names]
        casts = ", ".join(f"%s::{name}" for name in names)
        database.execute(f"INSERT INTO t VALUES (%s, {casts}, %s)", (row, *values, row / 4))
    database.execute("INSERT INTO usual SELECT * FROM t WHERE id = 1")
    for name, out, how in [(new_slot_name(), "snapshot", ONLY), (slot, "stream", NOW)]:
        command = stream_command(database.uri, name, "-D", tmp_path / out, "--format", "arrow", *how)
        assert run_warm(command).returncode == 0
    assert columns(tmp_path / "snapshot", "R") == columns(tmp_path / "stream", "I")


def without_days_that_differ(database) -> None:
    """Remove dates before 1582 and infinite ones: Debezium's own snapshots differ, except in arrays."""
    for place, kind in enumerate(every_type.STREAMED):
        if kind in {"date", "timestamp", "timestamptz"}:
            database.execute(f"UPDATE single SET c{place} = NULL WHERE c{place} < '1582-10-15'")
            database.execute(f"UPDATE single SET c{place} = NULL WHERE c{place}::date = 'infinity'")


def test_columns_filters_and_generated_columns_are_the_publication_s(any_database, tmp_path):
    any_database.execute(
        "CREATE TABLE t (a int PRIMARY KEY, b text, c int GENERATED ALWAYS AS (a * 2) STORED);"
        "CREATE TABLE u (a int PRIMARY KEY, b text);"
        "INSERT INTO t SELECT g, 'x' FROM generate_series(1, 4) g; INSERT INTO u VALUES (1, 'secret');"
        "CREATE PUBLICATION pub FOR TABLE t WHERE (a > 2), u (a)"
    )
    found = read(any_database.uri, tmp_path / "out", *ONLY)
    rows = {
        table: [{k: v for k, v in row.items() if v is not None} for row in some]
        for table, some in found.items()
    }
    assert rows == {"public.t": [{"a": 3, "b": "x"}, {"a": 4, "b": "x"}], "public.u": [{"a": 1}]}


def test_a_row_comes_once_whatever_inherits_or_is_part_of_what(database, tmp_path):
    database.execute(
        "CREATE TABLE parent (a int PRIMARY KEY); CREATE TABLE child () INHERITS (parent);"
        "INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2);"
        "CREATE TABLE root (a int PRIMARY KEY) PARTITION BY LIST (a);"
        "CREATE TABLE leaf PARTITION OF root FOR VALUES IN (3, 4); INSERT INTO root VALUES (3), (4);"
        "CREATE PUBLICATION pub FOR ALL TABLES;"
        "CREATE PUBLICATION via FOR TABLE root WITH (publish_via_partition_root = true)"
    )
    tables = {
        table: [row["a"] for row in rows]
        for table, rows in read(database.uri, tmp_path / "leaf", *ONLY).items()
    }
    assert tables == {"public.parent": [1], "public.child": [2], "public.leaf": [3, 4]}
    both = read(database.uri, tmp_path / "root", *ONLY, publications=("pub", "via"))
    assert sorted(both) == ["public.child", "public.parent", "public.root"]


@pytest.mark.parametrize(
    ("key", "statement", "expected"),
    [
        ("PRIMARY KEY (b, a) INCLUDE (c)", "", ["a", "b"]),
        ("UNIQUE (b) INCLUDE (c)", "ALTER TABLE t REPLICA IDENTITY USING INDEX i", ["b"]),
        ("PRIMARY KEY (a) DEFERRABLE", "", None),
        (
            "PRIMARY KEY (b)",
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'i'::regclass",
            None,
        ),
    ],
)
def test_the_key_is_the_stream_s(database, tmp_path, key, statement, expected):
    database.execute(
        f"CREATE TABLE t (a int NOT NULL, b int NOT NULL, c json, CONSTRAINT i {key}); {statement};"
        "INSERT INTO t VALUES (1, 2, NULL); CREATE PUBLICATION pub FOR TABLE t"
    )
    out = tmp_path / "out"
    assert stream(database.uri, slot := new_slot_name(), "-D", str(out), *INITIAL).returncode == 0
    database.execute("INSERT INTO t VALUES (2, 3, NULL)")
    assert stream(database.uri, slot, "-D", str(out), *NOW).returncode == 0
    rows = [json.loads(line) for line in contents(out)["public.t"]]
    assert [row["op"] for row in rows] == ["R", "I"]
    keys = [list(row["key"]) if "key" in row else None for row in rows]
    assert keys == [expected, expected]


def test_chosen_tables_and_columns_alone_are_read(database18, tmp_path):
    database18.execute(
        "CREATE TABLE t (a int PRIMARY KEY, b text, c text); INSERT INTO t VALUES (1, 'b', 'c');"
        "CREATE TABLE other (a int); INSERT INTO other VALUES (1); CREATE PUBLICATION pub FOR TABLE t, other"
    )
    chosen = ("--table", "public.t", "--exclude-column", "public.t.b")
    found = read(database18.uri, tmp_path / "out", *ONLY, *chosen)
    assert found == {"public.t": [{"a": 1, "c": "c"}]}


@pytest.fixture
def reader(database):
    """A role that may stream, and its connection string."""
    role = f"r_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    yield role, database.uri.replace("postgresql://postgres@", f"postgresql://{role}@")
    database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_all_that_may_not_be_read_is_named_before_anything_is(database, reader, tmp_path):
    role, uri = reader
    database.execute(
        "CREATE SCHEMA s; CREATE TABLE s.a (a int PRIMARY KEY); CREATE TABLE b (a int, b int);"
        "CREATE TABLE c (a int);"
        "INSERT INTO s.a VALUES (1); INSERT INTO b VALUES (1, 2); INSERT INTO c VALUES (1);"
        f"CREATE PUBLICATION pub FOR TABLE s.a, b, c;"
        f"GRANT SELECT (a) ON b TO {role}; GRANT SELECT ON c TO {role}"
    )
    out = tmp_path / "out"
    slot = new_slot_name()
    run = stream(uri, slot, "-D", str(out), *INITIAL)
    hint = (
        f'it needs: GRANT SELECT ON TABLE "public"."b" TO "{role}";'
        f' GRANT USAGE ON SCHEMA "s" TO "{role}"; GRANT SELECT ON TABLE "s"."a" TO "{role}"'
    )
    refused(run, 4, 'read table "public.b", table "s.a": permission denied', hint)
    assert not list(out.rglob("*.partial"))
    for grant in hint.removeprefix("it needs: ").split("; "):
        database.execute(grant)
    assert stream(uri, slot, "-D", str(out), *INITIAL).returncode == 0
    assert {table: len(rows) for table, rows in contents(out).items()} == {
        "s.a": 1,
        "public.b": 1,
        "public.c": 1,
    }


def test_rows_that_a_policy_hides_are_not_left_out(database, reader, tmp_path):
    role, uri = reader
    database.execute(
        "CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE PUBLICATION pub FOR TABLE t;"
        f"ALTER TABLE t ENABLE ROW LEVEL SECURITY; GRANT SELECT ON t TO {role}"
    )
    run = stream(uri, new_slot_name(), "-D", str(tmp_path / "out"), *INITIAL)
    hint = f'let the role read all rows: ALTER ROLE "{role}" BYPASSRLS'
    refused(run, 4, 'read table "public.t": row-level security would leave rows out', hint)


def test_a_setting_that_lets_an_index_leave_out_rows_does_not_count(database, tmp_path):
    database.execute(
        "CREATE TABLE t (a int PRIMARY KEY, b int[]);"
        "CREATE INDEX ON t USING gin (b) WITH (fastupdate = off);"
        "INSERT INTO t SELECT g, ARRAY[g % 2] FROM generate_series(1, 10000) g; ANALYZE t;"
        "CREATE PUBLICATION pub FOR TABLE t WHERE (b @> '{1}');"
        f"ALTER DATABASE {database.name} SET gin_fuzzy_search_limit = 10;"
        f"ALTER DATABASE {database.name} SET enable_seqscan = off"
    )
    rows = read(database.uri, tmp_path / "out", *ONLY, "--snapshot-workers", "1")
    assert len(rows["public.t"]) == 5000


def test_a_debezium_snapshot_says_which_transaction_read_it_and_others_have_none(database18, tmp_path):
    database18.execute("CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1);")
    database18.execute("CREATE PUBLICATION pub FOR TABLE t")
    for name, form in {"debezium": DEBEZIUM, "jsonl": ()}.items():
        out = tmp_path / name
        command = stream_command(database18.uri, new_slot_name(), "-D", out, *form, *INITIAL)
        assert run_warm(command).returncode == 0
        [line] = contents(out)["public.t"]
        event = json.loads(line)
        xid = event["value"]["source"]["txId"] if name == "debezium" else event["xid"]
        assert (xid is not None) == (name == "debezium")


def test_the_slot_of_a_dead_snapshot_is_gone(database18, tmp_path):
    database18.execute("CREATE TABLE t (a int); CREATE PUBLICATION pub FOR TABLE t")
    with psycopg.connect(database18.uri) as other:
        other.execute("SELECT txid_current()")
        command = stream_command(
            database18.uri, new_slot_name(), "-D", tmp_path / "out", "--snapshot", "initial"
        )
        run = run_warm([*command, "--max-time", "1s"])
        assert run.returncode == 12
        # `other` is still open, for which the server would wait.
        slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
        wait_until(lambda: database18.execute(slots).fetchone() == (0,))


def test_nobody_waits_for_whoever_waits_to_truncate_a_table(database18, caplog):
    """A second connection would wait for TRUNCATE, which waits for the first one: a deadlock."""
    database18.execute("CREATE TABLE t (a int); INSERT INTO t SELECT generate_series(1, 3)")
    database18.execute("CREATE TABLE other (a int); CREATE PUBLICATION pub FOR TABLE t, other")
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
    with closing(SlotSnapshot(database18.uri)) as exported, psycopg.connect(database18.uri) as changer:
        tables = find_tables(exported.session, WantedRows(["pub"]), describe_alone)
        truncate = threading.Thread(target=changer.execute, args=("TRUNCATE t",))
        truncate.start()
        wait_until(lambda: database18.execute(waiting).fetchone() == (1,))
        slices = list(Snapshot(exported.session, exported.position, workers=2).slices(tables))
        assert [len(batch) for part in slices for batch in part.changes] == [3]
        exported.close()
        truncate.join()
    assert "connections that read the snapshot: 1" in caplog.text
    assert database18.execute("SELECT count(*) FROM t").fetchone() == (0,)


NO_LOCKS = "SELECT count(*) FROM pg_locks WHERE relation = 'root'::regclass AND pid <> pg_backend_pid()"


@pytest.mark.parametrize("rewrite", ["ALTER TABLE root ALTER b TYPE bigint", "TRUNCATE t", "TRUNCATE plain"])
def test_rows_that_a_rewrite_would_take_away_are_locked_or_missed(database, rewrite):
    database.execute("CREATE TABLE root (a int PRIMARY KEY, b int) PARTITION BY LIST (a)")
    database.execute("CREATE TABLE t PARTITION OF root FOR VALUES IN (1); INSERT INTO t VALUES (1)")
    database.execute("CREATE TABLE plain (a int); INSERT INTO plain VALUES (1)")
    database.execute("CREATE PUBLICATION pub FOR TABLE root, plain WITH (publish_via_partition_root = true)")
    with closing(SlotSnapshot(database.uri)) as exported:
        tables = find_tables(exported.session, WantedRows(["pub"]), describe_alone)
        database.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            database.execute(rewrite)
        slices = list(Snapshot(exported.session, exported.position).slices(tables))
        assert [len(batch) for part in slices for batch in part.changes] == [1, 1]
    wait_until(lambda: database.execute(NO_LOCKS).fetchone() == (0,))
    with closing(SlotSnapshot(database.uri)) as exported:
        database.execute(rewrite)
        with pytest.raises(PgcdcError, match="it was changed since the snapshot") as raised:
            find_tables(exported.session, WantedRows(["pub"]), describe_alone)
        assert raised.value.kind.rule.transient


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t DROP b",
        "ALTER TABLE t RENAME b TO c",
        "ALTER TABLE t RENAME TO other",
        "ALTER TABLE t RENAME TO other; ALTER TABLE u RENAME TO t; ALTER TABLE other RENAME TO u",
        "ALTER TABLE t RENAME a TO c; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME c TO b",
        "ALTER TABLE t DROP b, ADD b text DEFAULT 'new'",
        "DROP TABLE t; CREATE TABLE t (a int, b int)",
        "ALTER TABLE t ALTER b TYPE oid",
    ],
)
def test_a_table_that_was_changed_before_it_is_locked_is_tried_again(database18, change):
    database18.execute("CREATE TABLE t (a int, b int); CREATE TABLE u (a int, b int)")
    database18.execute("CREATE PUBLICATION pub FOR TABLE t, u")
    changed = pytest.raises(PgcdcError, match="it was changed since the snapshot")
    with closing(SlotSnapshot(database18.uri)) as exported, closing(Catalog(database18.uri)) as catalog:

        def describe(relations):
            """Change the table between the query of the catalog and the locks."""
            database18.execute(change)
            return catalog.describe(relations)

        with changed as raised:
            find_tables(exported.session, WantedRows(["pub"]), describe)
    assert raised.value.kind.rule.transient


def test_a_table_that_was_created_anew_before_the_catalog_is_asked_is_tried_again(database18):
    """The size of the old one, which the snapshot still sees, is NULL."""
    database18.execute("CREATE TABLE t (a int)")
    with closing(SlotSnapshot(database18.uri)) as exported:
        database18.execute("DROP TABLE t; CREATE TABLE t (a int)")
        with pytest.raises(PgcdcError, match="it was changed since the snapshot"):
            find_tables(exported.session, WantedRows([]), describe_alone)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER PUBLICATION pub ADD TABLE u",
        "ALTER PUBLICATION pub DROP TABLE t",
        "ALTER PUBLICATION pub SET TABLE t WHERE (a > 1)",
        "ALTER PUBLICATION pub ADD TABLES IN SCHEMA private",
        "ALTER PUBLICATION pub SET (publish_via_partition_root = true)",
        "DROP PUBLICATION pub; CREATE PUBLICATION pub FOR TABLE t",
    ],
)
def test_what_is_published_since_the_snapshot_has_its_rows_taken_again(database, change):
    """Changes from before were not streamed, or not as they are now, and the snapshot has none of them."""
    database.execute("CREATE SCHEMA private; CREATE TABLE t (a int); CREATE TABLE u (a int)")
    database.execute("CREATE PUBLICATION pub FOR TABLE t")
    with closing(SlotSnapshot(database.uri)) as exported:
        exported.check_publications(["pub"])
        database.execute(change)
        with pytest.raises(PgcdcError, match="a publication was changed since the snapshot") as raised:
            exported.check_publications(["pub"])
        assert raised.value.kind.rule.transient
    with closing(SlotSnapshot(database.uri)) as exported:
        database.execute("CREATE PUBLICATION another FOR TABLE t")
        exported.check_publications(["pub"])


def test_a_snapshot_whose_session_has_ended_is_taken_again(database):
    """It was no usage error: a standby cancels that session if it conflicts with what it replays."""
    with closing(SnapshotSession(database.uri)) as exporting, closing(SnapshotSession(database.uri)) as other:
        name = exporting.export()
        exporting.end()
        with pytest.raises(PgcdcError, match="could not begin a snapshot: ") as raised:
            other.see(name)
    assert (raised.value.kind, raised.value.hint) == (ErrorKind.CONNECTION, "run again")


def test_a_session_that_the_server_ends_while_it_waits_for_a_lock_says_why(database):
    database.execute("CREATE TABLE t (a int)")
    waiting = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
    with (
        ThreadPoolExecutor(1) as background,
        closing(SnapshotSession(database.uri)) as session,
        psycopg.connect(database.uri) as holder,
    ):
        holder.execute("LOCK TABLE t")
        locked = background.submit(session.lock, [("public", "t")], FOREVER)
        (pid,) = wait_until(lambda: database.execute(waiting).fetchone())
        database.execute("SELECT pg_terminate_backend(%s)", (pid,))
        with pytest.raises(PgcdcError, match="due to administrator command"):
            locked.result()


@pytest.mark.parametrize("publications", [["pub"], []])
def test_whose_lock_a_snapshot_waits_for_is_said(database18, caplog, monkeypatch, publications):
    database18.execute("CREATE TABLE t (a int); CREATE PUBLICATION pub FOR TABLE t")
    with (
        ThreadPoolExecutor(1) as background,
        closing(SnapshotSession(database18.uri)) as session,
        psycopg.connect(database18.uri) as holder,
    ):
        holder.execute("LOCK TABLE t")
        # Not before the session is there: its setup, too, is said to take long.
        monkeypatch.setattr("pgcdc_cli.replication.session.QUIET", 0.1)
        with session.waiting():
            found = background.submit(find_tables, session, WantedRows(publications), describe_alone)
            wait_until(lambda: "to see whose locks" in caplog.text)
        [query] = (line.split("waits for: ")[1] for line in caplog.messages)
        # On a slow machine it is said before the lock is waited for.
        holders = [holder.info.backend_pid]
        wait_until(lambda: [pid for pid, *_ in database18.execute(query)] == holders)
        holder.rollback()
        assert [table.schema.name for table in found.result()] == ["t"]
    caplog.clear()
    monkeypatch.setattr("pgcdc_cli.replication.session.QUIET", 10)
    with closing(SnapshotSession(database18.uri)) as session, session.waiting():
        find_tables(session, WantedRows(publications), describe_alone)
    assert caplog.text == ""


def test_a_standby_that_may_itself_wait_for_the_snapshot_is_named(standby18, caplog, monkeypatch):
    monkeypatch.setattr("pgcdc_cli.replication.session.QUIET", 0.1)
    with closing(SnapshotSession(standby18.uri())) as session, session.waiting():
        said = "max_standby_streaming_delay is -1: then end this run, and run again"
        wait_until(lambda: said in caplog.text)


def test_a_column_that_where_asks_for_in_vain_is_not_tried_again(database18):
    database18.execute("CREATE TABLE t (a int, b int); CREATE PUBLICATION pub FOR TABLE t")
    with closing(SlotSnapshot(database18.uri)) as exported, pytest.raises(PgcdcError) as raised:
        find_tables(exported.session, WantedRows(["pub"], where="c = 1"), describe_alone)
    assert (raised.value.kind, raised.value.message) == (
        ErrorKind.USAGE,
        'could not read the rows of table "public.t": column "c" does not exist',
    )


@pytest.fixture
def rewritten(database):
    """A database with a table that others rewrite, and one that they only write to."""
    database.execute("CREATE TABLE t (a int); INSERT INTO t SELECT generate_series(1, 3)")
    database.execute("CREATE TABLE other (a int); CREATE PUBLICATION pub FOR TABLE t, other")
    return database


def rows_seen(exported: SlotSnapshot) -> int:
    tables = find_tables(exported.session, WantedRows(["pub"]), describe_alone)
    slices = Snapshot(exported.session, exported.position).slices(tables)
    return sum(len(batch) for part in slices for batch in part.changes)


def test_a_table_that_is_rewritten_all_the_time_is_locked_before_there_is_a_snapshot(rewritten):
    with closing(SlotSnapshot(rewritten.uri, lock=[("public", "t"), ("public", "other")])) as exported:
        rewritten.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            rewritten.execute("TRUNCATE t")
        assert rows_seen(exported) == 3


def test_a_table_that_is_truncated_without_a_pause_is_locked_between_two_times(rewritten):
    """One session always waits for our lock, and slot creation for that session: it is let go in between."""
    with repeating(rewritten.uri, "TRUNCATE t; INSERT INTO t SELECT generate_series(1, 3)"):
        for _ in range(3):
            with closing(SlotSnapshot(rewritten.uri, lock=[("public", "t")])) as exported:
                assert rows_seen(exported) == 3


WALSENDER_WAITS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = %s AND backend_type = 'walsender' AND wait_event_type = 'Lock'
"""


def test_who_waits_for_our_lock_waits_only_briefly_if_the_slot_waits_for_long(rewritten):
    """Slot creation waits for a transaction that never asked for the table."""
    with psycopg.connect(rewritten.uri) as busy, psycopg.connect(rewritten.uri, autocommit=True) as changer:
        busy.execute("INSERT INTO other VALUES (1)")
        with ThreadPoolExecutor(1) as background:
            export = background.submit(SlotSnapshot, rewritten.uri, lock=[("public", "t")])
            wait_until(lambda: rewritten.execute(WALSENDER_WAITS, [rewritten.name]).fetchone() == (1,))
            for _ in range(6):
                changer.execute("TRUNCATE t; INSERT INTO t VALUES (1)")
            assert not export.done()
            busy.commit()
            with closing(export.result()) as exported:
                rewritten.execute("SET lock_timeout = '100ms'")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    rewritten.execute("TRUNCATE t")
                assert rows_seen(exported) == 2


@pytest.mark.parametrize("name", ["gone", "secret"])
def test_a_table_that_cannot_be_locked_keeps_no_snapshot_away(rewritten, name):
    rewritten.execute("CREATE ROLE reader LOGIN REPLICATION; CREATE TABLE secret (a int)")
    try:
        rewritten.execute("GRANT SELECT ON t, other TO reader")
        uri = rewritten.uri.replace("postgres@", "reader@")
        with closing(SlotSnapshot(uri, lock=[("public", name)])) as exported:
            assert rows_seen(exported) == 3
    finally:
        rewritten.execute("DROP OWNED BY reader; DROP ROLE reader")


def test_the_slots_of_a_long_snapshot_are_not_idle(own_server):
    """PostgreSQL 18 ends those that nobody uses, and the stream's has no reader before all rows are there."""
    server = own_server(18, {"idle_replication_slot_timeout": "4s"})
    query = "SELECT slot_name, inactive_since FROM pg_replication_slots"
    with (
        psycopg.connect(server.uri(), autocommit=True) as admin,
        closing(SlotSnapshot(server.uri())) as exported,
    ):
        exported.keep_slot("s")
        before = dict(admin.execute(query))
        wait_until(lambda: exported.use_slots("s") or not before.items() & dict(admin.execute(query)).items())
        moved = "SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn <> %s::pg_lsn"
        assert len(before) == 2
        assert admin.execute(moved, (str(exported.position),)).fetchone() == (0,)


USES_SLOTS = """
import sys
from pgcdc_cli.cli.app import main
from pgcdc_cli.stream.snapshot.initial_snapshot import SlotSnapshot

SlotSnapshot.use_slots = lambda self, name: print("used", name, file=sys.stderr)
sys.exit(main())
"""


def test_a_snapshot_uses_its_slots_while_it_is_written(source, tmp_path):
    insert(source, 1, 1)
    slot = new_slot_name()
    arguments = stream_command(source.uri, slot, "-f", tmp_path / "out", "--snapshot", "only")[len(PGCDC) :]
    run = subprocess.run(
        [sys.executable, "-c", USES_SLOTS, *arguments], capture_output=True, text=True, check=True
    )
    assert f"used {slot}\n" in run.stderr
