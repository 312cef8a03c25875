"""Whatever a line of JSON is like, each option of `pgcdc show` either understands it or refuses it."""

import contextlib
import io
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgcdc_cli.cli.app import run

STAMP = {"lsn": "0/1", "commit_lsn": "0/2", "seq": 0, "xid": 7, "ts": "2026-01-02T03:04:05.678901Z"}
TABLE = {"schema": "public", "table": "t"}
ROW = {"key": {"id": 1}, "old": {"id": 2, "doc": None}, "new": {"id": 1, "doc": {"a": None}, "text": "x"}}
LISTS = {"unchanged": ["big"], "json_null": ["old.doc"]}
LINES = [
    {"op": "U", **STAMP, **TABLE, **ROW, **LISTS},
    {"op": "I", **STAMP, **TABLE, "new": {"id": 1}},
    {"op": "D", **STAMP, **TABLE, "old": {"id": 1}},
    {"op": "T", **STAMP, **TABLE, "cascade": True, "restart_identity": False},
    {"op": "M", **STAMP, "transactional": True, "prefix": "app", "content": "said"},
    {"op": "B", "commit_lsn": "0/2", "xid": 7, "ts": None, "origin": "o", "origin_lsn": "0/1"},
    {"op": "C", "commit_lsn": "0/2", "end_lsn": "0/3", "xid": 7, "ts": None, "gid": "g"},
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
OPTIONS = [
    (),
    ("--format", "pretty"),
    ("--stat",),
    ("--stat", "--json"),
    ("--since", "0/1"),
    ("--until", "2026-01-02"),
    ("--at", "0/1"),
    ("--op", "I"),
    ("--key", "id=1"),
    ("--column", "doc"),
]


@st.composite
def mutated(draw) -> str:
    """A line of which one member, or a member within, has another value or is gone."""
    line = json.loads(json.dumps(draw(st.sampled_from(LINES))))
    place = line
    name = draw(st.sampled_from(list(place)))
    if isinstance(place[name], dict) and draw(st.booleans()):
        place = place[name]
        name = draw(st.sampled_from(list(place)))
    place[name] = draw(VALUES)
    if draw(st.booleans()):
        del place[name]
    return json.dumps(line)


@pytest.mark.parametrize("options", OPTIONS)
@given(line=mutated())
@example(line=json.dumps(LINES[0]))
def test_it_is_understood_or_refused(tmp_path_factory, options, line):
    path = tmp_path_factory.getbasetemp() / "mutated.jsonl"
    path.write_text(f"{line}\n", "utf-8")
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace"))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(["show", str(path), *options])
    err.flush()
    said = err.buffer.getvalue().decode()
    assert (status, said) == (0, "") or status in {2, 8}, said
