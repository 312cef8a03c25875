"""What the installed plugin can't show: options of a newer one, and cases in which its lines are no JSON."""

import json
from dataclasses import replace

import numpy as np
import pytest
from batches import UNCHANGED, Stream, change, full, key_only, stamp, table

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.slice import ChangeBatch, MessageChange, TransactionBoundary, TruncateChange
from pgcdc_cli.changes.table import ColumnFacts, TableFacts
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.wal2json.wal2json_format import Wal2jsonFormat
from pgcdc_cli.formats.wal2json.wal2json_options import read_options
from pgcdc_cli.lsn import Lsn

NUMBERS = {"id": "int8", "f": "float8", "n": "numeric", "ok": "bool", "raw": "bytea", "o": "oid", "t": "text"}


def lines(stream: Stream, **options: str) -> list[bytes]:
    given = {name.replace("_", "-"): value for name, value in options.items()}
    form = Wal2jsonFormat("stream", options=read_options(given.items()))
    (piece,) = form.encode(stream.slice()).pieces
    found = bytes(form.frame([piece.data])).removesuffix(b"\n").split(b"\n")
    assert len(found) == piece.rows
    return found


def values(line: bytes, part: str = "columns") -> dict[str, object]:
    return {column["name"]: column["value"] for column in json.loads(line)[part]}


def test_numbers_are_bare_and_what_is_none_is_null():
    rows = [
        ["1", "1e+20", "-0.50", "t", "\\x00ff", "4294967295", "x"],
        ["-2", "NaN", "NaN", "f", "\\x", "0", ""],
        [None, "-Infinity", "Infinity", None, None, None, None],
    ]
    found = lines(Stream([change(table(NUMBERS), "I", [0, 1, 2], rows)]), include_types="off")
    assert b'"value":-0.50}' in found[0]
    assert [list(values(line).values()) for line in found] == [
        [1, 1e20, -0.5, True, "00ff", 4294967295, "x"],
        [-2, None, None, False, "", 0, ""],
        [None, None, None, None, None, None, None],
    ]


def test_numbers_as_strings_are_strings_all():
    rows = [["1", "NaN", "1.50", "t", "\\x", "7", None]]
    (found,) = lines(Stream([change(table(NUMBERS), "I", [0], rows)]), numeric_data_types_as_string="on")
    assert list(values(found).values()) == ["1", "NaN", "1.50", True, "", "7", None]


def test_what_was_not_sent_is_not_there():
    rows = [["1", UNCHANGED, "a"], ["2", "b", UNCHANGED], ["3", UNCHANGED, UNCHANGED]]
    described = table({"id": "int4", "a": "text", "b": "text"})
    found = lines(Stream([change(described, "U", [0, 1, 2], rows)]))
    assert [values(line) for line in found] == [{"id": 1, "b": "a"}, {"id": 2, "a": "b"}, {"id": 3}]
    assert [values(line, "identity") for line in found] == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_the_identity_is_the_old_row_s():
    described = table({"id": "int4", "a": "text"})
    before = [["1", "x"], ["2", None]]
    stream = Stream(
        [
            change(described, "U", [0, 1], [["5", "y"], ["6", "z"]], key_only(before, described)),
            change(described, "D", [2, 3], None, full(before)),
        ]
    )
    assert [values(line, "identity") for line in lines(stream)] == [
        {"id": 1},
        {"id": 2},
        {"id": 1, "a": "x"},
        {"id": 2, "a": None},
    ]


def test_a_timestamp_is_as_the_server_prints_it():
    moments = {
        1_767_323_045_678_901: "2026-01-02 03:04:05.678901+00",
        1_767_323_045_670_000: "2026-01-02 03:04:05.67+00",
        1_767_323_050_000_000: "2026-01-02 03:04:10+00",
    }
    batch = change(table({"id": "int4"}), "I", [0, 1, 2], [["1"], ["2"], ["3"]])
    xids = np.array([7, 8, 9], np.int64)
    stamps = replace(batch.stamps, commit_ts=np.array(list(moments), np.int64), xid=xids)
    found = lines(Stream([replace(batch, stamps=stamps)]), include_timestamp="on", include_xids="on")
    assert [json.loads(line)["timestamp"] for line in found] == list(moments.values())
    assert [json.loads(line)["xid"] for line in found] == [7, 8, 9]


