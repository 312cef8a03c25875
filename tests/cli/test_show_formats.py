"""`pgcdc show` prints the same changes for every format, except for what a format doesn't record."""

import io
import json

import pytest
from processes import PGCDC, stream_command
from show_tools import show

from pgcdc_cli.lsn import Lsn
from pgcdc_cli.reader import wal2json_reader
from pgcdc_cli.reader.stored_file import StoredFile

SERVER = ("--format", "debezium", "-c", "topic.prefix=srv", "-c", "skipped.operations=none")
MODES = ("-c", "decimal.handling.mode=string", "-c", "interval.handling.mode=string")
EXACT = (*SERVER, *MODES, "-c", "snapshot.mode=never")
PLAIN = ("-c", "value.converter.schemas.enable=false", "-c", "key.converter.schemas.enable=false")
SAID = [
    part
    for name in ("include-xids", "include-timestamp", "include-lsn", "include-pk")
    for part in ("--wal2json-option", f"{name}=true")
]
MORE = [
    """CREATE TABLE "Odd ""Name"" s" ("the key" int, "Wert" text, gap interval, flags bit(5),
        at timestamptz(3), PRIMARY KEY ("the key"))""",
    """INSERT INTO "Odd ""Name"" s" VALUES (1, NULL, '1 year -2 days 03:04:05.6', B'00101', '2026-01-02'),
        (2, 'NULL', '-1 mon +25:00:00', B'00000', '0001-01-01 00:00 BC')""",
    """UPDATE "Odd ""Name"" s" SET "Wert" = '' WHERE "the key" = 1""",
    """UPDATE "Odd ""Name"" s" SET "the key" = 3, "Wert" = 'moved' WHERE "the key" = 2""",
    "CREATE TABLE whole (id int PRIMARY KEY, note text, doc text)",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
    "INSERT INTO whole SELECT 1, NULL, string_agg(md5(i::text), '') FROM generate_series(1, 1000) i",
    "UPDATE whole SET note = 'now' WHERE id = 1",
    "BEGIN; INSERT INTO whole VALUES (5, 'first'); INSERT INTO items VALUES ('second', 1); COMMIT",
    "DELETE FROM whole",
    "INSERT INTO orders (id, note) SELECT 60, string_agg(md5(i::text), '') FROM generate_series(1, 1000) i",
    "UPDATE orders SET id = 61 WHERE id = 60",
    "SELECT pg_logical_emit_message(false, 'loose', 'hi')",
    "INSERT INTO items VALUES ('behind it', 1)",
]


@pytest.fixture
def shop(shop):
    for sql in MORE:
        shop.execute(sql)
    return shop


@pytest.fixture
def changes(stream):
    """The changes as in JSON lines."""
    return [json.loads(line) for line in stream("-f", "-", "--format", "jsonl").splitlines()]


def shown(pgcdc, *arguments):
    return [json.loads(line) for line in show(pgcdc, *arguments, "--json").splitlines()]


def without(change, *names):
    return {name: value for name, value in change.items() if name not in names}


def by_position(changes):
    """Sort by position; truncates of one command share one, and separate folders don't keep their order."""
    return sorted(changes, key=lambda change: (Lsn.parse(change["lsn"]), change.get("table", "")))


def comparable(change):
    """Drop what an event doesn't preserve: arrays of several dimensions, the time without a commit."""
    if change["op"] == "M" and not change["transactional"]:
        return {**change, "ts": ...}
    if change.get("key") in ({"id": 2}, {"id": 20}) and "numbers" in change["new"]:
        return {**change, "new": {**change["new"], "numbers": ..., "words": ...}}
    return change


def as_events_tell(change, digits):
    """A change as far as Debezium's events record it; times have three digits in 2.5."""
    told = without(change, "commit_lsn", "seq", "cascade", "restart_identity")
    told["ts"] = told["ts"] and told["ts"][: len("2026-01-02T03:04:05.") + digits] + "Z"
    # Values that were not sent again are taken from the old row, if that was sent completely.
    if told["op"] == "U" and "doc" in told.get("old", {}):
        told["new"] = {**told["new"], "doc": told["old"]["doc"]}
        del told["unchanged"]
    return comparable(told)


