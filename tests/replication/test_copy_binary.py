"""Rows of a COPY in binary have the values that they have in text, and damaged ones are refused."""

import re
import tracemalloc
from contextlib import closing, suppress
from itertools import pairwise

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from every_type import VALUES
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql
from test_copy_out import BEGIN, END, message, taken

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.replication.copy_binary import BinaryRows, binary_columns
from pgcdc_cli.stream.snapshot.snapshot_session import SnapshotSession
from pgcdc_cli.types.binary.arrow_values import can_read
from pgcdc_cli.types.database_text import STRICT, DatabaseText
from pgcdc_cli.types.pg_type import PgType, builtin
from pgcdc_cli.types.to_arrow import Typed, arrow_type, to_arrow

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = message(b"\xff\xff")


def row(*values: bytes | None) -> bytes:
    fields = (b"\xff" * 4 if value is None else len(value).to_bytes(4) + value for value in values)
    return len(values).to_bytes(2) + b"".join(fields)


# A `d`, a length and a number of columns: what could begin a row.
LOOKS_LIKE_A_ROW = b"d\0\0\0\x0a\0\2\0\0"

confusing = st.sampled_from([b"", b"d", b"\0\2", LOOKS_LIKE_A_ROW, 3 * LOOKS_LIKE_A_ROW])
values = st.none() | confusing | st.binary(max_size=9)
rows = st.builds(row, values, values)


def begun(width: int) -> BinaryRows:
    """Tuples whose header was read."""
    tuples = BinaryRows(width)
    tuples.find_rows(np.frombuffer(bytearray(message(HEADER)), np.uint8))
    return tuples


@given(st.lists(rows, max_size=20), rows, st.integers(0, 100), st.sampled_from([b"N", b"c", b"d"]))
def test_all_whole_rows_before_anything_else_are_found(before, last, cut, tag):
    data = b"".join(map(message, before)) + message(last, tag)[:cut]
    whole = [*before, last] if tag == b"d" and cut >= len(message(last)) else before
    edges = begun(2).find_rows(np.frombuffer(data, np.uint8)) if data else [0]
    assert [data[start:end] for start, end in pairwise(edges)] == list(map(message, whole))


@given(st.lists(rows, max_size=20), st.integers(1, 300), st.booleans())
def test_rows_are_found_however_they_come_and_wherever_the_header_is(some, pieces, alone):
    """PostgreSQL sends the header in front of the first row; the protocol doesn't say that it must."""
    first = [message(HEADER)] if alone or not some else []
    sent = [*some] if first else [HEADER + some[0], *some[1:]]
    notice = message(b"SNOTICE\0Mone\0\0", b"N")
    wire = BEGIN + notice.join([*first, *map(message, sent)]) + notice + TRAILER + END
    assert b"".join(taken(wire, pieces, BinaryRows(2))) == b"".join(map(message, some))


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (message(HEADER + row(b"1", b"2")) + message(row(b"3")), "one is not a row"),
        (message(HEADER + row(b"1")), "one is not a row"),
        (message(row(b"1", b"2")) * 9, "does not begin with the header"),
        (message(HEADER[:-1] + b"\1" + row(b"1", b"2")), "does not begin with the header"),
        (b"d\0\0\0\5" + HEADER + row(b"1", b"2"), "does not begin with the header"),
        (message(HEADER) + b"d" + b"\xff" * 4, "a message has 4294967296 bytes"),
    ],
)
def test_what_is_no_row_is_refused_rather_than_left_out(sent, reason):
    with pytest.raises(PgcdcError, match=reason) as raised:
        taken(BEGIN + sent + TRAILER + END, framing=BinaryRows(2))
    assert raised.value.kind is ErrorKind.PROTOCOL


INT4, TEXT, NUMERIC_5_2 = builtin(23, -1), builtin(25, -1), builtin(1700, (5 << 16 | 2) + 4)
COLUMNS = [INT4, TEXT, NUMERIC_5_2, builtin(16, -1), builtin(1082, -1)]
GOOD = [row((7).to_bytes(4), b"text", b"\0\1\0\0\0\0\0\2\0\5", b"\1", bytes(4)), row(*[None] * 5)]


def columns(some: list[bytes]) -> tuple[pa.Array, ...]:
    wire = b"".join(map(message, some))
    edges = np.cumsum([0, *map(len, map(message, some))])
    return binary_columns(np.frombuffer(wire, np.uint8), edges, COLUMNS)


@given(st.integers(0, sum(map(len, GOOD)) - 1), st.integers(0, 255))
def test_a_damaged_row_is_an_error_or_another_value_but_no_other_error(at, byte):
    data = bytearray(b"".join(GOOD))
    data[at] = byte
    first = len(GOOD[0])
    with suppress(PgcdcError):
        for column in columns([bytes(data[:first]), bytes(data[first:])]):
            assert len(column) == 2
            column.validate(full=True)


