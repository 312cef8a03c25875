"""Binary values become the text that the server prints, which is asked for each value in both formats."""

import json
import struct

import psycopg
import pyarrow as pa
import pytest
from every_type import VALUES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgcdc_cli.errors import MalformedError
from pgcdc_cli.replication.session import SESSION_SETTINGS
from pgcdc_cli.types import kernels
from pgcdc_cli.types.binary import has_reader, sends_binary, text_of
from pgcdc_cli.types.pg_type import TYPES, PgType, builtin


class Both:
    """A server that returns the same value as text and in binary."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self.execute, self.cursor = connection.execute, connection.cursor
        for name, value in SESSION_SETTINGS.items():
            connection.execute(f"SET {name} = '{value}'")

    def type(self, name: str) -> PgType:
        (oid,) = self.execute("SELECT %s::regtype::oid::bigint", (name,)).fetchone()
        return builtin(oid, -1)

    def values(self, name: str, literals: list[str | None]):
        query = f"SELECT v::{name} FROM unnest(%s::text[]) WITH ORDINALITY AS u (v, n) ORDER BY n"
        return self.ask(query, (literals,))

    def ask(self, query: str, parameters=()) -> tuple[list[bytes | None], list[bytes | None]]:
        """A query's first column, in binary and as text."""
        return self._column(query, parameters, True), self._column(query, parameters, False)

    def _column(self, query: str, parameters, binary: bool) -> list[bytes | None]:
        result = self.execute(query, parameters, binary=binary).pgresult
        assert result.fformat(0) == binary
        return [result.get_value(row, 0) for row in range(result.ntuples)]


@pytest.fixture
def both(server):
    with psycopg.connect(server.uri(), autocommit=True) as connection:
        yield Both(connection)


@pytest.fixture
def both18(server18):
    with psycopg.connect(server18.uri(), autocommit=True) as connection:
        yield Both(connection)


def texts(pg_type: PgType, binary: list[bytes | None]) -> list[bytes | None]:
    column = text_of(pg_type, pa.array(binary, pa.binary()))
    column.validate(full=True)
    assert column.type == pa.binary()
    return column.to_pylist()


@pytest.mark.parametrize("name", VALUES)
def test_every_type_reads_as_the_server_prints_it(both, name):
    pg_type = both.type(name)
    binary, text = both.values(name, [None, *VALUES[name], None])
    assert texts(pg_type, binary) == text
    assert [texts(pg_type, [value])[0] for value in binary] == text
    assert texts(pg_type, [None, None]) == [None, None]
    assert texts(pg_type, []) == []


WITHOUT_READER = {
    *("money", "aclitem", "gtsvector", "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list"),
    *("pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"),
    *("pg_type", "pg_attribute", "pg_proc", "pg_class", "pg_database", "pg_authid", "pg_auth_members"),
    *("pg_shseclabel", "pg_subscription"),
    *("regproc", "regprocedure", "regoper", "regoperator", "regclass", "regtype", "regconfig"),
    *("regdictionary", "regnamespace", "regrole", "regcollation"),
}
VECTORS = {"int2vector", "oidvector"}
ARRAYS = """
WITH one AS (SELECT array_agg(v::{} ORDER BY n) AS a FROM unnest(%s::text[]) WITH ORDINALITY AS u (v, n))
SELECT v FROM one, LATERAL (VALUES
    (1, a), (2, '{{}}'), (3, NULL), (4, a[1:1]), (5, ARRAY[a, a]), (6, a), (7, a[2:]), (8, a[1:2]),
    (9, ARRAY[ARRAY[a[1:1]], ARRAY[a[1:1]]]), (10, array_fill(a[1], '{{2}}', '{{0}}')),
    (11, array_fill(a[1], '{{2, 2}}', '{{-1, 1}}')), (12, a)) AS several (m, v) ORDER BY m
"""


@pytest.mark.parametrize("name", sorted(VALUES.keys() - VECTORS))
def test_arrays_of_every_type_read_as_the_server_prints_them(both, name):
    binary, text = both.ask(ARRAYS.format(name), ([*VALUES[name], None],))
    pg_type = both.type(f"{name}[]")
    assert texts(pg_type, binary) == text
    assert [texts(pg_type, [value])[0] for value in binary] == text


@pytest.mark.parametrize("name", sorted(VECTORS))
def test_arrays_of_vectors_read_as_the_server_prints_them(both, name):
    binary, text = both.values(f"{name}[]", ['{"1 2 3","",NULL,7}', "{}", None, "[0:0]={1}"])
    assert texts(both.type(f"{name}[]"), binary) == text


