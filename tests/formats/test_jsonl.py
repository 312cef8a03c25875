import gzip
import io
import json

import numpy as np
import pyarrow as pa
import pytest
from batches import COMMIT_TS, UNCHANGED, change, full, stamp, stamps, table
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import ITEMS, ORDERS, Event, events, lsn, reference, to_slice

from pgcdc_cli.changes.slice import Boundaries, ChangeBatch, MessageChange, Slice, Stamps, TransactionBoundary
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.encoded_rows import are_few
from pgcdc_cli.formats.json_text import BLOCK, escape, lsn_text, one_timestamp, timestamp_text
from pgcdc_cli.formats.jsonl import JsonlFormat, few_lines
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types import kernels

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
STREAM = JsonlFormat(layout="stream", transactions=True)


def lines(form: JsonlFormat, part: Slice) -> dict[str, list[str]]:
    pieces = form.encode(part).pieces
    texts: dict[str, bytes] = {}
    for piece in pieces:
        data = bytes(piece.data)
        assert data.count(b"\n") == piece.rows
        texts[piece.target] = texts.get(piece.target, b"") + data
    return {target: text.decode().split("\n")[:-1] for target, text in texts.items()}


def objects(form: JsonlFormat, part: Slice) -> list[dict]:
    return [json.loads(line) for line in lines(form, part).get("", [])]


def in_order(value):
    """Parse objects as pairs, to compare the order of keys."""
    return json.dumps(value)


@settings(deadline=None, max_examples=100)
@given(st.lists(events(), min_size=1, max_size=10), st.data())
def test_every_line_is_the_object_that_the_plain_encoder_makes(stream, data):
    order = data.draw(st.permutations(range(len(stream))))
    found = objects(STREAM, to_slice(stream, order))
    assert in_order(found) == in_order([reference(event, index) for index, event in enumerate(stream)])


@settings(deadline=None, max_examples=60)
@given(st.lists(events(ORDERS), min_size=1, max_size=6))
def test_wide_offsets_make_the_same_lines(stream):
    part = to_slice(stream, list(range(len(stream))))
    expected = lines(STREAM, part)
    largest = kernels.INT32_MAX
    kernels.INT32_MAX = 8
    try:
        assert lines(STREAM, part) == expected
    finally:
        kernels.INT32_MAX = largest


@settings(deadline=None, max_examples=50)
@given(st.lists(events(), min_size=1, max_size=8))
def test_the_table_layout_has_the_same_lines_each_at_its_table(stream):
    part = to_slice(stream, list(range(len(stream))))
    expected: dict[str, list[dict]] = {}
    for index, event in enumerate(stream):
        if event.kind not in "BC":
            target = "_messages" if event.kind == "M" else event.schema.display
            expected.setdefault(target, []).append(reference(event, index))
    found = lines(JsonlFormat(), part)
    assert {target: [json.loads(line) for line in text] for target, text in found.items()} == expected


def test_tables_and_edge_go_with_the_slice():
    part = to_slice([Event("T", ITEMS), Event("I", ORDERS, tuple([None] * 9))], [0, 1])
    encoded = JsonlFormat().encode(part)
    assert set(encoded.tables) == {ITEMS, ORDERS}
    assert encoded.edge is part.edge


def test_an_empty_slice_gives_nothing():
    assert JsonlFormat().encode(Slice(None)).pieces == ()
    empty = ChangeBatch(ITEMS, "I", stamps([]), full([["x"]]), None)
    assert JsonlFormat().encode(Slice(None, (empty,))).pieces == ()


def test_a_long_value_is_left_to_the_columns(monkeypatch):
    """While Python writes it, no other thread runs: longer than a server waits for a status update."""
    monkeypatch.setattr("pgcdc_cli.formats.encoded_rows.FEW_ROWS", 1)
    short, long = (ChangeBatch(ITEMS, "I", stamps([0]), full([["x" * n]]), None) for n in (9, 100_000))
    assert [are_few(batch) for batch in (short, long)] == [True, False]
    assert few_lines(long, JsonlFormat().numeric, None) is None


def test_begins_and_commits_only_if_asked():
    part = Slice(None, boundaries=(Boundaries.of([TransactionBoundary("B", stamp(0))]),))
    assert JsonlFormat(layout="stream").encode(part).pieces == ()
    assert len(STREAM.encode(part).pieces) == 1