@pytest.mark.parametrize("more", [(), (*PLAIN, "--record", "value")], ids=["full", "bare"])
def test_a_directory_of_debezium_s_events(stream, changes, pgcdc, more):
    """Whatever the records contain, the schema files say how values are written."""
    stream("-D", "d", *EXACT, *more)
    expected = [as_events_tell(change, 3) for change in by_position(changes) if change["op"] != "M"]
    found = shown(pgcdc, "d")
    assert [comparable(change) for change in found if change["op"] != "M"] == expected
    messages = [change for change in found if change["op"] == "M"]
    assert [m["prefix"] for m in messages] == ["app", "app", "loose"]


def test_the_events_of_debezium_3_4(stream, changes, pgcdc):
    stream("-D", "d", *EXACT, "-c", "debezium.version=3.4")
    assert [comparable(one) for one in shown(pgcdc, "d")] == [
        as_events_tell(one, 6) for one in by_position(changes)
    ]


def test_events_in_one_file_are_read_by_their_schemas(stream, changes, pgcdc):
    """Their schemas don't tell NULL in an old row, that a text is a numeric, and a bit string's length."""
    stream("-f", "file", *EXACT)
    stream("-D", "d", "--layout", "stream", "--compression", "zstd", *EXACT)
    expected = [as_events_tell(change, 3) for change in changes]
    for change in expected:
        if "old" in change:
            change["old"] = {name: value for name, value in change["old"].items() if value is not None}
        for name in ("total", "price"):
            if change.get("new", {}).get(name) == "NaN":
                change["new"][name] = "NAN"
        if "flags" in change.get("new", {}):
            change["new"]["flags"] = {"00101": "BQ==", "00000": ""}[change["new"]["flags"]]
    assert [comparable(change) for change in shown(pgcdc, "d")] == expected
    assert shown(pgcdc, "file") == shown(pgcdc, "d")


VALUES = """
    CREATE TABLE exact (
        id int PRIMARY KEY, price numeric(12,2), free numeric, many numeric(5,1)[], bytes bytea,
        flags bit(12), day date, clock time, local timestamp, at timestamptz, gap interval, small float4,
        large float8);
    INSERT INTO exact VALUES
        (1, -0.05, -1e-7, '{-1.5,NULL}', '\\xfbff00', B'000000000101', '0044-03-15 BC', '00:00:00',
            '1969-12-31 23:59:59.5', '0001-01-01 00:00 BC', '-00:04:00', 0.1, -1e22),
        (2, 9999999999.99, 123456789012345678901234567890.5, '{}', '', B'111100000000', 'infinity',
            '23:59:59.999', '-infinity', '2026-01-02 03:04:05.5', '-1 mons +2 days -00:00:00.5', 1e-9, 'NaN'),
        (3, 0, 0, NULL, '\\x00', B'100000000000', '-infinity', '01:02:03', 'infinity', 'infinity',
            '1 year -1 days +00:00:01', NULL, '-Infinity'),
        (4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '1 year', 3.4e38, 5e-324),
        (5, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '00:00:00', NULL, NULL);
"""


@pytest.mark.parametrize(
    ("modes", "lost", "lost_without_schema_files"),
    [
        ((), set(), set()),
        (("decimal.handling.mode=double",), {"free"}, {"price"}),
        (("decimal.handling.mode=string", "time.precision.mode=connect"), set(), set()),
        (("binary.handling.mode=base64",), set(), {"bytes"}),
        (
            ("binary.handling.mode=base64-url-safe", "value.converter.decimal.format=numeric"),
            set(),
            {"bytes"},
        ),
        (("binary.handling.mode=hex", "time.precision.mode=adaptive_time_microseconds"), set(), {"bytes"}),
    ],
    ids=str,
)
def test_values_are_read_back_however_events_have_them(
    shop, stream, pgcdc, modes, lost, lost_without_schema_files
):
    """Except for those that a configuration leaves no way back from, as a schema leaves none to zero bits."""
    shop.execute(VALUES)
    stream("-D", "lines")
    settings = [part for mode in ("interval.handling.mode=string", *modes) for part in ("-c", mode)]
    stream("-D", "d", *SERVER, "-c", "snapshot.mode=never", *settings)
    stream("-f", "file", *SERVER, "-c", "snapshot.mode=never", *settings)
    for events, away in (("d", lost), ("file", {"flags"} | lost | lost_without_schema_files)):
        expected, found = (
            [without(one["new"], *away) for one in shown(pgcdc, where, "--table", "public.exact")]
            for where in ("lines", events)
        )
        assert found == expected