def packed(form: str, *parts: st.SearchStrategy) -> st.SearchStrategy[bytes]:
    return st.tuples(*parts).map(lambda numbers: struct.pack(form, *numbers))


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def addresses(family: int, size: int) -> st.SearchStrategy[bytes]:
    groups = st.lists(st.sampled_from([b"\0\0", b"\0\1", b"\xff\xff", b"\x0a\0"]), min_size=size // 2)
    return st.tuples(st.integers(0, 8 * size), groups).map(
        lambda parts: bytes((family, parts[0], 0, size)) + b"".join(parts[1])[:size]
    )


micros = st.integers(0, 86_400_000_000)
doubles = st.one_of(packed(">Q", st.integers(0, 2**64 - 1)), packed(">d", st.floats()))
short_decimals = st.tuples(st.integers(-(10**17), 10**17), st.integers(-40, 40))
WIRE = {
    "float8": st.one_of(doubles, short_decimals.map(lambda t: struct.pack(">d", float(f"{t[0]}e{t[1]}")))),
    "float4": st.one_of(packed(">I", st.integers(0, 2**32 - 1)), packed(">f", st.floats(width=32))),
    "date": packed(">i", st.integers(-2_451_545, 2_145_031_948)),
    "timestamp": packed(">q", st.integers(-211_813_488_000_000_000, 9_223_371_331_199_999_999)),
    "timestamptz": packed(">q", st.integers(-10**17, 10**17)),
    "time": packed(">q", micros),
    "timetz": packed(">qi", micros, st.integers(-57_599, 57_599)),
    # Far from the limits, which mean infinity since 17 and are finite before.
    "interval": packed(">qii", signed(63), signed(31), signed(31)),
    "inet": st.one_of(addresses(2, 4), addresses(3, 16)),
    "pg_lsn": packed(">Q", st.integers(0, 2**64 - 1)),
    "point": packed(">dd", st.floats(), st.floats()),
}  # fmt: skip


@pytest.mark.parametrize("name", WIRE)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bits_read_as_the_server_prints_them(both, name, data):
    sent = data.draw(st.lists(WIRE[name], min_size=1, max_size=200))
    both.execute(f"CREATE TEMP TABLE IF NOT EXISTS sent (n int, v {name}); TRUNCATE sent")
    with both.cursor() as cursor, cursor.copy("COPY sent FROM STDIN (FORMAT binary)") as copy:
        rows = [struct.pack(">hiiI", 2, 4, n, len(v)) + v for n, v in enumerate(sent)]
        copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8) + b"".join(rows) + b"\xff\xff")
    binary, text = both.ask("SELECT v FROM sent ORDER BY n")
    assert texts(both.type(name), binary) == text


words = st.text(st.sampled_from("aé'\\ \"{},;()[]\n\t"), max_size=4)
queries = st.recursive(
    st.sampled_from(["a", "'b c':*A", "'it''s'", "d:BC"]),
    lambda inner: st.one_of(
        inner.map(lambda query: f"!({query})"),
        st.tuples(inner, st.sampled_from(["&", "|", "<->", "<7>"]), inner).map(
            lambda t: f"({t[0]}){t[1]}({t[2]})"
        ),
    ),
)
LITERALS = {
    "numeric": st.decimals(allow_nan=False, allow_infinity=False).map(str),
    "numeric(40,12)": st.decimals(-(10**20), 10**20, places=12).map(str),
    "tsquery": queries,
    "bytea": st.binary(max_size=30).map(lambda value: "\\x" + value.hex()),
    "varbit": st.text(st.sampled_from("01"), max_size=40),
}


@pytest.mark.parametrize("name", LITERALS)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_reads_as_the_server_prints_it(both, name, data):
    binary, text = both.values(name, data.draw(st.lists(st.none() | LITERALS[name], max_size=100)))
    pg_type = both.type(name)
    assert texts(pg_type, binary) == text


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.lists(st.none() | words, max_size=6), max_size=30))
def test_any_words_are_quoted_in_arrays_and_ranges_as_the_server_does(both, rows):
    binary, text = both.ask(
        "SELECT r.v FROM json_array_elements(%s::json) WITH ORDINALITY AS u (j, n), LATERAL"
        " (SELECT array_agg(w ORDER BY m) FROM json_array_elements_text(j) WITH ORDINALITY"
        " AS w (w, m)) AS r (v) ORDER BY n",
        (json.dumps(rows),),
    )
    assert texts(both.type("text[]"), binary) == text


FREE = {"name", "text", "varchar", "bpchar", "char(5)", "json", "jsonb", "jsonpath", "refcursor", "bytea"}
"""Types for which any bytes are a value; those of jsonb and jsonpath follow a version byte."""


@pytest.mark.parametrize("name", sorted(VALUES.keys() - FREE))
def test_a_value_cut_short_or_too_long_is_an_error_that_names_the_row(both, name):
    pg_type = both.type(name)
    whole = both.values(name, VALUES[name])[0]
    for value in [value for value in whole if len(value) < 60]:
        for wrong in [*(value[:end] for end in range(len(value))), value + b"\0"]:
            check_refused(pg_type, [whole[0], None, wrong, whole[0]], 2)