def test_a_piece_names_the_commits_of_its_first_and_last_row():
    one = ChangeBatch(ITEMS, "I", stamps([4, 0], [0x300, 0x100]), full([["b"], ["a"]]), None)
    two = ChangeBatch(ITEMS, "D", stamps([2], 0x200), None, full([["a"]]))
    (piece,) = JsonlFormat().encode(Slice(None, (one, two))).pieces
    assert (piece.first_commit_lsn, piece.last_commit_lsn, piece.rows) == (Lsn(0x100), Lsn(0x300), 3)


def test_a_table_that_changes_and_changes_back_gives_pieces_in_stream_order():
    before = table({"a": "text"}, None)
    after = table({"a": "text", "b": "text"}, None)
    part = Slice(
        None,
        (
            change(before, "I", [0, 1, 5], [["0"], ["1"], ["5"]]),
            change(after, "I", [2, 3, 7], [["2", "x"], ["3", "x"], ["7", "x"]]),
        ),
    )
    pieces = JsonlFormat().encode(part).pieces
    assert [(piece.table, piece.rows) for piece in pieces] == [
        (before, 2),
        (after, 2),
        (before, 1),
        (after, 1),
    ]
    assert [json.loads(line)["new"]["a"] for line in lines(JsonlFormat(), part)["public.orders"]] == list(
        "012357"
    )


def test_numeric_is_a_number_if_asked_and_keeps_its_digits():
    part = Slice(None, (change(table({"n": "numeric"}, None), "I", [0, 1, 2], [["1.50"], ["NaN"], [None]]),))
    texts = lines(JsonlFormat("stream", numeric="number"), part)[""]
    assert [text.split('"new":')[1] for text in texts] == ['{"n":1.50}}', '{"n":"NaN"}}', '{"n":null}}']


def test_a_number_in_the_key_that_was_not_sent_again_is_written_as_a_number():
    numbers = table({"n": "numeric"}, ("n",))
    batch = change(numbers, "U", [0, 1], [[UNCHANGED], ["NaN"]], full([["1.50"], ["2"]]))
    texts = lines(JsonlFormat("stream", numeric="number"), Slice(None, (batch,)))[""]
    assert [json.loads(text)["key"] for text in texts] == [{"n": 1.5}, {"n": "NaN"}]


@pytest.mark.parametrize(("kind", "text"), [("int4", "0x1"), ("float8", "+1"), ("bool", "yes")])
def test_what_is_no_json_number_or_boolean_is_a_string(kind, text):
    part = Slice(None, (change(table({"v": kind}, None), "I", [0], [[text]]),))
    assert objects(STREAM, part)[0]["new"] == {"v": text}


def test_percent_signs_in_names_stand_as_they_are():
    odd = table({"%d": "int4", "a%%b%": "text", "%s": "json"}, ("%d",), name="50%b")
    batch = change(odd, "U", [0], [["1", UNCHANGED, "null"]])
    (found,) = objects(STREAM, Slice(None, (batch,)))
    assert (found["table"], found["key"], found["new"]) == ("50%b", {"%d": 1}, {"%d": 1, "%s": None})
    assert (found["unchanged"], found["json_null"]) == (["a%%b%"], ["new.%s"])


@pytest.mark.parametrize("text", ["null", " null", "\n\tnull\r\n"])
def test_json_null_is_told_from_sql_null_whatever_blanks_are_around_it(text):
    batch = change(table({"v": "json"}, None), "I", [0, 1], [[text], [None]])
    found = objects(STREAM, Slice(None, (batch,)))
    assert [(one["new"], one.get("json_null")) for one in found] == [
        ({"v": None}, ["new.v"]),
        ({"v": None}, None),
    ]


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_embedded_json_keeps_what_a_parser_would_change(end):
    text = f'{{"a":1e400,{end}"a":1.0,{end}"b":"\\ud800"}}'
    part = Slice(None, (change(table({"v": "json"}, None), "I", [0], [[text]]),))
    (line,) = lines(STREAM, part)[""]
    assert f'"new":{{"v":{text.replace(end, " " * len(end))}}}' in line


