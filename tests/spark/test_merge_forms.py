"""Every form of a value in Debezium's events decodes to the same value as PostgreSQL's text."""

import json
from dataclasses import dataclass, field

from merge_histories import numeric, pg_type
from pyspark.sql import Column as Expression
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from pgcdc_cli.changes.table import ColumnFacts, TableColumn
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.types.registry import field_for
from pgcdc_cli.spark.pgcdc_merge.column_types import from_text, in_range, spark_type
from pgcdc_cli.spark.pgcdc_merge.debezium_segments import decoded
from pgcdc_cli.types import kernels
from pgcdc_cli.types.pg_type import PgType

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID, FLOAT4, FLOAT8 = 16, 17, 20, 21, 23, 25, 26, 700, 701
DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL, BIT, NUMERIC = 1082, 1083, 1114, 1184, 1186, 1560, 1700
HSTORE = PgType(99_001, -1, "hstore", "other")
OWN = PgType(99_002, -1, "own", "other")
ENUM = PgType(99_003, -1, "mood", "enum")


@dataclass
class Case:
    """A type, PostgreSQL's texts of values, and the connector's properties that choose their form."""

    type: PgType
    texts: list[str]
    modes: dict[str, object] = field(default_factory=dict)


DECIMALS = ["0.00", "1.50", "-0.01", "99999999.99", "-99999999.99", "-1.28", "1.28", "2.56", "-655.36"]
WIDE = ["0." + "0" * 10, "9" * 28 + "." + "9" * 10, "-" + "9" * 28 + "." + "9" * 10, "-0.0000000001"]
ANY = [
    "0",
    "-1",
    "0.05",
    "-0.5",
    "123.456789",
    "1" + "0" * 50,
    "-" + "9" * 80 + "." + "7" * 40,
    "-256",
    "65536",
]
CLOCKS = ["00:00:00", "24:00:00", "01:02:03.45", "23:59:59.999999", "12:00:00.000001"]
INTERVALS = [
    "1 year 2 mons 3 days 04:05:06.789012",
    "-1 years -2 mons +3 days -04:05:06",
    "1 day",
    "00:00:00",
    "-00:00:00.5",
    "-1 days +00:01:00",
    "1 mon",
    "-1 mons",
    "100:00:00",
    "178000000 years",
    "1 day -00:00:01",
    "-00:06:13.601235",
    "-00:00:01.999999",
    "00:00:00.000001",
]
STAMPS = [
    "0001-01-01 00:00:00",
    "9999-12-31 23:59:59.999999",
    "2026-03-29 01:30:00.000001",
    "1582-10-10 12:30:00.5",
]
FAR = [
    "infinity",
    "-infinity",
    "0044-03-15 00:00:00 BC",
    "10000-01-01 00:00:00",
    "294276-12-31 23:59:59.999999",
]
CASES = {
    "bool": Case(pg_type(BOOL), ["t", "f"]),
    "int2": Case(pg_type(INT2), ["-32768", "32767"]),
    "int8": Case(pg_type(INT8), ["-9223372036854775808", "9223372036854775807"]),
    "oid": Case(pg_type(OID), ["4294967295"]),
    "float4": Case(pg_type(FLOAT4), ["-Infinity", "1.5", "1e-45", "-0", "3.4028235e+38"]),
    "float8": Case(pg_type(FLOAT8), ["Infinity", "1.7976931348623157e+308", "5e-324", "0.1", "-0", "1e+16"]),
    "text": Case(pg_type(TEXT), ["", '\\N\r\n\t"{}é😀\u2028', "NULL", "null", "1"]),
    "jsonb": Case(pg_type(3802), ['{"a": 1.50}', "null", '"text"', "5"]),
    "json": Case(pg_type(114), ['{\n "a":  1, "a": 2}']),
    "uuid": Case(pg_type(2950), ["00000000-0000-0000-0000-0000000000ff"]),
    "inet": Case(pg_type(869), ["::1/128"]),
    "range": Case(pg_type(3904), ["[1,5)", "empty"]),
    "enum": Case(ENUM, ['so "so"']),
    "bit": Case(pg_type(BIT, 1), ["0", "1"]),
    "bits": Case(pg_type(BIT, 20), ["0" * 20, "1" * 20, "00000000000000000001", "10000000000000000000"]),
    "hstore": Case(HSTORE, ['"a"=>"1", "bb"=>"q\\"\\\\", "é"=>NULL', ""]),
    "hstore_map": Case(HSTORE, ['"b"=>"1", "z"=>"2", "aa"=>NULL'], {"hstore_handling_mode": "map"}),
    "own": Case(OWN, ["(1,é)"], {"include_unknown_datatypes": True}),
    "own_hex": Case(OWN, ["(1,é)"], {"include_unknown_datatypes": True, "binary_handling_mode": "hex"}),
    "decimal": Case(numeric(10, 2), [*DECIMALS, "NaN"]),
    "decimal18": Case(numeric(18, 0), ["9" * 18, "-" + "9" * 18, "0"]),
    "decimal38": Case(numeric(38, 10), WIDE),
    "decimal_text": Case(numeric(10, 2), [*DECIMALS, "NaN"], {"decimal_handling_mode": "string"}),
    "decimal_double": Case(
        numeric(15, 2), [*DECIMALS, "9" * 13 + ".99"], {"decimal_handling_mode": "double"}
    ),
    "numeric": Case(pg_type(NUMERIC), ANY),
    "numeric_text": Case(
        pg_type(NUMERIC), [*ANY, "1.50", "NaN", "-Infinity"], {"decimal_handling_mode": "string"}
    ),
    "numeric60": Case(numeric(60, 4), ["0.0000", "-0.0001", "9" * 56 + ".9990", "-" + "9" * 56 + ".9999"]),
    "bytes": Case(pg_type(BYTEA), ["\\x", "\\x00ff5c", "\\xfbfffe"]),
    "bytes_url": Case(pg_type(BYTEA), ["\\xfbfffe"], {"binary_handling_mode": "base64-url-safe"}),
    "bytes_hex": Case(pg_type(BYTEA), ["\\x", "\\x00ff5c"], {"binary_handling_mode": "hex"}),
    "date": Case(
        pg_type(DATE), ["0001-01-01", "9999-12-31", "1582-10-10", "infinity", "0044-03-15 BC", "12345-01-01"]
    ),
    "time": Case(pg_type(TIME), CLOCKS),
    "time0": Case(pg_type(TIME, 0), ["00:00:00", "23:59:59", "24:00:00"]),
    "time3": Case(pg_type(TIME, 3), ["01:02:03.045"], {"time_precision_mode": "connect"}),
    "timestamp": Case(pg_type(TIMESTAMP), [*STAMPS, *FAR]),
    "timestamp3": Case(
        pg_type(TIMESTAMP, 3), ["2026-03-29 01:30:00.001", *FAR], {"time_precision_mode": "connect"}
    ),
    "timestamptz": Case(
        pg_type(TIMESTAMPTZ), [f"{text}+00" for text in STAMPS] + ["infinity", "0044-03-15 00:00:00+00 BC"]
    ),
    "interval": Case(pg_type(INTERVAL), INTERVALS, {"interval_handling_mode": "string"}),
    "int4s": Case(pg_type(1007), ["{}", "{1,NULL,-3}"]),
    "texts": Case(pg_type(1009), ['{a,"b c","",NULL,"NULL","q\\"\\\\","{x}","two\nlines",é}']),
    "bools": Case(pg_type(1000), ["{t,f,NULL}"]),
    "floats": Case(pg_type(1022), ["{1.5,NaN,1e+20}"]),
    "decimals": Case(pg_type(1231, numeric(5, 2).typmod), ["{1.50,NULL,-0.01}"]),
    "numerics": Case(pg_type(1231), ["{1.5,NULL,-1000000000000000000000000000000000000000000000000}"]),
    "dates": Case(pg_type(1182), ["{2026-01-01,NULL}", "{infinity}"]),
    "byteas": Case(pg_type(1001), ['{"\\\\x00ff"}']),
    "times3": Case(
        pg_type(1183, 3),
        ["{10:00:00.5,NULL}"],
        {"time_precision_mode": "adaptive_time_microseconds"},
    ),
}


