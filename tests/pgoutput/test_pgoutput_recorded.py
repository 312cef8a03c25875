"""Recordings of real servers: both decoders agree on them, and the values are those of the tables."""

from datetime import UTC, datetime

import psycopg
import pytest
from pgoutput_orders import FrameAssembler as Assembler
from pgoutput_recording import SETTINGS, messages, record
from pgoutput_reference import UNCHANGED, describe, flat, merged, reference

from pgcdc_cli.changes.table import ReplicaIdentity
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m

NOW = datetime(2025, 1, 1, tzinfo=UTC).timestamp() * 1_000_000


def assembled(frames, size=None):
    """The changes of a recording, in batches of `size`, which must equal the plain decoder's."""
    assembler = Assembler(describe, skip_before=Lsn(0))
    size = size or len(frames)
    batches = [frames[start : start + size] for start in range(0, len(frames), size)]
    found = merged(flat(assembler.assemble(batch)) for batch in batches)
    assert found == reference(frames, skip_before=0)
    return found


def tables_after(events):
    """Apply the changes as a reader of the files would: table -> key -> row."""
    tables = {}
    for event in events:
        if event[0] == "T":
            tables[event[1].name] = {}
        elif event[0] in "IUD":
            follow(tables.setdefault(event[1].name, {}), event)
    return tables


def follow(rows, event):
    operation, table, _, new, old = event
    keys = [i for i, column in enumerate(table.columns) if column.in_replica_identity]
    full_identity = table.replica_identity is ReplicaIdentity.FULL
    keys = [0] if full_identity else keys
    before = rows.pop(tuple((old or new)[i] for i in keys), None)
    if operation == "D":
        assert before is not None
        return
    toast = [i for i, value in enumerate(new) if value == UNCHANGED]
    rows[tuple(new[i] for i in keys)] = tuple(
        before[i] if i in toast else value for i, value in enumerate(new)
    )


def source(database, table, key="id"):
    """The table's rows by key, each value as its type's output function prints it."""
    with psycopg.connect(database.uri, options=options()) as connection:
        names = [
            name
            for (name,) in connection.execute(
                "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
                " AND NOT attisdropped ORDER BY attnum",
                (table,),
            )
        ]
        columns = ", ".join(
            f"CASE WHEN num_nulls({name}) = 0 THEN format('%s', {name}) END" for name in names
        )
        rows = connection.execute(f"SELECT format('%s', {key}), {columns} FROM {table}").fetchall()
    return {(first.encode(),): tuple(v if v is None else v.encode() for v in rest) for first, *rest in rows}


def options():
    return " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())


WIDE = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'naïve');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN positive AS numeric(10, 2) CHECK (value > 0);
CREATE TABLE wide (
    id bigint PRIMARY KEY, b bool, i2 int2, i4 int4, f4 float4, f8 float8, n numeric, d positive, t text,
    v varchar(20), c char(5), y bytea, da date, ti time, tz timetz, ts timestamp, tstz timestamptz,
    iv interval, u uuid, j json, jb jsonb, ip inet, net cidr, mac macaddr, bi bit(3), vb varbit, mo mood,
    pr pair, ia int[], ta text[], na numeric[][], r int4range, mr datemultirange, tv tsvector, pt point,
    bx box, mn money, o oid, "Ünï cödé" text, pl pg_lsn
);
"""
WIDE_ROWS = """
INSERT INTO wide SELECT g, g % 2 = 0, g, -g, g / 3.0::float4, g / 7.0, g / 11.0, g + 0.5,
    CASE g % 4 WHEN 0 THEN '' WHEN 1 THEN E'line\\nbreak\\t"\\\\' WHEN 2 THEN 'ünïcödé ☃' END,
    'v' || g, 'c' || g, decode(lpad(to_hex(g), 4, '0'), 'hex'), '2024-02-29'::date + g, '12:34:56.789',
    '12:34:56+02:30', '2024-01-01'::timestamp + g * interval '1.000001 s', '2024-01-01'::timestamptz,
    g * interval '1 month 2 days 3.5 s', md5(g::text)::uuid, '{"a" :  1}', '{"b": [1, null]}', '10.0.0.1/8',
    '10.0.0.0/8', '08:00:2b:01:02:03', B'101', B'1', 'naïve', row(g, 'x,"y')::pair, array[g, null, 3],
    array['a,b', null, '"q"', ''], array[[1.5, 'NaN'], [2, 3]], int4range(g, g + 5),
    datemultirange(daterange('2024-01-01', '2024-02-01')), to_tsvector('a fat cat'), point(g, 2),
    box(point(1, 2), point(3, 4)), g::numeric::money, g::oid, 'key ' || g, '16/B374D848'::pg_lsn