def test_rows_of_many_transactions_have_each_its_own_stamps():
    count = 50
    index = np.arange(count)
    many = Stamps(index, index + (7 << 32), index * 3 + 0xFFFFFFF0, COMMIT_TS + index, index + 1, index * 0)
    batch = ChangeBatch(ITEMS, "I", many, full([["x"]] * count), None)
    for number, found in enumerate(objects(STREAM, Slice(None, (batch,)))):
        assert found["lsn"] == lsn(number + (7 << 32))
        assert found["commit_lsn"] == lsn(number * 3 + 0xFFFFFFF0)
        assert (found["xid"], found["seq"]) == (number + 1, 0)
        assert found["ts"] == f"2026-01-02T03:04:05.{678901 + number}Z"


def test_a_row_without_a_transaction_id_has_a_null():
    batch = ChangeBatch(ITEMS, "R", stamps([0], xid=0), full([["x"]]), None)
    assert objects(STREAM, Slice(None, (batch,)))[0]["xid"] is None


def test_a_message_that_is_no_text_is_base64():
    part = Slice(None, messages=(MessageChange(stamp(0, xid=None), False, "p", b"\xff\0"),))
    (found,) = objects(STREAM, part)
    assert (found["content_base64"], found["transactional"]) == ("/wA=", False)
    assert (found["xid"], found["ts"]) == (None, None)
    assert "content" not in found


@pytest.mark.parametrize("kind", ["text", "json", "numeric", "int4", "date"])
def test_bytes_that_are_no_utf8_are_one_typed_error(kind):
    part = Slice(None, (change(table({"v": kind}, None), "I", [0, 1], [["1"], [b"\xc3("]]),))
    with pytest.raises(PgcdcError) as error:
        STREAM.encode(part)
    assert error.value.kind is ErrorKind.PROTOCOL


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(st.none(), TEXTS), max_size=12), st.data())
def test_escapes_are_those_of_the_standard_library(values, data):
    start = data.draw(st.integers(0, len(values)))
    escaped = escape(
        pa.array([v if v is None else v.encode() for v in values], pa.binary())[start:]
    ).to_pylist()
    expected = [v if v is None else json.dumps(v, ensure_ascii=False)[1:-1].encode() for v in values[start:]]
    assert escaped == expected


@pytest.mark.parametrize("before", [BLOCK - 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1])
def test_escapes_are_the_same_wherever_a_block_of_bytes_ends(before):
    values = ["x" * before, '"', None, "", "\n\x01ü", "y" * BLOCK + '\\"' * BLOCK, '"z']
    escaped = escape(kernels.binary([v if v is None else v.encode() for v in values]))
    expected = [v if v is None else json.dumps(v, ensure_ascii=False)[1:-1].encode() for v in values]
    assert escaped.to_pylist() == expected


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(st.integers(0, 2**63 - 1), st.integers(0, 300)), min_size=1, max_size=9))
def test_positions_are_printed_as_postgresql_does(values):
    printed = lsn_text(np.array(values, np.int64)).to_pylist()
    assert printed == [str(Lsn(value)).encode() for value in values]


@pytest.mark.parametrize("printed", [lambda micros: timestamp_text(np.array([micros])), one_timestamp])
def test_a_commit_beyond_year_9999_is_a_protocol_error(printed):
    with pytest.raises(PgcdcError) as error:
        printed(2**62)
    assert error.value.kind is ErrorKind.PROTOCOL


def frames(form: JsonlFormat) -> tuple[bytes, bytes]:
    """Three appended frames of two slices each, and their lines."""
    part = to_slice([Event("I", ITEMS, ("é\n",)), Event("T", ITEMS)], [0, 1])
    data = [bytes(piece.data) for _ in range(2) for piece in form.encode(part).pieces]
    return b"".join(bytes(form.frame(data)) for _ in range(3)), b"".join(data) * 3


def test_appended_gzip_frames_are_one_gzip_file():
    form = JsonlFormat(compression="gzip")
    stored, expected = frames(form)
    assert (form.suffix, gzip.decompress(stored)) == (".jsonl.gz", expected)


def test_appended_zstd_frames_are_one_zstd_file():
    form = JsonlFormat(compression="zstd")
    stored, expected = frames(form)
    with pa.CompressedInputStream(io.BytesIO(stored), "zstd") as stream:
        assert stream.read() == expected
    assert form.suffix == ".jsonl.zst"


def test_without_compression_lines_stay_as_they_are():
    form = JsonlFormat()
    stored, expected = frames(form)
    assert (form.suffix, stored) == (".jsonl", expected)
    assert bytes(form.frame([])) == b""
