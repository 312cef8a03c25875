"""--binary changes what is on the wire, and nothing that comes of it."""

import re

import pyarrow as pa
from every_type import VALUES as ALL
from stream_runs import NOW, contents, manifest, refused, stream

# A number of 131,072 digits is more than Python turns into an integer, which Debezium's events need.
VALUES = {name: [value for value in values if value != "1e131071"] for name, values in ALL.items()}
VECTORS = {"int2vector", "oidvector"}
DEBEZIUM = ("-c", "topic.prefix=srv", "-c", "snapshot.mode=never")
HANDLED = re.compile(rb'"ts_ms":\d+(,"transaction":null)?}')
"""When a Debezium event was made: the one thing that differs between any two runs."""


def fill(database) -> None:
    """A row for each value, all types beside one another, and in a second table as arrays."""
    declared = ", ".join(f"c{place} {name}" for place, name in enumerate(VALUES))
    arrays = ", ".join(f"c{place} {name}[]" for place, name in enumerate(VALUES) if name not in VECTORS)
    database.execute(
        "CREATE TYPE mood AS ENUM ('ok', 'so so');"
        "CREATE DOMAIN tag AS varchar(9); CREATE DOMAIN tags AS tag[]; CREATE DOMAIN square AS box;"
        f"CREATE TABLE single (id int PRIMARY KEY, {declared}, m mood, d tag);"
        f"CREATE TABLE several (id int PRIMARY KEY, {arrays},"
        " m mood[], d tag[], t tags, u tags[], s square[]);"
        "ALTER TABLE single ALTER c14 SET STORAGE EXTERNAL; ALTER TABLE several REPLICA IDENTITY FULL;"
        "CREATE PUBLICATION pub FOR TABLE single, several"
    )


def change(database) -> None:
    """Inserts, updates of keys and of other columns, deletes, TOAST left alone, a changed table."""
    rows = max(map(len, VALUES.values()))
    names = list(VALUES)
    for row in range(rows):
        values = [VALUES[name][row] if row < len(VALUES[name]) else None for name in names]
        casts = ", ".join(f"%s::{name}" for name in names)
        database.execute(f"INSERT INTO single VALUES (%s, {casts}, 'so so', 'tag')", (row, *values))
    lists = ", ".join(
        f"(SELECT array_agg(c{place} ORDER BY id) FROM single WHERE id % 3 = g)"
        for place, name in enumerate(names)
        if name not in VECTORS
    )
    database.execute(
        f"INSERT INTO several SELECT g, {lists}, '{{ok,\"so so\",NULL}}', '{{a,b}}', '{{c}}',"
        r""" '{"{a,NULL}","{\"b c\"}"}', '{(1,1),(0,0);NULL}'"""
        " FROM generate_series(0, 3) g"
    )
    database.execute("UPDATE single SET id = -id - 1, c1 = 5 WHERE id < 5")
    database.execute("UPDATE single SET m = 'ok'")
    database.execute("UPDATE several SET m = NULL WHERE id = 1")
    database.execute("DELETE FROM several WHERE id = 0")
    database.execute("ALTER TABLE single ADD extra numeric(9,3) DEFAULT 7")
    database.execute("UPDATE single SET extra = id")
    database.execute("DELETE FROM single WHERE id > 3")


def test_the_output_is_that_of_text(database, tmp_path):
    fill(database)
    slot = database.create_slot()
    change(database)
    for form, more in (("jsonl", ()), ("arrow", ()), ("debezium", DEBEZIUM)):
        text, binary = (
            written(database, slot, tmp_path / f"{form}{len(option)}", "--format", form, *more, *option)
            for option in ((), ("--binary",))
        )
        assert list(binary) == list(text)
        for table, lines in text.items():
            assert [same_time(line) for line in binary[table]] == [same_time(line) for line in lines]
        assert sum(map(len, text.values())) > 100


def written(database, slot, out, *options):
    run = stream(database.uri, database.copy_slot(slot), "-D", str(out), *options, *NOW)
    assert run.returncode == 0, run.stderr
    return arrow_tables(out) if "arrow" in options else contents(out)


def same_time(line: str | bytes) -> str | bytes:
    return HANDLED.sub(b"}", line) if isinstance(line, bytes) else line


def arrow_tables(out) -> dict[str, list[str]]:
    """By file, its rows as they are printed: NaN is no equal of itself."""
    found = {}
    for segment in manifest(out):
        for file in segment["files"]:
            with pa.ipc.open_stream(out / file["path"]) as reader:
                table = reader.read_all()
            schema = pa.schema([field.with_type(storage(field.type)) for field in table.schema])
            found[file["path"]] = [str(table.schema), *map(repr, table.cast(schema).to_pylist())]
    return found


def storage(type_: pa.DataType) -> pa.DataType:
    """The type with integers for dates and times, since Python's end at year 9999."""
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(storage(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(storage(type_.value_type))
    if pa.types.is_temporal(type_):
        return pa.int32() if type_ == pa.date32() else pa.int64()
    return type_


def test_a_type_without_a_reader_stops_the_stream_with_the_way_out(database, tmp_path):
    database.execute(
        "CREATE TABLE t (a int PRIMARY KEY); CREATE TABLE priced (a int PRIMARY KEY, price money);"
        "CREATE PUBLICATION pub FOR TABLE t, priced"
    )
    slot = database.create_slot()
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("INSERT INTO priced VALUES (1, 2)")
    out = ("-f", str(tmp_path / "out"))
    run = stream(database.uri, slot, *out, "--binary", *NOW)
    reason = 'read column "price" of table "public.priced" in binary: type money has no binary reader'
    refused(run, 8, reason, "leave out --binary")
    again = stream(database.uri, slot, *out, *NOW)
    assert (again.returncode, again.stderr) == (0, "")
    assert (tmp_path / "out").read_text().count('"op":"I"') == 2


def test_a_composite_has_no_reader_but_a_type_without_a_send_function_needs_none(database18):
    database18.execute(
        "CREATE TYPE pair AS (a int, b int); CREATE TABLE rights (a int PRIMARY KEY, r aclitem);"
        "CREATE TABLE pairs (a int PRIMARY KEY, p pair); CREATE PUBLICATION pub FOR TABLE rights, pairs"
    )
    slot = database18.create_slot()
    database18.execute("INSERT INTO rights VALUES (1, '=r/postgres')")
    kept = stream(database18.uri, database18.copy_slot(slot), "--binary", *NOW)
    assert '"r":"=r/postgres"' in kept.stdout
    database18.execute("INSERT INTO pairs VALUES (1, '(1,2)')")
    run = stream(database18.uri, slot, "--binary", *NOW)
    assert run.stderr.startswith(
        'pgcdc: error: could not read column "p" of table "public.pairs" in binary:'
        " type pair has no binary reader\n"
    )