def test_a_row_that_is_cut_anywhere_is_refused():
    for size in range(2, len(GOOD[0])):
        with pytest.raises(PgcdcError, match="beyond its row"):
            columns([GOOD[0][:size]])


SERVED = {
    **{name: literals for name, literals in VALUES.items() if name != "numeric"},
    "public.mood": ["ok", "so so"],
    "numeric(4,0)": ["9999", "-9999", "0", "1", "10", "NaN"],
    "numeric(5,5)": ["0.99999", "-0.00001", "0", "0.1"],
    "numeric(38,2)": ["1", "123456789012345678901234567890123456.78"],
    "numeric(3,-2)": ["12300"],
}
for precision, scale in [(18, 0), (18, 2), (18, 9), (18, 18), (17, 3), (12, 2), (9, 4), (1, 0)]:
    magnitudes = (10**k + d for k in range(precision + 1) for d in (-1, 0, 1))
    integers = sorted({sign * n for n in magnitudes if n < 10**precision for sign in (1, -1)})
    SERVED[f"numeric({precision},{scale})"] = [f"{n}e-{scale}" for n in integers]


def typed(session: SnapshotSession, query: str, pg_type: PgType, *, binary: bool) -> list[Typed]:
    """Each chunk of a query's only column, as Arrow."""
    given_ = session.copy(sql.SQL(query), [pg_type], STRICT, lambda: False, typed=binary)
    return [to_arrow(pg_type, column) for _, (column,) in given_]


@pytest.fixture
def session(database):
    database.execute("CREATE TYPE mood AS ENUM ('ok', 'so so')")
    with closing(SnapshotSession(database.uri)) as session:
        yield session


def type_of(session: SnapshotSession, name: str) -> PgType:
    [(oid,)] = session.ask("SELECT %(name)s::regtype::oid::bigint", {"name": name})
    declared = re.search(r"\((\d+),(-?\d+)\)", name)
    typmod = -1 if declared is None else (int(declared[1]) << 16 | int(declared[2]) & 0x7FF) + 4
    return builtin(oid, typmod) or PgType(oid, -1, name, "enum")


def test_every_value_is_that_of_the_text(session):
    """Alone, and among others and NULLs: unusual values send their whole column another way."""
    in_binary = set()
    for name, literals in SERVED.items():
        pg_type = type_of(session, name)
        alone = [[literal] for literal in literals]
        for some in [literals, [None, *literals, None], [None], *alone]:
            shown = ", ".join("NULL::text" if one is None else sql.Literal(one).as_string() for one in some)
            query = f"SELECT v::{name} FROM unnest(ARRAY[{shown}]) WITH ORDINALITY AS u (v, n) ORDER BY n"
            [(values, unfit)] = typed(session, query, pg_type, binary=True)
            [(expected, expected_unfit)] = typed(session, query, pg_type, binary=False)
            assert values.to_string(window=10_000) == expected.to_string(window=10_000), name
            assert values.equals(expected) or name in {"float4", "float8"}  # NaN equals nothing
            values.validate(full=True)
            assert (unfit is None) == (expected_unfit is None)
            assert unfit is None or (unfit == expected_unfit).all()
        if can_read([pg_type]):
            in_binary.add(name)
    assert {"int8", "numeric(18,2)", "timestamptz", "text", "public.mood", "uuid"} <= in_binary
    assert not {"numeric(38,2)", "numeric(3,-2)", "interval"} & in_binary


def test_values_are_read_without_their_text_where_nothing_is_unusual(session):
    types = [builtin(oid, -1) for oid in (16, 20, 21, 23, 25, 26, 700, 701, 1082, 1083, 1114, 1184)]
    types.append(type_of(session, "numeric(12,2)"))
    names = ["bool", "int8", "int2", "int4", "text", "oid", "float4", "float8"]
    names += ["date", "time", "timestamp", "timestamptz", "numeric(12,2)"]
    literals = ["t", "1", "2", "3", "x", "4294967295", "1.5", "2.5", *["2024-02-29 12:34:56"] * 4, "10.10"]
    row = ", ".join(f"'{literal}'::{name}" for literal, name in zip(literals, names, strict=True))
    nulls = ", ".join(f"NULL::{name}" for name in names)
    query = sql.SQL(f"SELECT {row} UNION ALL SELECT {nulls}")
    [(_, columns)] = session.copy(query, types, STRICT, lambda: False, typed=True)
    assert [column.type for column in columns] == list(map(arrow_type, types))
    assert [column.null_count for column in columns] == [1] * len(types)


