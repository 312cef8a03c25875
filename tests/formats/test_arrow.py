import io
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from batches import COMMIT_TS, UNCHANGED, change, full, key_only, stamp, stamps, table
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import ITEMS, ORDERS, events, to_slice
from segments import as_stream, finished

from pgcdc_cli.changes.slice import (
    Boundaries,
    ChangeBatch,
    FullImage,
    MessageChange,
    Slice,
    TransactionBoundary,
    TruncateChange,
)
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats import arrow
from pgcdc_cli.formats.arrow import END_OF_STREAM, ArrowFormat
from pgcdc_cli.types.to_arrow import to_arrow

PRICES = table({"id": "int8", "price": "numeric(5,2)", "day": "date", "tags": "text[]"})
TS = datetime.fromtimestamp(COMMIT_TS // 1_000_000, UTC).replace(microsecond=678901)


def read(stored: bytes) -> pa.Table:
    return pa.ipc.open_file(io.BytesIO(stored)).read_all()


def files(form: ArrowFormat, *parts: Slice) -> dict[str, bytes]:
    """Write a finished file for each target, with one frame per slice."""
    stored: dict[str, bytes] = {}
    for part in parts:
        for piece in form.encode(part).pieces:
            stored[piece.target] = stored.get(piece.target, piece.head) + bytes(form.frame([piece.data]))
    return {target: finished(data, form) for target, data in stored.items()}


def rows(form: ArrowFormat, part: Slice) -> list[dict]:
    (stored,) = files(form, part).values()
    return read(stored).to_pylist(maps_as_pydicts="strict")


def test_a_row_is_typed_and_stamped():
    part = Slice(None, (change(PRICES, "I", [3], [["7", "1.50", "2024-02-29", '{a,NULL,"b,c"}']]),))
    assert rows(ArrowFormat(), part) == [
        {
            "_op": "I",
            "_lsn": 0x1A2B030,
            "_commit_lsn": 0x1A2B400,
            "_commit_ts": TS,
            "_xid": 771,
            "_seq": 3,
            "_unchanged": None,
            "_truncate": None,
            "id": 7,
            "price": Decimal("1.50"),
            "day": date(2024, 2, 29),
            "tags": ["a", None, "b,c"],
            "_old": None,
            "_unfit": None,
        }
    ]


def test_an_old_image_is_a_struct_and_a_deletes_row_is_null():
    key = key_only([["7", None, None, None]], PRICES)
    (found,) = rows(ArrowFormat(), Slice(None, (change(PRICES, "D", [0], old=key),)))
    assert found["_old"] == {"id": 7, "price": None, "day": None, "tags": None}
    assert [found[name] for name in ("id", "price", "day", "tags")] == [None] * 4


def test_the_old_row_of_a_table_without_columns_is_an_empty_struct():
    part = Slice(None, (change(table({}, None), "D", [0, 1], old=FullImage((), ())),))
    assert [row["_old"] for row in rows(ArrowFormat(), part)] == [{}, {}]


def test_unchanged_columns_are_named():
    new = [["1", UNCHANGED, None, UNCHANGED], ["2", None, None, None], ["3", None, None, UNCHANGED]]
    found = rows(ArrowFormat(), Slice(None, (change(PRICES, "U", [0, 1, 2], new),)))
    assert [row["_unchanged"] for row in found] == [["price", "tags"], None, ["tags"]]


def test_what_no_arrow_type_holds_stands_in_unfit_as_text():
    new = [["1", "NaN", "infinity", "{{1},{2}}"], ["2", "1.00", "2024-01-01", "{}"]]
    old = full([["1", "NaN", "2024-01-01", "[0:0]={x}"], ["2", None, "-infinity", None]])
    first, second = rows(ArrowFormat(), Slice(None, (change(PRICES, "U", [0, 1], new, old),)))
    assert first["_unfit"] == {
        "price": "NaN",
        "day": "infinity",
        "tags": "{{1},{2}}",
        "_old.price": "NaN",
        "_old.tags": "[0:0]={x}",
    }
    assert (first["price"], first["day"], first["tags"]) == (None, None, None)
    assert second["_unfit"] == {"_old.day": "-infinity"}
    assert second["tags"] == []


def test_a_truncate_keeps_its_options():
    part = Slice(
        None,
        truncates=(
            TruncateChange(PRICES, stamp(0), True, True),
            TruncateChange(PRICES, stamp(1), False, True),
            TruncateChange(PRICES, stamp(2), False, False),
        ),
    )
    found = rows(ArrowFormat(), part)
    assert [row["_truncate"] for row in found] == [["cascade", "restart_identity"], ["restart_identity"], []]
    assert {row["_op"] for row in found} == {"T"}
    assert {row["id"] for row in found} == {None}


def test_messages_have_a_schema_of_their_own():
    part = Slice(
        None,
        messages=(
            MessageChange(stamp(0, xid=None), False, "p", b"\xff\0"),
            MessageChange(stamp(1), True, "", b""),
        ),
    )
    first, second = rows(ArrowFormat(), part)
    assert (first["_op"], first["content"], first["transactional"]) == ("M", b"\xff\0", False)
    assert (first["_xid"], first["_commit_ts"]) == (None, None)
    assert (second["_xid"], second["prefix"], second["content"], second["_seq"]) == (771, "", b"", 1)


def test_the_schemas_metadata_name_table_version_and_format():
    (stored,) = files(
        ArrowFormat(), Slice(None, (change(PRICES, "I", [0], [["1", None, None, None]]),))
    ).values()
    assert read(stored).schema.metadata == {
        b"table": b"public.orders",
        b"schema_fingerprint": PRICES.fingerprint.encode(),
        b"format_version": b"1",
    }


def wire(values, column) -> pa.Array:
    texts = [None if v is None or v is UNCHANGED else v.encode() for v in values]
    return to_arrow(column.type, pa.array(texts, pa.binary()))[0]


@settings(deadline=None, max_examples=80)
@given(st.lists(events(ORDERS), min_size=1, max_size=8), st.data())
def test_rows_of_all_shapes_come_back_in_stream_order(stream, data):
    stream = [event for event in stream if event.kind in "IURDT"]
    part = to_slice(stream, data.draw(st.permutations(range(len(stream)))))
    for stored in files(ArrowFormat(data.draw(st.sampled_from(["none", "zstd"]))), part).values():
        found = read(stored)
        found.validate(full=True)
        assert found["_op"].to_pylist() == [event.kind for event in stream]
        assert found["_seq"].to_pylist() == list(range(len(stream)))
        blank = (None,) * len(ORDERS.columns)
        for number, column in enumerate(ORDERS.columns):
            expected = wire([(event.new or blank)[number] for event in stream], column)
            # Compared as text: there NaN equals itself, and Python has no years before 1.
            assert str(found[column.name].combine_chunks()) == str(expected)
        assert found["_old"].is_valid().to_pylist() == [e.old is not None for e in stream]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_file_cut_at_a_frame_and_continued_is_one_file(compression):
    form = ArrowFormat(compression)
    parts = [Slice(None, (change(PRICES, "I", [n], [[str(n), "1.00", None, "{x}"]]),)) for n in range(4)]
    pieces = [form.encode(part).pieces[0] for part in parts]
    frames = [bytes(form.frame([piece.data])) for piece in pieces]
    durable = pieces[0].head + frames[0] + frames[1]
    torn = durable + frames[2][: len(frames[2]) // 2]
    restored = torn[: len(durable)] + frames[2] + frames[3]
    assert read(finished(restored, form))["id"].to_pylist() == [0, 1, 2, 3]
    assert read(finished(durable, form))["id"].to_pylist() == [0, 1]


def test_a_stream_that_an_earlier_version_began_ends_as_a_stream():
    form = ArrowFormat()
    stored = files(form, Slice(None, (change(PRICES, "I", [1], [["7", "1.00", None, "{x}"]]),)))[
        "public.orders"
    ]
    ended = as_stream(stored)
    assert finished(ended.removesuffix(END_OF_STREAM), form) == ended
    assert pa.ipc.open_stream(ended).read_all()["id"].to_pylist() == [7]


def test_a_file_of_as_many_columns_as_a_table_may_have_is_finished():
    """Its schema is larger than what is read of the file at a time."""
    wide = table({f"column_{number}": "int4" for number in range(1600)}, None)
    [stored] = files(ArrowFormat(), Slice(None, (change(wide, "I", [0], [["1"] * 1600]),))).values()
    assert read(stored)["column_1599"].to_pylist() == [1]


def test_small_batches_become_one_message_and_large_ones_stay_apart(monkeypatch):
    form = ArrowFormat()
    parts = [Slice(None, (change(PRICES, "I", [n], [[str(n), None, None, "{x}"]]),)) for n in range(6)]
    pieces = [form.encode(part).pieces[0] for part in parts]
    data = [piece.data for piece in pieces]

    def batches() -> list[int]:
        stored = finished(pieces[0].head + bytes(form.frame(data)), form)
        return [batch.num_rows for batch in pa.ipc.open_file(io.BytesIO(stored)).read_all().to_batches()]

    assert batches() == [6]
    monkeypatch.setattr(arrow, "LARGEST_MESSAGE", 2 * data[0].nbytes)
    assert batches() == [2, 2, 2]
    monkeypatch.setattr(arrow, "LARGEST_MESSAGE", 1)
    assert batches() == [1] * 6
    assert bytes(form.frame([])) == b""


def test_another_version_of_the_table_has_another_head():
    later = table({"id": "int8", "price": "numeric(6,2)"})
    first, second = (
        ArrowFormat()
        .encode(
            Slice(
                None,
                (
                    change(PRICES, "I", [0], [["1", None, None, None]]),
                    change(later, "I", [1], [["1", None]]),
                ),
            )
        )
        .pieces
    )
    assert first.target == second.target
    assert first.head != second.head
    assert (first.table, second.table) == (PRICES, later)


def test_begins_and_commits_are_no_rows():
    part = Slice(
        None,
        boundaries=(Boundaries.of([TransactionBoundary("B", stamp(0)), TransactionBoundary("C", stamp(1))]),),
    )
    assert ArrowFormat().encode(part).pieces == ()


def test_a_row_without_a_transaction_id_has_a_null():
    batch = ChangeBatch(ITEMS, "R", stamps([0], xid=0), full([["x"]]), None)
    assert rows(ArrowFormat(), Slice(None, (batch,)))[0]["_xid"] is None


@pytest.mark.parametrize("name", ["_op", "_unfit", "_truncate"])
def test_a_column_called_as_one_of_pgcdcs_own_is_refused(name):
    schema = table({"id": "int8", name: "text"})
    with pytest.raises(PgcdcError) as error:
        ArrowFormat().encode(Slice(None, (change(schema, "I", [0], [["1", "x"]]),)))
    assert error.value.kind is ErrorKind.USAGE
    assert name in error.value.message
    assert "jsonl" in error.value.hint


def test_bytes_that_are_no_utf8_are_one_typed_error():
    part = Slice(None, (change(ITEMS, "I", [0], [[b"\xff"]]),))
    with pytest.raises(PgcdcError) as error:
        ArrowFormat().encode(part)
    assert error.value.kind is ErrorKind.PROTOCOL


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 40), st.randoms(use_true_random=False))
def test_unfit_values_stay_with_their_rows(count, random):
    days = [random.choice(["infinity", "2024-01-01", None]) for _ in range(count)]
    prices = [random.choice(["NaN", "1.00", None]) for _ in range(count)]
    new = [[str(n), price, day, None] for n, (price, day) in enumerate(zip(prices, days, strict=True))]
    order = list(np.random.default_rng(count).permutation(count))
    batch = change(PRICES, "I", [int(n) for n in order], [new[n] for n in order])
    expected = [
        ({"price": "NaN"} if price == "NaN" else {}) | ({"day": "infinity"} if day == "infinity" else {})
        or None
        for price, day in zip(prices, days, strict=True)
    ]
    assert [row["_unfit"] for row in rows(ArrowFormat(), Slice(None, (batch,)))] == expected
