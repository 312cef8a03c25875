"""--binary changes what the server sends, but not the output."""

import re

import pyarrow as pa
from every_type import change, fill
from segments import contents, manifest
from servers import Encoded
from stream_runs import NOW, refused, stream

DEBEZIUM = ("-c", "topic.prefix=srv", "-c", "snapshot.mode=never")
HANDLED = re.compile(rb'"ts_ms":\d+(,"transaction":null)?}')
"""The time at which a Debezium event was made, which is all that differs between two runs."""


def test_the_output_is_that_of_text(database, tmp_path):
    fill(database)
    slot = database.create_slot()
    change(database)
    for form, more in (("jsonl", ()), ("arrow", ()), ("debezium", DEBEZIUM)):
        text, binary = (
            written(database, slot, tmp_path / f"{form}{len(option)}", "--format", form, *more, *option)
            for option in ((), ("--binary",))
        )
        assert binary.keys() == text.keys()
        for table, lines in text.items():
            assert [same_time(line) for line in binary[table]] == [same_time(line) for line in lines]
        assert sum(map(len, text.values())) > 100


XML = (
    "<a>é</a>",
    " <a/> ",
    "",
    '<?xml version="1.0" encoding="UTF-8"?><a>é</a>',
    '<?xml version="1.0"?>\n\n<!DOCTYPE a><a/>',
    '<?xml version="1.1"?>\n<a/>',
    '<?xml version="1.0" standalone="no"?>\n<?xml-stylesheet encoding="a"?><a/>',
)


def test_xml_declares_no_encoding_that_it_does_not_have(server15, tmp_path):
    """Only its binary format says in which encoding the session takes it."""
    database = Encoded(server15, "LATIN1")
    database.execute("CREATE TABLE x (a int PRIMARY KEY, b xml, c xml[])")
    slot = database.create_slot()
    insert = "INSERT INTO x VALUES (%s, %s::text::xml, ARRAY[%s::text::xml, NULL])"
    for number, value in enumerate(XML):
        database.execute(insert, (number, value, value))
    text, binary = (
        written(database, slot, tmp_path / f"out{len(option)}", "--invalid-text", "escape", *option)
        for option in ((), ("--binary",))
    )
    assert binary == text
    assert len(text["public.x"]) == len(XML)
    database.drop()


def written(database, slot, out, *options):
    run = stream(database.uri, database.copy_slot(slot), "-D", str(out), *options, *NOW)
    assert run.returncode == 0, run.stderr
    return arrow_tables(out) if "arrow" in options else contents(out)


def same_time(line: str | bytes) -> str | bytes:
    return HANDLED.sub(b"}", line) if isinstance(line, bytes) else line


def arrow_tables(out) -> dict[str, list[str]]:
    """The rows by file, as printed, since NaN doesn't equal itself."""
    found = {}
    for segment in manifest(out):
        for file in segment["files"]:
            with pa.ipc.open_file(out / file["path"]) as reader:
                table = reader.read_all()
            schema = pa.schema([field.with_type(storage(field.type)) for field in table.schema])
            found[file["path"]] = [str(table.schema), *map(repr, table.cast(schema).to_pylist())]
    return found


def storage(type_: pa.DataType) -> pa.DataType:
    """The type with integers for dates and times, since Python's end in the year 9999."""
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
    run = stream(
        database.uri, database.copy_slot(slot), "--exclude-table", "public.t", "--binary", "--no-catalog"
    )
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


def test_a_type_that_was_dropped_meanwhile_is_not_read_in_binary(database18, tmp_path):
    database18.execute(
        "CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE moods (a int PRIMARY KEY, m mood);"
        "CREATE PUBLICATION pub FOR TABLE moods"
    )
    slot, out = database18.create_slot(), ("-f", str(tmp_path / "out"))
    database18.execute("INSERT INTO moods VALUES (1, 'ok')")
    database18.execute("DROP TYPE mood CASCADE")
    refused(
        stream(database18.uri, slot, *out, "--binary", *NOW),
        8,
        'read column "m" of table "public.moods" in binary: its type no longer exists',
        "leave out --binary",
    )
    assert stream(database18.uri, slot, *out, *NOW).returncode == 0
    assert '"m":"ok"' in (tmp_path / "out").read_text()


def test_what_only_the_catalog_knows_can_be_read_without_no_catalog_as_the_hint_says(database18):
    database18.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE moods (a int PRIMARY KEY, m mood);"
        "CREATE PUBLICATION pub FOR TABLE moods"
    )
    slot = database18.create_slot()
    database18.execute("INSERT INTO moods VALUES (1, 'ok')")
    refused(
        stream(database18.uri, slot, "--binary", "--no-catalog", *NOW),
        8,
        'read column "m" of table "public.moods" in binary: type unknown has no binary reader',
        "leave out --binary; or only --no-catalog, if it is an enum or a domain, or an array of one",
    )
    for option in ("--binary", "--no-catalog"):
        assert '"m":"ok"' in stream(database18.uri, slot, option, "--peek", *NOW).stdout
