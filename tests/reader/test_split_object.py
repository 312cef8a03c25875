"""The members of a line, each with the unchanged text of its value."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcdc_cli.reader.jsonl_reader import split_object

NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | NAMES
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=8)
BLANKS = st.text(" \t", max_size=2)


@given(st.dictionaries(NAMES, st.tuples(BLANKS, VALUES, BLANKS)), st.booleans())
def test_every_value_keeps_its_text(values, escaped):
    texts = {
        name: before + json.dumps(value, ensure_ascii=escaped) + after
        for name, (before, value, after) in values.items()
    }
    line = ",".join(f"{json.dumps(name, ensure_ascii=escaped)}:{text}" for name, text in texts.items())
    assert split_object("{" + line + "}") == texts


def test_numbers_and_repeated_names_inside_of_a_value_stay():
    assert split_object('{"a":1.10,"b":{"k":1E+5,"k":-0.0},"c":1e400}') == {
        "a": "1.10",
        "b": '{"k":1E+5,"k":-0.0}',
        "c": "1e400",
    }


def test_numbers_may_have_any_number_of_digits():
    assert split_object('{"a":[%s]}' % ("9" * 5000)) == {"a": "[" + "9" * 5000 + "]"}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "1", "{", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,}', '{"a":1}x', '{"a" :1}', "{1:1}"],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        split_object(text)