@pytest.mark.parametrize("name", ["text", "varchar", "bpchar", "name", "json", "jsonb"])
def test_invalid_utf_8_makes_text_of_all_columns(encoded, name):
    """So that the error can name the row by its key."""
    database = encoded("SQL_ASCII")
    with closing(SnapshotSession(database.uri)) as session:
        query = sql.SQL(rf"""SELECT 7, E'"\xff"'::{name}""")
        types = [INT4, type_of(session, name)]
        text = DatabaseText.of("SQL_ASCII", None, "stop")
        [(_, columns)] = session.copy(query, types, text, lambda: False, typed=True)
    assert [column.type for column in columns] == [pa.binary()] * 2
    assert [column.to_pylist() for column in columns] == [[b"7"], [b'"\xff"']]


def test_a_nan_has_the_bits_of_the_text_s(session):
    for name in ["float4", "float8"]:
        query = f"SELECT -'NaN'::{name} UNION ALL SELECT 'Infinity'::{name} - 'Infinity'"
        pg_type = type_of(session, name)
        bits = [typed(session, query, pg_type, binary=way)[0].values.buffers()[1] for way in (True, False)]
        assert bits[0].to_pybytes() == bits[1].to_pybytes()


def numeric_bytes(digits: list[int], weight: int, sign: int = 0, scale: int = 0) -> bytes:
    return b"".join(number.to_bytes(2) for number in (len(digits), weight, sign, scale, *digits))


def as_numeric_5_2(value: bytes) -> pa.Array:
    wire = message(row(value))
    [column] = binary_columns(np.frombuffer(wire, np.uint8), np.array([0, len(wire)]), [NUMERIC_5_2])
    return column


@pytest.mark.parametrize("digits", [[123, 4567], [1000], [9999] * 5, [1234, 5678, 9012, 3456, 7890]])
def test_a_numeric_beyond_its_precision_is_left_to_its_text(digits):
    """A server stores none, but a catalog that was tampered with may say so."""
    column = as_numeric_5_2(numeric_bytes(digits, len(digits) - 1))
    assert column.type == pa.binary()
    assert column.to_pylist() == [b"".join(b"%04d" % digit for digit in digits).lstrip(b"0")]


def test_a_numeric_that_its_type_cannot_hold_is_neither_rounded_nor_made_a_number():
    assert as_numeric_5_2(numeric_bytes([1, 2345], 0, scale=4)).to_pylist() == [b"1.2345"]
    assert as_numeric_5_2(numeric_bytes([], 0, sign=0xD000)).to_pylist() == [b"Infinity"]
    with pytest.raises(PgcdcError, match="it has a digit beyond 9999"):
        as_numeric_5_2(numeric_bytes([10_000], 0xFFFF, scale=2))


def test_values_that_look_like_rows_are_told_from_them_at_once(monkeypatch):
    """Of 8 columns, a text with `d` third from its end looks like a row, as a value of 8 bytes follows it."""
    monkeypatch.delattr("pgcdc_cli.replication.copy_binary._linked")
    some = [row(number.to_bytes(8), b"abcd%02d" % (number % 100), *[bytes(8)] * 6) for number in range(500)]
    data = b"".join(map(message, some))
    edges = begun(8).find_rows(np.frombuffer(data, np.uint8))
    assert [data[start:end] for start, end in pairwise(edges)] == list(map(message, some))


def test_a_large_value_takes_little_more_memory_than_its_own():
    wire = np.frombuffer(message(row(b"d" * 20_000_000)), np.uint8)
    tracemalloc.start()
    try:
        tuples = begun(1)
        assert tuples.find_rows(wire[:-1]).tolist() == [0]
        assert tuples.find_rows(wire).tolist() == [0, len(wire)]
        assert tracemalloc.get_traced_memory()[1] < 3 * len(wire)
    finally:
        tracemalloc.stop()


def test_a_stop_ends_the_wait_for_rows(database):
    stop = iter([False] * 20)
    query = sql.SQL("SELECT g FROM generate_series(1, 100) g UNION ALL SELECT 1 FROM pg_sleep(3600)")
    with closing(SnapshotSession(database.uri)) as session, pytest.raises(KeyboardInterrupt):
        list(session.copy(query, [INT4], STRICT, lambda: next(stop, True), typed=True))


def test_an_encrypted_connection_is_read_as_text(session, monkeypatch):
    monkeypatch.setattr("pgcdc_cli.stream.snapshot.snapshot_session.is_encrypted", lambda _: True)
    [(_, (column,))] = session.copy(sql.SQL("SELECT 7"), [INT4], STRICT, lambda: False, typed=True)
    assert column.to_pylist() == [b"7"]


def test_an_error_in_the_midst_of_rows_is_the_server_s(session):
    query = sql.SQL("SELECT 1 / (20000 - g) FROM generate_series(1, 20000) g")
    with pytest.raises(psycopg.Error, match="division by zero"):
        list(session.copy(query, [INT4], STRICT, lambda: False, typed=True))