@pytest.mark.parametrize("name", ["int4", "text", "box", "numrange", "int4multirange", "tsvector"])
def test_an_array_cut_short_or_too_long_is_an_error_that_names_the_row(both18, name):
    pg_type = both18.type(f"{name}[]")
    *_, value = both18.ask(ARRAYS.format(name), (VALUES[name][:3],))[0]
    for wrong in [*(value[:end] for end in range(len(value))), value + b"\0"]:
        check_refused(pg_type, [None, wrong], 1)
    check_refused(pg_type, [value] * 20 + [value[:-1]], 20)


def check_refused(pg_type, column, row):
    with pytest.raises(MalformedError) as caught:
        text_of(pg_type, pa.array(column, pa.binary()))
    assert caught.value.row == row
    assert str(caught.value).startswith("it")


@pytest.mark.parametrize("name", VALUES)
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_a_value_or_an_error(both18, name, data):
    binary = [value for value in both18.values(name, VALUES[name])[0] if len(value) < 200]
    array = both18.ask(ARRAYS.format(name), (VALUES[name][:3],))[0] if name not in VECTORS else []
    for pg_type, valid in (
        (both18.type(name), binary),
        (both18.type(f"{name}[]"), list(filter(None, array))),
    ):
        column = data.draw(
            st.lists(st.one_of(st.none(), st.binary(max_size=40), mutated(valid)), max_size=12)
        )
        try:
            found = texts(pg_type, column)
        except MalformedError as error:
            check_refused(pg_type, [column[error.row]], 0)
        else:
            assert [value is None for value in found] == [value is None for value in column]


@st.composite
def mutated(draw, valid):
    value = bytearray(draw(st.sampled_from(valid or [b""])))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(value)))
        value[at : at + draw(st.integers(0, 4))] = draw(
            st.one_of(st.binary(max_size=4), st.sampled_from([b"\x7f\xff\xff\xff", b"\xff" * 4, bytes(4)]))
        )
    return bytes(value)


def test_every_built_in_type_has_a_reader_or_is_known_to_have_none():
    for name, _, oid, array in TYPES:
        assert has_reader(builtin(oid, -1)) == (name not in WITHOUT_READER), name
        assert not array or has_reader(builtin(array, -1)) == (name not in WITHOUT_READER), name


def test_no_value_is_left_out_of_these_tests():
    tried = {name.split("(")[0].strip('"') for name in VALUES}
    assert {name for name, *_ in TYPES} - WITHOUT_READER - tried == {"xml"}, "these servers have no libxml"


def test_xml_has_no_encoding_of_a_session_in_its_text():
    sent = [
        b'<?xml version="1.0" encoding="LATIN1"?>\n<a/>',
        b'<?xml version="1.1" encoding="LATIN1" standalone="yes"?>\n<a/>',
        b' <a encoding="b"/>',
    ]
    shown = [b"<a/>", b'<?xml version="1.1" standalone="yes"?>\n<a/>', sent[2]]
    assert texts(builtin(142, -1), sent) == shown


def test_enums_send_their_labels():
    mood = PgType(16390, -1, "mood", "enum")
    assert texts(mood, [b"ok", None, b"so so"]) == [b"ok", None, b"so so"]
    assert not has_reader(PgType(16391, -1, "pair", "other"))
    assert texts(PgType(16394, -1, "citext", "other", sends="text"), [b"Ab"]) == [b"Ab"]
    assert not sends_binary(PgType(16395, -1, "seg", "other", sends="nothing"))
    assert not has_reader(PgType(16392, -1, "pair[]", "array", PgType(16391, -1, "pair", "other")))
    array = struct.pack(">iiIii", 1, 0, 16390, 2, 1) + b"\0\0\0\5so so\xff\xff\xff\xff"
    assert texts(PgType(16393, -1, "mood[]", "array", mood), [array]) == [b'{"so so",NULL}']


def test_what_has_no_send_function_is_sent_as_text(both):
    found = both.execute("SELECT oid::bigint FROM pg_type WHERE typsend = 0 AND typtype <> 'p'").fetchall()
    known = [oid for _, _, oid, _ in TYPES]
    assert [oid for oid in known if not sends_binary(builtin(oid, -1))] == [
        oid for oid in known if (oid,) in found
    ]


def test_a_long_column_of_doubles_reads_back_as_the_same_numbers():
    numbers = [number / 7 for number in range(-50_000, 50_000)]
    found = texts(builtin(701, -1), [struct.pack(">d", number) for number in numbers])
    assert [float(text) for text in found] == numbers


def test_more_text_than_arrow_holds_is_an_error(monkeypatch):
    monkeypatch.setattr(kernels, "INT32_MAX", 100)
    check_refused(builtin(17, -1), [bytes(20), bytes(20), bytes(20)], 2)