def test_a_column_that_events_lack_or_name_otherwise_hides_nothing_else(shop, stream, pgcdc):
    """Without one of its columns, a key is none; a value that stays as it is keeps its column's name."""
    shop.execute('CREATE TABLE spans (id int, part int, "the gap" interval, PRIMARY KEY (id, part))')
    shop.execute("INSERT INTO spans VALUES (1, 2, '3 seconds')")
    changed = ("-c", r"column.exclude.list=public\.spans\.part", "-c", "field.name.adjustment.mode=avro")
    stream("-D", "d", *SERVER, "-c", "snapshot.mode=never", *changed)
    [found] = shown(pgcdc, "d", "--table", "public.spans")
    assert (found.get("key"), found["new"]) == (None, {"id": 1, "the gap": 3_000_000})


def test_what_stands_for_json_that_was_not_sent_is_a_string(shop, stream, pgcdc):
    """Debezium fills the old row's required columns."""
    shop.execute("CREATE TABLE papers (id int PRIMARY KEY, doc jsonb NOT NULL)")
    shop.execute("""INSERT INTO papers VALUES (1, '"text"')""")
    shop.execute("DELETE FROM papers")
    stream("-f", "file", *EXACT)
    inserted, deleted = shown(pgcdc, "file", "--table", "public.papers")
    assert (inserted["new"], deleted["old"]) == ({"id": 1, "doc": "text"}, {"id": 1, "doc": ""})


def test_without_schemas_values_are_given_as_they_stand(stream, changes, pgcdc):
    stream("-f", "d", *EXACT, *PLAIN)
    found = shown(pgcdc, "d", "--table", "public.items")
    expected = [as_events_tell(one, 3) for one in changes if one.get("table") == "items"]
    assert found == expected
    [first] = [one for one in shown(pgcdc, "d", "--key", "id=1", "--op", "I") if one["table"] == "orders"]
    assert (first["new"]["total"], first["new"]["doc"]) == ("12.50", '{"k": [1.10, null]}')


def test_transaction_records_are_brackets(stream, pgcdc):
    stream("-f", "d", *EXACT, "-c", "provide.transaction.metadata=true")
    found = shown(pgcdc, "d")
    begins, ends = ([one for one in found if one["op"] == op] for op in "BC")
    assert [one["xid"] for one in begins] == [one["xid"] for one in ends]
    text = show(pgcdc, "d", "--format", "pretty")
    assert text.count("BEGIN ") == text.count("COMMIT ") == len(begins) > 5


def test_rows_of_a_snapshot(shop, pgcdc):
    """Debezium writes very old dates differently in snapshots, so there are none here but infinite ones."""
    shop.execute("""DELETE FROM "Odd ""Name"" s" WHERE at < '1900-01-01'""")
    shop.execute("INSERT INTO orders (id, day) VALUES (70, 'infinity'), (71, '-infinity')")
    where = ("--snapshot", "initial", "--endpos", "now")
    for name, form in (("j", ("--format", "jsonl")), ("e", (*SERVER, *MODES))):
        line = stream_command(shop.uri, f"new_{name}", "-D", name, *where, *form, publications=["p"])
        assert pgcdc(*line[len(PGCDC) :], "--create-slot").status == 0
    rows, events = (
        [json.dumps(without(one, *PLACE), sort_keys=True) for one in shown(pgcdc, d)] for d in ("j", "e")
    )
    assert sorted(rows) == sorted(events)
    assert '"op": "R"' in rows[0]


PLACE = ("lsn", "commit_lsn", "seq", "ts")


def as_lines_tell(change):
    """A change as far as wal2json's lines record it, with the options above.

    They lack the number within the transaction. An update always identifies the old row. NaN and infinities
    are null.
    """
    told = without(change, "seq", "cascade", "restart_identity", "unchanged")
    if told["op"] == "U" and "old" not in told:
        told["old"] = told["key"]
    for image in ("old", "new"):
        if image in told:
            told[image] = {n: None if v in NOT_FINITE and n != "note" else v for n, v in told[image].items()}
            for name in ("local", "at", "day"):
                if name in told[image]:
                    told[image][name] = change[image][name]
    return told


NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def test_lines_of_wal2json(stream, changes, pgcdc):
    stream("-f", "file", "--format", "wal2json", *SAID)
    stream("-D", "d", "--layout", "stream", "--compression", "gzip", "--format", "wal2json", *SAID)
    found = shown(pgcdc, "d")
    assert shown(pgcdc, "file") == found
    assert {one["op"] for one in found} == set("BCIUDTM")
    expected = [as_lines_tell(change) for change in changes]
    for change in expected:
        if change["op"] == "M" and "content_base64" in change:
            del change["content_base64"]
            change["content"] = "\ufffd"
    assert [one for one in found if one["op"] not in "BC"] == expected
    assert [one for one in shown(pgcdc, "d", "--since", "0/0") if one["op"] not in "BC"] == expected