def differing(spark: SparkSession, cases: dict[str, Case]) -> list[tuple[str, ...]]:
    """Decode each text from its JSON token and from PostgreSQL's text; return those that differ."""
    rows: list[list[bytes]] = [[] for _ in range(max(len(case.texts) for case in cases.values()))]
    pairs: list[Expression] = []
    for number, case in enumerate(cases.values()):
        column = TableColumn.of("v", case.type, in_replica_identity=False)
        found = field_for(column, ColumnFacts(), ConnectorConfig(topic_prefix="p", **case.modes))
        assert found is not None
        tokens = found.to_json(kernels.binary(case.texts)).to_pylist()
        for row, text, token in zip(rows, case.texts, tokens, strict=False):
            row.append(b'"t%d":%s,"j%d":%s' % (number, json.dumps(text).encode(), number, token or b"null"))
        kind = spark_type(case.type.to_json(), 1)
        wanted = in_range(from_text(F.col(f"t{number}"), kind), kind)
        pairs.append(decoded(F.col(f"j{number}"), kind, found.form).cast("string").alias(f"found{number}"))
        pairs.append(wanted.cast("string").alias(f"wanted{number}"))
    lines = spark.sparkContext.parallelize([b"{" + b",".join(row) + b"}" for row in rows], 2)
    schema = ", ".join(f"t{number} string, j{number} string" for number in range(len(cases)))
    decoded_rows = spark.read.schema(schema).json(lines.map(bytes.decode)).select("*", *pairs).collect()
    return [
        (name, row[f"t{number}"], row[f"j{number}"], row[f"found{number}"], row[f"wanted{number}"])
        for number, name in enumerate(cases)
        for row in decoded_rows
        if row[f"found{number}"] != row[f"wanted{number}"]
    ]


def test_each_form_has_a_way_back(spark: SparkSession) -> None:
    assert differing(spark, CASES) == []
