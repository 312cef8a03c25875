"""Functions and operators that others may create are never called in place of the server's own."""

import json
from itertools import product

import psycopg
import pytest
from processes import PGCDC
from segments import contents
from stream_runs import NOW, stream
from warm_process import run_warm

_ROWS = ("boolean", "smallint", "integer", "bigint", "text", "name", "oid", '"char"', "int2vector", "oid[]")
"""Types that the catalog's columns have."""
_OF_ANY = ("unnest", "array_agg", "json_agg", "to_jsonb", "array_to_json", "cardinality")
"""Functions of any type: a function of the very type is preferred to them, wherever it is."""


def caught(name: str, arguments: str, returns: str) -> str:
    return (
        f"CREATE FUNCTION public.{name}({arguments}) RETURNS {returns} LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'caught'; END $$"
    )


@pytest.fixture
def hostile(database18):
    """A table with a default, an enum, a filter and a generated column, in a database with such functions."""
    execute = database18.execute
    execute(
        "CREATE TYPE mood AS ENUM ('ok', 'so so');"
        "CREATE TABLE t (a int PRIMARY KEY, m mood DEFAULT 'ok', b int GENERATED ALWAYS AS (a + 1) STORED);"
        "INSERT INTO t VALUES (1), (2); CREATE PUBLICATION pub FOR TABLE t WHERE (a < 10)"
    )
    for name, of in product(_OF_ANY, _ROWS):
        execute(caught(name, of, "text"))
    for first, second in product(_ROWS, _ROWS):
        execute(caught("json_build_array", f"{first}, {second}", "json"))
        if first != second:
            execute(caught("equals", f"{first}, {second}", "boolean"))
            arguments = f"FUNCTION = equals, LEFTARG = {first}, RIGHTARG = {second}"
            execute(f"CREATE OPERATOR public.= ({arguments}); CREATE OPERATOR public.< ({arguments})")
    execute(caught("json_build_array", "name, boolean, boolean, boolean", "json"))
    execute(caught("json_build_array", "boolean, name[], integer", "json"))
    yield database18
    with pytest.raises(psycopg.errors.RaiseException, match="caught"):
        execute("SELECT json_build_array('a'::name, true, true, true)")


def test_a_stream_and_its_snapshot(hostile, tmp_path):
    slot, out = "s_" + hostile.name, tmp_path / "out"
    for more in (("--create-slot", "--snapshot", "initial"), ("--resnapshot", "public.t")):
        ran = stream(hostile.uri, slot, "-D", out, *more, *NOW)
        assert (ran.returncode, "caught" in ran.stderr) == (0, False), ran.stderr
        hostile.execute("INSERT INTO t SELECT max(a) + 1 FROM t")
    changes = map(json.loads, contents(out)["public.t"])
    rows = [(one["op"], one["new"]["a"]) for one in changes]
    assert sorted(rows) == [("I", 3), ("R", 1), ("R", 1), ("R", 2), ("R", 2), ("R", 3)]


@pytest.mark.parametrize(
    "command",
    [
        ("slot", "list"),
        ("slot", "show", "{slot}"),
        ("slot", "peek", "{slot}", "--publication", "pub"),
        ("publication", "list"),
        ("publication", "show", "pub"),
        ("publication", "create", "more", "--table", "public.t"),
        ("doctor", "-S", "{slot}", "--publication", "pub"),
        ("snapshot", "--publication", "pub"),
        ("snapshot", "--table", "public.t", "--where", "a = 1"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_other_commands(hostile, command):
    slot = hostile.create_slot()
    ran = run_warm([*PGCDC, *(word.format(slot=slot) for word in command), "-d", hostile.uri])
    assert (ran.returncode, "caught" in ran.stderr) == (0, False), ran.stderr


def test_names_of_a_condition_need_their_schemas(hostile):
    given = (*PGCDC, "snapshot", "-d", hostile.uri, "--table", "public.t", "--where")
    ran = run_warm([*given, "m = 'ok'::mood"])
    assert ran.returncode == 2
    assert 'type "mood" does not exist\nhint: check --where, ' in ran.stderr
    ran = run_warm([*given, "m = 'ok'::public.mood"])
    assert (ran.returncode, ran.stdout.count("\n")) == (0, 2)