def test_lines_of_wal2json_in_a_folder_a_table_come_table_by_table(stream, changes, pgcdc):
    """A line doesn't say where it belongs among those of other tables."""
    stream("-D", "d", "--format", "wal2json", "--wal2json-option", "include-transaction=false")
    found = shown(pgcdc, "d")
    names = [one.get("table", "") for one in found]
    assert sorted(names) == names
    plain = [without(one, "lsn", "commit_lsn", "seq", "xid", "ts", "key") for one in changes]
    items = [one for one in plain if one.get("table") == "items" and one["op"] == "I"]
    assert [one for one in found if one.get("table") == "items" and one["op"] == "I"] == items


@pytest.mark.parametrize(
    "line",
    [
        r'{"action":"I","schema":"s","table":"t\ud800","columns":[{"name":"v","type":"text","value":"\ud800"}]}',
        r'{"before":null,"after":{"v":"\ud800"},"source":{"schema":"s","table":"t\ud800","lsn":1,"txId":1,"ts_ms":1},"op":"c"}',
    ],
)
def test_a_lone_surrogate_stays_escaped(pgcdc, tmp_path, line):
    """JSON can escape one, UTF-8 can't encode it: other programs write such lines, pgcdc none."""
    (tmp_path / "lines").write_text(line + "\n")
    (change,) = shown(pgcdc, tmp_path / "lines")
    assert (change["table"], change["new"]) == ("t\ud800", {"v": "\ud800"})


def test_objects_of_wal2json_version_1(stream, changes, pgcdc):
    """They record neither positions nor truncates, and no NULL of an old row."""
    options = [*SAID[:-2], "--wal2json-option", "format-version=1"]
    stream("-f", "d", "--format", "wal2json", *options)
    found = shown(pgcdc, "d")
    for layout in ("write-in-chunks=true", "pretty-print=true"):
        stream("-f", layout, "--format", "wal2json", *options, "--wal2json-option", layout)
        assert shown(pgcdc, layout) == found
    rows = [one for one in found if one["op"] in "IUD"]
    expected = [as_lines_tell(one) for one in changes if one["op"] in "IUD"]
    for change in expected:
        for name in ("lsn", "commit_lsn", "key"):
            change.pop(name, None)
        if "old" in change:
            change["old"] = {n: v for n, v in change["old"].items() if v is not None}
    assert rows == expected
    assert [one["prefix"] for one in found if one["op"] == "M"] == ["app", "app", "loose"]
    assert [one["op"] for one in found if one["op"] in "BC"][:4] == ["B", "C", "B", "C"]


def test_a_primary_key_that_a_deleted_row_came_without_is_left_out(pgcdc, tmp_path):
    """With `include-pk`, and another index as replica identity."""
    identity, pk = {"name": "code", "type": "text", "value": "x"}, {"name": "id", "type": "integer"}
    line = {"action": "D", "schema": "s", "table": "t", "identity": [identity], "pk": [pk]}
    (tmp_path / "lines").write_text(json.dumps(line) + "\n")
    (change,) = shown(pgcdc, tmp_path / "lines")
    assert without(change, "schema", "table") == {"op": "D", "old": {"code": "x"}}


def test_an_object_that_is_read_in_two_pieces_is_whole():
    """Such as a number, which could end where the first piece does."""
    message = b'{"xid":12345,"change":[{"kind":"message","transactional":true,"prefix":"p","content":"c"}]}'
    for at in range(len(message)):
        content = io.BufferedReader(io.BytesIO(b" " * (wal2json_reader._CHUNK - at) + message))
        changes = wal2json_reader.read_transactions(StoredFile("file"), content)
        assert [json.loads(change.line)["xid"] for change in changes] == [12345] * 3


FORMATS = {"debezium": EXACT, "wal2json": ("--layout", "stream", "--format", "wal2json", *SAID)}


@pytest.mark.parametrize("form", FORMATS)
def test_pretty_reads_the_same(stream, pgcdc, form):
    """Except for what some formats lack: a truncate's options, and where each transaction ends."""
    stream("-D", "lines")
    stream("-D", "d", *FORMATS[form])
    which = ("--format", "pretty", "--table", "public.i*", "--op", "I", "--op", "U")
    assert show(pgcdc, "d", *which) == show(pgcdc, "lines", *which) != ""
    text = show(pgcdc, "d", "--format", "pretty")
    assert 'UPDATE public."Odd ""Name"" s" "the key"=3' in text
    assert "TRUNCATE public.orders" in text


