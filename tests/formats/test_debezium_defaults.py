"""Column defaults as `PostgresDefaultValueConverter` reads them: literals, never evaluated.

The expressions are as `pg_get_expr` prints them; the expected tokens are from a real Debezium 2.5.4, see the
cases `types_default_*` of tests/golden_more.
"""

from dataclasses import replace

import pytest
from debezium_tools import OIDS, numeric

from pgcdc_cli.changes.table import ColumnFacts, TableColumn
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.types.registry import field_for
from pgcdc_cli.types.pg_type import PgType, builtin

UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"


def default(type_: PgType, expression: str, *, snapshot: bool = False, **modes: str) -> str | None:
    config = ConnectorConfig(topic_prefix="srv", **modes)
    column = replace(TableColumn.of("v", type_, in_replica_identity=False), not_null=False)
    field = field_for(column, ColumnFacts(expression, ("new", "it's")), config, snapshot=snapshot)
    found = field.schema.get("default")
    return None if found is None else found.decode()


@pytest.mark.parametrize(
    ("kind", "typmod", "expression", "token"),
    [
        # A function call becomes a constant; so does an expression that begins with one in parentheses.
        ("jsonb", -1, "jsonb_build_object('a', 1)", '"{}"'),
        ("timestamp", -1, "(now() - '1 day'::interval)", "0"),
        ("text", -1, "s2.f('a'::text)", '""'),
        ("date", -1, "CURRENT_DATE", "0"),
        # Other expressions are refused by the type's parser, or taken for a literal.
        ("date", -1, "(CURRENT_DATE - 1)", None),
        ("timestamp", -1, "(CURRENT_TIMESTAMP + '1 day'::interval)", None),
        ("timestamptz", -1, "(CURRENT_TIMESTAMP - '01:00:00'::interval)", '"1970-01-01T01:00:00.000000Z"'),
        ("int4", -1, "(1 + 1)", None),
        ("text", -1, "(1 + 1)", '"(1 + 1)"'),
        ("text", -1, "('x'::text || 'y'::text)", '"x"'),
        ("bool", -1, "(5 > 3)", "false"),
        # A literal must end on its line, since Java's "." matches no line terminator.
        ("text", -1, "'a\nb'::text", None),
        ("text", -1, "'it''s'::text", '"it"'),
        ("text", -1, "NULL::text", None),
        # A numeric must fit the column's scale: zeroes may be dropped, other digits may not.
        ("numeric", numeric(6, 1), "1.50", '"Dw=="'),
        ("numeric", numeric(6, 1), "0.25", None),
        ("numeric", numeric(6, 1), "'NaN'::numeric", None),
        # Connect has no defaults for structs.
        ("numeric", -1, "1.5", None),
        ("point", -1, "'(1,2)'::point", None),
        # These types have no reader.
        ("oid", -1, "5", None),
        ("char", -1, "'c'::\"char\"", None),
        ("timetz", -1, "'10:11:12+02'::time with time zone", None),
        ("int4range", -1, "'[1,3)'::int4range", None),
        # Java's greatest and least dates overflow.
        ("date", -1, "'infinity'::date", "169560311"),
        ("date", -1, "'-infinity'::date", "-170999002"),
        ("timestamp", -1, "'infinity'::timestamp without time zone", "-9223372036853775810"),
        ("timestamp", 3, "'infinity'::timestamp without time zone", None),
        ("timestamptz", -1, "'infinity'::timestamp with time zone", None),
        ("time", -1, "'24:00:00'::time without time zone", "86399999999"),
        ("time", 0, "'24:00:00'::time without time zone", "86399999"),
        # A single digit is a number, in any other text only the ones count; bit(1) parses it with radix 2.
        ("bit", 4, "(B'0'::\"bit\" || B'111'::\"bit\")", '"AA=="'),
        ("bit", 4, "(1)::bit(4)", '"AAI="'),
        ("bit", 1, "(1)::bit(1)", None),
        ("bit", 1, "B'1'::\"bit\"", "true"),
        ("float4", -1, "16777217", "1.6777216E7"),
        ("float4", -1, "'NaN'::real", '"NaN"'),
        ("float4", -1, "1.23456789", "1.2345679"),
        ("int2", -1, "'-32768'::integer", "-32768"),
        ("int2", -1, "32768", None),
        ("uuid", -1, f"('{UUID.upper()}'::text)::uuid", f'"{UUID}"'),
    ],
)  # fmt: skip
def test_a_default_is_read_by_its_types_rule(kind, typmod, expression, token):
    assert default(builtin(OIDS[kind], typmod), expression) == token


@pytest.mark.parametrize(
    ("kind", "literal", "mode", "token"),
    [
        ("time", "24:00:00", "nanoseconds", "86399999999999"),
        ("time", "24:00:00", "isostring", '"23:59:59.999999999Z"'),
        ("timestamp", "infinity", "nanoseconds", "7852397722631405567"),
        ("timestamp", "-infinity", "nanoseconds", "-3028005206664544256"),
        ("timestamp", "-infinity", "isostring", '"-999999999-01-01T00:00:00Z"'),
        ("date", "infinity", "isostring", '"+999999999-12-31Z"'),
    ],
)
def test_javas_greatest_and_least_moments_are_the_defaults_of_the_newer_modes(kind, literal, mode, token):
    newer = {"debezium_version": "3.4", "time_precision_mode": mode}
    assert default(builtin(OIDS[kind], -1), f"'{literal}'::{kind}", **newer) == token


@pytest.mark.parametrize(
    ("expression", "token"),
    [
        ("'new'::state", '"new"'),
        ("'it''s'::state", "\"it''s\""),
        ("'new'::other.state", None),
        ("('ne'::text || 'w'::text)::state", None),
    ],
)
def test_an_enums_default_is_a_literal_of_the_type_without_a_schema(expression, token):
    assert default(PgType(20000, -1, "state", "enum"), expression) == token


def test_in_string_mode_a_decimals_default_has_the_columns_scale():
    column = builtin(OIDS["numeric"], numeric(8, 2))
    assert default(column, "round(1.234, 2)", decimal_handling_mode="string") == '"0.00"'
    assert default(column, "1.5", decimal_handling_mode="string") == '"1.50"'


def test_a_date_bc_as_default_keeps_its_era_in_snapshots():
    column = builtin(OIDS["date"], -1)
    expression = "'0044-03-15 BC'::date"
    assert default(column, expression, snapshot=True) == default(column, expression) == "-735160"