FROM generate_series(1, 50) g;
INSERT INTO wide (id) SELECT g FROM generate_series(51, 60) g;
INSERT INTO wide (id, f4, f8, n, da, ts, tstz, iv, ia, r, t) VALUES
    (61, 'NaN', 'Infinity', 'NaN', 'infinity', '-infinity', 'infinity', '-1 year', '[0:1]={1,2}',
    'empty', ''),
    (62, '-Infinity', '-0', 'Infinity', '4713-01-01 BC', '0044-03-15 BC', '294276-12-31 23:59:59.999999+00',
     '178000000 years', '{}', '(,)', repeat('x', 5000));
UPDATE wide SET t = 'changed', n = NULL WHERE id % 5 = 0;
UPDATE wide SET id = id + 1000 WHERE id % 7 = 0;
DELETE FROM wide WHERE id % 11 = 0;
"""


def test_values_of_all_types_are_postgresqls_own_output(database):
    database.execute(WIDE)
    database.execute("CREATE PUBLICATION p FOR TABLE wide")
    slot = database.create_slot()
    database.execute(WIDE_ROWS)
    frames = record(database, slot)
    found = assembled(frames)
    assert tables_after(found.events)["wide"] == source(database, "wide")
    assert assembled(frames, 7).events == found.events
    assert any(isinstance(message, m.Type) for message in messages(frames))


IDENTITIES = """
CREATE TABLE by_key (id int PRIMARY KEY, n int, doc text);
CREATE TABLE by_full (id int PRIMARY KEY, n int, doc text);
CREATE TABLE by_index (id int NOT NULL, n int, doc text);
CREATE TABLE by_nothing (id int PRIMARY KEY, n int, doc text);
CREATE UNIQUE INDEX by_index_id ON by_index (id);
ALTER TABLE by_full REPLICA IDENTITY FULL;
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_id;
ALTER TABLE by_nothing REPLICA IDENTITY NOTHING;
CREATE PUBLICATION p FOR TABLE by_key, by_full, by_index;
CREATE PUBLICATION nothing FOR TABLE by_nothing WITH (publish = 'insert');
"""
LONG = "(SELECT string_agg(md5(i::text || id::text), '') FROM generate_series(1, 300) i)"


@pytest.mark.parametrize("table", ["by_key", "by_full", "by_index"])
def test_old_images_and_unchanged_toast_follow_the_replica_identity(database, table):
    database.execute(IDENTITIES)
    database.execute(f"ALTER TABLE {table} ALTER doc SET STORAGE EXTERNAL")
    slot = database.create_slot()
    database.execute(f"INSERT INTO {table} SELECT id, id, {LONG} FROM generate_series(1, 5) id")
    database.execute(f"UPDATE {table} SET n = n + 1 WHERE id < 4")
    database.execute(f"UPDATE {table} SET id = id + 100 WHERE id = 2")
    database.execute(f"DELETE FROM {table} WHERE id = 5")
    found = assembled(record(database, slot))
    assert tables_after(found.events)[table] == source(database, table)

    operations = [event[0] for event in found.events]
    assert operations == ["I"] * 5 + ["U"] * 4 + ["D"]
    plain, moved, deleted = found.events[5], found.events[8], found.events[9]
    assert plain[3][2] == UNCHANGED
    if table == "by_full":
        assert (plain[4][:2], len(plain[4][2])) == ((b"1", b"1"), 9600)
        assert deleted[4][:2] == (b"5", b"5")
    else:
        assert (plain[4], moved[4], deleted[4]) == (None, {0: b"2"}, {0: b"5"})


def test_a_table_without_replica_identity_sends_inserts(database):
    database.execute(IDENTITIES)
    slot = database.create_slot()
    database.execute("INSERT INTO by_nothing VALUES (1, 2, NULL)")
    (event,) = assembled(record(database, slot, "nothing")).events
    assert (event[1].replica_identity, event[3]) == (ReplicaIdentity.NOTHING, (b"1", b"2", None))


def test_truncates_messages_and_schema_changes_keep_their_order(database):
    database.execute("CREATE TABLE a (id serial PRIMARY KEY); CREATE TABLE b (id int REFERENCES a, x int)")
    database.execute("CREATE PUBLICATION p FOR TABLE a, b")
    slot = database.create_slot()
    with database.connection.transaction():
        database.execute("INSERT INTO a VALUES (1), (2)")
        database.execute("SELECT pg_logical_emit_message(true, 'inside', 'ünï')")
        database.execute("ALTER TABLE a ADD COLUMN note text DEFAULT 'new'")
        database.execute("INSERT INTO a VALUES (3, 'x')")
        database.execute("TRUNCATE a RESTART IDENTITY CASCADE")
        database.execute("INSERT INTO a VALUES (4, NULL)")
    lsn = database.execute("SELECT pg_logical_emit_message(false, 'alone', 'x')::text").fetchone()[0]
    frames = record(database, slot, messages="true")
    found = assembled(frames)
    assert assembled(frames, 1) == found

    inside, alone = (event for event in found.events if event[0] == "M")
    order = [(event[0], *event[3:4]) for event in found.events[:3]]
    assert order == [("I", (b"1",)), ("I", (b"2",)), ("M", "inside")]
    assert (inside[1][4], inside[4]) == (2, "ünï".encode())
    after = [(event[0], event[1].name, event[2][4], event[3]) for event in found.events[3:7]]
    assert after[0] == ("I", "a", 3, (b"3", b"x"))
    assert sorted(after[1:3]) == [("T", "a", after[1][2], True), ("T", "b", after[2][2], True)]
    assert after[3] == ("I", "a", 6, (b"4", None))
    assert alone[1] == (Lsn.parse(lsn), Lsn.parse(lsn), None, None, 0)
    assert (found.transactions, found.last_edge) == (2, (Lsn.parse(lsn), Lsn.parse(lsn)))


def test_a_resumed_stream_gives_what_follows_and_nothing_twice(database):
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE a")
    slot = database.create_slot()
    for i in range(4):
        database.execute("INSERT INTO a VALUES (%s)", (i,))
        database.execute("SELECT pg_logical_emit_message(false, 'm', %s)", (str(i),))
    frames = record(database, slot, messages="true")
    whole = assembled(frames).events
    begins = [n for n, message in enumerate(messages(frames)) if isinstance(message, m.Commit)]
    for count in range(5):
        taken = flat(Assembler(describe, skip_before=Lsn(0), max_transactions=count + 1).assemble(frames))
        rest = flat(Assembler(describe, skip_before=taken.last_edge[1]).assemble(frames))
        assert taken.events + rest.events == whole
    assert len(begins) == 4


def test_rows_of_partitions_are_their_roots_if_published_so(database):
    database.execute(
        "CREATE TABLE root (id int PRIMARY KEY, x text) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE high (x text, id int NOT NULL);"
        "ALTER TABLE root ATTACH PARTITION high FOR VALUES FROM (10) TO (20);"
        "CREATE PUBLICATION p FOR TABLE root WITH (publish_via_partition_root);"
        "CREATE PUBLICATION leaves FOR TABLE root;"
    )
    slot = database.create_slot()
    copy = database.copy_slot(slot)
    database.execute("INSERT INTO root VALUES (1, 'a'), (2, 'b'), (11, 'c')")
    database.execute("UPDATE root SET id = id + 10 WHERE id = 2")
    database.execute("DELETE FROM root WHERE id = 11")
    assert tables_after(assembled(record(database, slot)).events) == {"root": source(database, "root")}
    leaves = tables_after(assembled(record(database, copy, "leaves")).events)
    assert leaves == {name: source(database, name) for name in ("low", "high")}


def test_widest_and_narrowest_tables(database):
    columns = ", ".join(f"c{i} int2" for i in range(1600))
    database.execute(f"CREATE TABLE widest ({columns}); CREATE TABLE narrowest ()")
    database.execute("CREATE PUBLICATION p FOR TABLE widest, narrowest")
    slot = database.create_slot()
    database.execute("INSERT INTO narrowest DEFAULT VALUES")
    database.execute("INSERT INTO widest (c0, c1599) VALUES (1, 2)")
    narrow, wide = (event[3] for event in assembled(record(database, slot)).events)
    assert narrow == ()
    assert wide == (b"1", *[None] * 1598, b"2")


def test_binary_values_are_decoded_plainly_and_refused_where_not_asked_for(database):
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE a")
    slot = database.create_slot()
    database.execute("INSERT INTO a VALUES (7)")
    frames = record(database, slot, binary="true")
    (insert,) = (message for message in messages(frames) if isinstance(message, m.Insert))
    assert insert.new.values == (m.Binary(b"\0\0\0\7"),)
    with pytest.raises(Exception, match='column "id" is binary, which was not asked for'):
        Assembler(describe, skip_before=Lsn(0)).assemble(frames)


STREAMED = """
CREATE TYPE mood AS ENUM ('ok');
CREATE TABLE big (id int PRIMARY KEY, m mood, t text);
CREATE PUBLICATION p FOR TABLE big;
"""
FILL = "INSERT INTO big SELECT g, 'ok', repeat(md5(g::text), 10) FROM generate_series(%s::int, %s::int) g"
SMALL_MEMORY = {"logical_decoding_work_mem": "64kB"}


@pytest.mark.parametrize(("protocol", "streaming"), [(2, "on"), (4, "on"), (4, "parallel")])
def test_streamed_transactions_have_their_fields(database, protocol, streaming):
    database.execute(STREAMED)
    slot = database.create_slot()
    with database.connection.transaction():
        database.execute(FILL, (1, 2000))
        xid = int(database.execute("SELECT pg_current_xact_id()::text").fetchone()[0])
        with database.connection.transaction(force_rollback=True):
            database.execute(FILL, (2001, 4000))
        database.execute("SELECT pg_logical_emit_message(true, 'streamed', 'x')")
        database.execute("UPDATE big SET id = -id WHERE id < 5")
        database.execute("DELETE FROM big WHERE id = 6")
    with database.connection.transaction(force_rollback=True):
        database.execute(FILL, (5001, 9000))
    with database.connection.transaction():
        database.execute(FILL, (10001, 10300))
        database.execute("TRUNCATE big")
    options = {"proto_version": protocol, "streaming": streaming, "messages": "true"}
    frames = record(database, slot, settings=SMALL_MEMORY, **options)
    found = messages(frames, parallel=streaming == "parallel")
    kinds = {type(message) for message in found}
    assert {m.StreamStart, m.StreamStop, m.StreamCommit, m.StreamAbort, m.Relation, m.Type} <= kinds
    assert {m.Insert, m.Update, m.Delete, m.LogicalMessage, m.Truncate} <= kinds

    starts = [message for message in found if isinstance(message, m.StreamStart)]
    assert [message.first_segment for message in starts if message.xid == xid] == [True] + [False] * (
        sum(message.xid == xid for message in starts) - 1
    )
    commit = next(message for message in found if isinstance(message, m.StreamCommit))
    assert (commit.xid, commit.commit_lsn < commit.end_lsn, commit.commit_time > NOW) == (xid, True, True)
    abort = next(message for message in found if isinstance(message, m.StreamAbort) and message.xid == xid)
    assert abort.subxid != xid
    if streaming == "parallel":
        assert 0 < abort.abort_lsn < commit.commit_lsn
        assert NOW < abort.abort_time <= commit.commit_time
    else:
        assert (abort.abort_lsn, abort.abort_time) == (None, None)
    kept = [message for message in found if isinstance(message, m.Insert) and message.xid == xid]
    assert [int(message.new.values[0].data) for message in kept] == list(range(1, 2001))
    with pytest.raises(Exception, match="it belongs to a streamed or prepared transaction"):
        Assembler(describe, skip_before=Lsn(0)).assemble(frames)


@pytest.mark.parametrize("streaming", ["off", "on"])
def test_prepared_transactions_have_their_fields(database, streaming):
    database.execute(STREAMED)
    slot = f"{database.name}_two_phase"
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", (slot,))
    for number in range(2):
        database.execute("BEGIN")
        database.execute(FILL, (1 + 3000 * number, 3000 * (number + 1)))
        database.execute(f"PREPARE TRANSACTION 'gid {number} ü'")
    options = {"proto_version": 3, "streaming": streaming, "two_phase": "true"}
    found = messages(record(database, slot, settings=SMALL_MEMORY, **options))
    database.execute("COMMIT PREPARED 'gid 0 ü'")
    database.execute("ROLLBACK PREPARED 'gid 1 ü'")
    later = messages(record(database, slot, settings=SMALL_MEMORY, **options))
    committed = next(message for message in later if isinstance(message, m.CommitPrepared))
    rolled_back = next(message for message in later if isinstance(message, m.RollbackPrepared))
    kinds = (m.StreamPrepare,) if streaming == "on" else (m.BeginPrepare, m.Prepare)
    for kind in kinds:
        first, second = (message for message in found if isinstance(message, kind))
        assert (first.gid, second.gid) == ("gid 0 ü", "gid 1 ü")
        assert (first.xid, second.xid) == (committed.xid, rolled_back.xid)
        assert NOW < first.prepare_time <= committed.commit_time
        assert first.prepare_lsn < first.end_lsn <= committed.commit_lsn < committed.end_lsn
        assert (second.end_lsn, second.prepare_time) == (
            rolled_back.prepare_end_lsn,
            rolled_back.prepare_time,
        )
    assert rolled_back.prepare_end_lsn <= rolled_back.rollback_end_lsn
    assert rolled_back.prepare_time <= rolled_back.rollback_time
    assert (committed.gid, rolled_back.gid) == ("gid 0 ü", "gid 1 ü")
