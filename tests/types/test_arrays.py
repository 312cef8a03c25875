from itertools import pairwise

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgcdc_cli.types import array_literals
from pgcdc_cli.types.array_literals import parse_array, split_arrays
from pgcdc_cli.types.pg_type import PgType, builtin
from pgcdc_cli.types.to_arrow import arrow_type

ARRAYS = [
    ("int4[]", pa.int32(), ["{}", "{1,NULL,-3}"]),
    ("bool[]", pa.bool_(), ["{t,f,NULL}"]),
    ("text[]", pa.string(), ["{}", '{"",NULL,"NULL","null",a b,"a,b","{}","\\"q\\"","\\\\","é\n"}']),
    ("float8[]", pa.float64(), ["{1.5,-Infinity}"]),
    ("numeric(5,2)[]", pa.decimal128(5, 2), ["{1.50,NULL}"]),
    ("bytea[]", pa.binary(), ['{"\\\\x00ff","\\\\x"}']),
    ("date[]", pa.date32(), ["{2024-02-29,NULL}"]),
    ("timestamp[]", pa.timestamp("us"), ['{"2024-02-29 01:02:03.5"}']),
    ("uuid[]", pa.string(), ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"]),
    ("jsonb[]", pa.string(), ['{"{\\"a\\": 1}",NULL}']),
    ("int4range[]", pa.string(), ['{"[1,5)",empty}']),
    ("box[]", pa.string(), ["{(1,1),(0,0);(2,2),(1,1)}"]),
    ("int2vector[]", pa.string(), ['{"1 2","3"}']),
]


@pytest.mark.parametrize(("name", "element", "literals"), ARRAYS)
def test_an_arrays_elements_are_what_the_server_says(oracle, convert, name, element, literals):
    texts = [oracle.text(name, literal) for literal in literals]
    pg_type = oracle.type(name)
    values, unfit = convert(pg_type, [*texts, None])
    assert values.type == pa.list_(element)
    assert not any(unfit)
    for ours, literal in zip(values, literals, strict=False):
        elements = oracle.elements(name, literal)
        assert pa.array(ours.as_py(), element).equals(convert(pg_type.element, elements)[0])
    assert values[-1].as_py() is None


@pytest.mark.parametrize(
    ("name", "literal"),
    [
        ("int4[]", "{{1,2},{3,4}}"),
        ("int4[]", "[0:1]={1,2}"),
        ("int4[]", "[2:2][3:4]={{1,2}}"),
        ("numeric(5,2)[]", "{1.50,NaN}"),
        ("timestamptz[]", "{infinity}"),
        ("time[]", "{24:00:00}"),
    ],
)
def test_an_array_that_is_no_list_is_null_and_marked(oracle, convert, name, literal):
    values, unfit = convert(oracle.type(name), ["{}", oracle.text(name, literal), None])
    assert unfit == [False, True, False]
    assert values.to_pylist() == [[], None, None]


def test_an_array_of_a_users_type_stays_text_unless_it_is_an_enum():
    enum = PgType(16384, -1, "mood", "enum")
    assert arrow_type(PgType(16385, -1, "mood[]", "array", enum)) == pa.list_(pa.string())
    geometry = PgType(16386, -1, "geometry", "other")
    assert arrow_type(PgType(16387, -1, "geometry[]", "array", geometry)) == pa.string()


def literal(elements: list[str | None]) -> str:
    def quote(text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return "{" + ",".join("NULL" if e is None else quote(e) for e in elements) + "}"


@settings(deadline=None, max_examples=500)
@given(st.lists(st.one_of(st.none(), st.text(max_size=8), st.text('{}",\\ NUL', max_size=6)), max_size=8))
def test_quoted_elements_come_back(elements):
    assert parse_array(literal(elements)) == elements


@settings(deadline=None, max_examples=500)
@given(st.text('{}",;\\aN =[]:1', max_size=12))
def test_malformed_literals_are_refused_not_misread(text):
    parsed = parse_array(text)
    assert parsed is None or text.startswith("{")


@pytest.mark.parametrize(
    "text", ["", "{", "{1", "{1,", "{1,}", '{"a}', '{a"b}', "{1}x", "{{1}}", "{a{b}", "1,2"]
)
def test_half_an_array_is_refused(text):
    assert parse_array(text) is None


ELEMENTS = ["NULL", "null", "a", "ab", '"a"', '"NULL"', '""', '"a,b"', '"}"', '"\\""', '"\\\\"', "", "é"]
MALFORMED = ['"a"b', 'a"b"', '"']
LITERALS = st.one_of(
    st.none(),
    st.text('{}",;\\aN =[]:1', max_size=12),
    st.lists(st.sampled_from(ELEMENTS)).map(",".join).map("{{{}}}".format),
    st.lists(st.sampled_from(ELEMENTS + MALFORMED), max_size=3).map(",".join).map("{{{}}}".format),
)


@settings(deadline=None, max_examples=1000)
@given(st.lists(LITERALS, max_size=6), st.integers(0, 2), st.sampled_from([0, array_literals.FEW]))
def test_many_literals_are_divided_as_single_ones_are(literals, start, few):
    column = pa.array([*["{x}"] * start, *literals], pa.string()).cast(pa.binary())[start:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_literals, "FEW", few)
        texts, offsets, irregular = split_arrays(column)
    found = [texts[low:high].to_pylist() for low, high in pairwise(offsets.tolist())]
    parsed = [None if text is None else parse_array(text) for text in literals]
    assert [[one if one is None else one.decode() for one in some] for some in found] == [
        elements or [] for elements in parsed
    ]
    assert irregular.tolist() == [
        text is not None and elements is None for text, elements in zip(literals, parsed, strict=True)
    ]


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)


def test_arrays_as_the_server_prints_them_come_back(server18):
    with psycopg.connect(server18.uri(), autocommit=True) as connection:

        @settings(deadline=None, max_examples=100)
        @given(st.lists(st.one_of(st.none(), TEXT), max_size=6))
        def check(elements):
            printed = connection.execute("SELECT CAST(%s AS text[])::text", (elements,)).fetchone()[0]
            assert parse_array(printed) == elements

        check()


def test_builtin_arrays_of_box_are_split_at_semicolons():
    assert parse_array("{(1,1),(0,0);(2,2),(1,1)}", ";") == ["(1,1),(0,0)", "(2,2),(1,1)"]
    assert builtin(1020, -1).element.name == "box"