def test_an_origin_has_the_catalog_s_number():
    """It is 0 for this server, null for a deleted origin, and null for a message outside of transactions."""
    batch = change(table({"id": "int4"}), "I", [0, 1, 2], [["1"], ["2"], ["3"]])
    origins = (Origin(Lsn(0), "west", 7), Origin(Lsn(0), "gone"))
    xid, places = np.array([771, 772, 773], np.int64), np.array([-1, 0, 1], np.int64)
    stamps = replace(batch.stamps, xid=xid, origin=places, origins=origins)
    messages = [MessageChange(stamp(n, xid=xid), True, "p", b"") for n, xid in ((3, 773), (4, None))]
    messages[0] = replace(messages[0], stamp=replace(messages[0].stamp, origin=origins[0]))
    found = lines(Stream([replace(batch, stamps=stamps)], messages=messages), include_origin="on")
    assert [json.loads(line)["origin"] for line in found] == [0, 7, None, 7, None]
    assert [json.loads(line)["origin"] for line in lines(Stream([batch]), include_origin="on")] == [0, 0, 0]


def test_transactions_of_some_origins_are_left_out():
    described = table({"id": "int4", "a": "text", "b": "text"})
    rows = [["1", UNCHANGED, "x"], ["2", "y", None], ["3", UNCHANGED, "z"], ["4", "v", "w"]]
    batch = change(described, "U", [0, 1, 2, 3], rows, key_only(rows, described))
    origins = (Origin(Lsn(0), "west", 7), Origin(Lsn(0), "east", 8), Origin(Lsn(0), "gone"))
    xid, places = np.arange(771, 775), np.array([-1, 0, 1, 2], np.int64)
    stamps = replace(batch.stamps, xid=xid, origin=places, origins=origins)
    west, own = replace(stamp(4), origin=origins[0]), stamp(5)
    stream = Stream(
        [replace(batch, stamps=stamps)],
        [TruncateChange(described, at, cascade=False, restart_identity=False) for at in (west, own)],
        [MessageChange(replace(at, index=at.index + 2), True, "p", b"") for at in (west, own)],
        [TransactionBoundary("B", replace(at, index=at.index + 4)) for at in (west, own)],
    )
    found = [json.loads(line) for line in lines(stream, filter_origins="7, 9", include_origin="on")]
    assert [(line["action"], line["origin"]) for line in found] == [
        ("U", 0), ("U", 8), ("U", None), ("T", 0), ("M", 0), ("B", 0),
    ]  # fmt: skip
    assert [values(json.dumps(line)) for line in found[:3]] == [
        {"id": 1, "b": "x"},
        {"id": 3, "b": "z"},
        {"id": 4, "a": "v", "b": "w"},
    ]
    assert (
        not Wal2jsonFormat("stream", options=read_options({"filter-origins": "7"}.items()))
        .encode(Stream(marks=[TransactionBoundary("B", west)]).slice())
        .pieces
    )


def test_a_time_that_no_server_has_is_an_error_where_it_is_asked_for():
    batch = change(table({"id": "int4"}), "I", [0], [["1"]])
    stream = Stream([replace(batch, stamps=replace(batch.stamps, commit_ts=np.array([2**62], np.int64)))])
    with pytest.raises(PgcdcError, match="year") as caught:
        lines(stream, include_timestamp="on")
    assert caught.value.kind is ErrorKind.PROTOCOL
    assert len(lines(stream)) == 1


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        ("numeric(10,2)", "numeric(10,2)"),
        ('"Mood"', "Mood"),
        ('"Mood"[]', '"Mood"[]'),
        ('"we""ird"', 'we"ird'),
        ('"A"."B"', '"A"."B"'),
        ('shop."Mood"', 'shop."Mood"'),
    ],
)
def test_a_type_s_name_is_a_string_in_json(declared, name):
    described = table({"id": "int4"})
    renamed = replace(described, columns=(replace(described.columns[0], declared=declared),))
    (found,) = lines(Stream([change(renamed, "I", [0], [["1"]])]))
    assert json.loads(found)["columns"][0]["type"] == name