@pytest.mark.parametrize("form", FORMATS)
def test_choosing(stream, changes, pgcdc, form):
    stream("-D", "d", *FORMATS[form])
    whole = [one for one in shown(pgcdc, "d") if one["op"] not in "BC"]
    assert len(whole) == len(changes)
    for number in (1, 3):
        first, last = shown(pgcdc, "d", "--limit", str(number)), shown(pgcdc, "d", "--tail", str(number))
        assert [one for one in first if one["op"] not in "BC"] == whole[:number]
        assert [one for one in last if one["op"] not in "BC"] == whole[-number:]
        assert (first[-1], last[0]) == (whole[number - 1], whole[-number])
    assert shown(pgcdc, "d", "--tail", "3", "--op", "I") == [one for one in whole if one["op"] == "I"][-3:]
    assert [one["op"] for one in shown(pgcdc, "d", "--key", "id=20")] == ["U"]
    at = changes[4]["lsn"]
    assert [one["lsn"] for one in shown(pgcdc, "d", "--at", at)] == [at]
    since = changes[-1]["ts"][:-4] + "Z"
    assert 1 <= len(shown(pgcdc, "d", "--since", since, "--op", "I")) < len(whole)
    counted = json.loads(show(pgcdc, "d", "--stat", "--json"))
    assert counted["transactions"] == len({one["commit_lsn"] for one in changes})
    assert sum(one["changes"] for one in counted["changes"]) == len(changes)


def test_what_a_format_does_not_tell_is_nothing_to_choose_by(stream, pgcdc):
    stream("-D", "events", *EXACT)
    stream("-f", "bare", "--format", "wal2json")
    for arguments, what in (
        (("events", "--since", "0/1"), "by --since and --until: the file doesn't have their commit's LSN"),
        (("bare", "--until", "1h"), "by --since and --until: the file doesn't have their commit's time"),
        (("bare", "--at", "0/1"), "by --at: the file doesn't have their LSN, or not their commit's"),
        (("events", "--at", "0/1"), "by --at: the file doesn't have their LSN, or not their commit's"),
    ):
        ran = pgcdc("show", *arguments)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.startswith(f"pgcdc: error: could not choose changes {what}\nhint: ")
        assert ran.err.count("\n") == 2


def test_counts_without_transactions(stream, changes, pgcdc):
    stream("-f", "bare", "--format", "wal2json", "--wal2json-option", "include-transaction=false")
    counted = json.loads(show(pgcdc, "bare", "--stat", "--json"))
    assert (counted["transactions"], counted["largest"], counted["first"]) == (None, [], None)
    assert sum(one["changes"] for one in counted["changes"]) == len(changes)
    assert "transactions" not in show(pgcdc, "bare", "--stat")


def test_transactions_are_counted_by_their_begins_and_ends_if_nothing_else_tells_them_apart(pgcdc, tmp_path):
    lines = {one: json.dumps({"action": one, "schema": "s", "table": "t"}) for one in "BIC"}
    (tmp_path / "lines").write_text("\n".join(lines[one] for one in "BIICBIICBIC"))
    counted = json.loads(show(pgcdc, "lines", "--stat", "--json"))
    assert counted["transactions"] == 3
    assert [one["changes"] for one in counted["largest"]] == [2, 2, 1]


def test_events_are_made_of_changes_alone(stream, refused):
    """Neither from Debezium's events, nor from wal2json's lines."""
    stream("-D", "d", *EXACT)
    refused(
        "show",
        "d",
        "--format",
        "debezium",
        "-c",
        "topic.prefix=srv",
        status=2,
        error='could not show Debezium\'s events: "d" holds neither JSON lines nor Arrow files',
        hint="show it without --format, or stream with --format debezium",
    )


UNWRAP = ("-c", "transforms=u", "-c", "transforms.u.type=io.debezium.transforms.ExtractNewRecordState")


def test_rows_that_a_transform_left_are_refused(stream, refused):
    for name, more in (("with_schemas", ()), ("plain", PLAIN)):
        stream("-f", name, *EXACT, *UNWRAP, *more)
        refused(
            *("show", name),
            status=8,
            error=f'could not read "{name}": a message transform left only a part of its events, '
            "not what happened",
            hint="pgcdc shows whole events: read these as JSON, or stream without transforms",
        )