def test_a_type_without_its_modifiers_is_the_catalog_s_name_as_long_as_that_is_known():
    described = table({"id": "int4", "n": "numeric(9,2)", "gone": "int4"})
    facts = TableFacts(
        ("id",), None, {"id": ColumnFacts(type_name="positive"), "n": ColumnFacts(type_name="numeric")}
    )
    columns = [replace(column, declared=f"{column.type.name}(9)") for column in described.columns]
    described = replace(described, columns=tuple(columns), facts=facts)
    stream = Stream([change(described, "U", [0], [["1", "2.50", "3"]])])
    (version_1,) = lines(stream, format_version="1", include_typmod="off", write_in_chunks="on")
    update = json.loads(version_1)
    assert (update["columntypes"], update["oldkeys"]["keytypes"]) == (
        ["positive", "numeric", "int4(9)"],
        ["positive"],
    )
    (version_2,) = lines(stream, format_version="2", include_typmod="off")
    assert [column["type"] for column in json.loads(version_2)["columns"]] == [
        "int4(9)",
        "numeric(9)",
        "int4(9)",
    ]


PRETTY = """
\t\t{
\t\t\t"kind": "update",
\t\t\t"table": "orders",
\t\t\t"columnnames": ["id", "n"],
\t\t\t"columntypes": ["int4", "numeric"],
\t\t\t"columnvalues": [1, null],
\t\t\t"oldkeys": {
\t\t\t\t"keynames": ["id"],
\t\t\t\t"keytypes": ["int4"],
\t\t\t\t"keyvalues": [1]
\t\t\t}
\t\t}
\t\t,{
\t\t\t"kind": "update",
\t\t\t"table": "orders",
\t\t\t"columnnames": ["id", "a", "n"],
\t\t\t"columntypes": ["int4", "text", "numeric"],
\t\t\t"columnvalues": [2, "x, y", 2.50],
\t\t\t"oldkeys": {
\t\t\t\t"keynames": ["id"],
\t\t\t\t"keytypes": ["int4"],
\t\t\t\t"keyvalues": [2]
\t\t\t}
\t\t}"""


def test_pretty_print_gives_each_member_a_line_however_many_rows_come_together():
    described = table({"id": "int4", "a": "text", "n": "numeric"})
    rows = [["1", UNCHANGED, None], ["2", "x, y", "2.50"]]
    options = read_options({"format-version": "1", "pretty-print": "on", "include-schemas": "off"}.items())
    together, apart = (Wal2jsonFormat("stream", options=options) for _ in range(2))
    one = printed(together, [change(described, "U", [0, 1], rows)])
    several = [printed(apart, [change(described, "U", [n], [row])]) for n, row in enumerate(rows)]
    assert one == "".join(several) == PRETTY


def printed(form: Wal2jsonFormat, changes: list[ChangeBatch]) -> str:
    (piece,) = form.encode(Stream(changes).slice()).pieces
    return bytes(form.frame([piece.data])).decode()


def test_a_message_s_text_ends_at_a_zero_byte_and_is_utf_8():
    contents = [b"a\0b", b"\xff\xc3\xa9", b""]
    found = lines(Stream(messages=[MessageChange(stamp(n), True, "p", c) for n, c in enumerate(contents)]))
    assert [json.loads(line)["content"] for line in found] == ["a", "\ufffdé", ""]


def test_without_a_catalog_its_facts_are_null():
    (found,) = lines(
        Stream([change(table({"id": "int4"}), "I", [0], [["1"]])]),
        include_pk="on",
        include_default="on",
        include_not_null="on",
        include_column_positions="on",
    )
    (column,) = json.loads(found)["columns"]
    assert {column[name] for name in ("default", "optional", "position")} == {None}
    assert json.loads(found)["pk"] == []
