"""Tables merged from Debezium's events equal PostgreSQL's; what the events lack is an error."""

import contextlib
import json
import random
import re
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
from merge_directories import EXACT, Directory, merge_into, table_path
from merge_histories import pg_type, table_schema
from merge_oracle import Change
from processes import stream_command
from pyspark.sql import SparkSession

from pgcdc_cli.changes.table import ColumnFacts, TableFacts, TableSchema
from pgcdc_cli.formats.debezium.debezium_format import DebeziumFormat
from pgcdc_cli.spark.pgcdc_merge.job import merge
from pgcdc_cli.spark.pgcdc_merge.options import MergeOptions
from pgcdc_cli.types.pg_type import PgType

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'so "so"');
CREATE TABLE plain (id int PRIMARY KEY, note text, doc jsonb, price numeric(12,3), big numeric(38,10),
    rough numeric, seen timestamptz, day date, clock time, span interval, feeling mood, tags text[],
    raw bytea, stamp timestamp(3), flag bool DEFAULT true, ratio float8, bits bit(12), host inet, many int[]);
ALTER TABLE plain ALTER note SET STORAGE EXTERNAL, ALTER doc SET STORAGE EXTERNAL,
    ALTER raw SET STORAGE EXTERNAL, ALTER tags SET STORAGE EXTERNAL;
CREATE TABLE pair (b text, a int, body text, PRIMARY KEY (a, b));
ALTER TABLE pair ALTER body SET STORAGE EXTERNAL;
CREATE TABLE whole (LIKE pair INCLUDING ALL);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE indexed (id int PRIMARY KEY, code int NOT NULL, body text);
ALTER TABLE indexed ALTER body SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX by_code ON indexed (code);
ALTER TABLE indexed REPLICA IDENTITY USING INDEX by_code;
CREATE SCHEMA "Größe";
CREATE TABLE "Größe"."Ta ble/1" ("Kéy_""1""_é" int PRIMARY KEY, "a.b" text, "back`tick" text, "select" json);
CREATE TABLE only_in (id int PRIMARY KEY, v text);
ALTER TABLE only_in REPLICA IDENTITY NOTHING;
CREATE PUBLICATION p FOR ALL TABLES;
"""
TABLES = ["public.plain", "public.pair", "public.whole", "public.indexed", "Größe.Ta ble/1"]
LONG = "repeat(md5(random()::text), 150)"
FIRST = f"""
INSERT INTO plain SELECT
    g, {LONG}, jsonb_build_object('n', g, 'long', {LONG}), g / 7.0, -g / 3.0, trim_scale(g * 1.5),
    '2026-03-29 01:30:00.000001+00'::timestamptz + g * interval '1 day', date '0001-01-01' + g,
    time '23:59:59.5', make_interval(years => -g, days => g, secs => -g * 0.5), 'so "so"',
    ARRAY[{LONG}, NULL, 'x,"y"'],
    convert_to({LONG}, 'UTF8'), '1999-10-10 12:30:00.5', g % 2 = 0, 1 / (g + 1.0), (g % 4096)::bit(12),
    '10.0.0.1/8', ARRAY[g, NULL] FROM generate_series(0, 40) g;
INSERT INTO plain (id, flag) VALUES (-1, true);
INSERT INTO pair SELECT 'x', g, {LONG} FROM generate_series(1, 9) g;
INSERT INTO whole SELECT 'ä', g, {LONG} FROM generate_series(1, 9) g;
INSERT INTO indexed SELECT g, g * 10, {LONG} FROM generate_series(1, 9) g;
INSERT INTO "Größe"."Ta ble/1" VALUES (1, 'dot', '`', '{{ "a":  1}}'), (2, NULL, '', 'null');
INSERT INTO only_in SELECT g, 'v' FROM generate_series(1, 3) g;
SELECT pg_logical_emit_message(true, 'note', 'of no table');
UPDATE plain SET price = price + 1 WHERE id < 20;
UPDATE plain SET id = id + 1000 WHERE id BETWEEN 5 AND 9;
"""
SECOND = """
BEGIN;
UPDATE pair SET a = 99 WHERE a = 1; UPDATE pair SET a = 1 WHERE a = 2; UPDATE pair SET a = 2 WHERE a = 99;
COMMIT;
UPDATE whole SET a = a + 100, b = 'Ä' WHERE a < 4;
UPDATE indexed SET code = code + 1 WHERE id < 4;
UPDATE indexed SET id = id + 50 WHERE id > 7;
DELETE FROM indexed WHERE id = 5;
UPDATE plain SET id = id + 1000 WHERE id > 1000;
UPDATE plain SET note = NULL, tags = '{}', doc = 'null' WHERE id IN (1, 2);
DELETE FROM plain WHERE id BETWEEN 20 AND 25;
BEGIN; DELETE FROM plain WHERE id = 30; INSERT INTO plain (id, flag) VALUES (30, false);
DELETE FROM plain WHERE id = 30; INSERT INTO plain (id, note, flag) VALUES (30, 'again', true); COMMIT;
UPDATE "Größe"."Ta ble/1" SET "Kéy_""1""_é" = 7 WHERE "a.b" IS NULL;
INSERT INTO only_in VALUES (4, 'four');
"""
THIRD = f"""
UPDATE pair SET a = a + 10;
BEGIN; INSERT INTO whole VALUES ('gone', 500, 'x'); TRUNCATE whole, pair;
INSERT INTO whole VALUES ('new', 1, {LONG}); UPDATE whole SET a = 2; COMMIT;
INSERT INTO pair VALUES ('y', 1, {LONG}); UPDATE pair SET a = 3; UPDATE plain SET price = 0 WHERE id > 10;
"""
CONFIG = {
    "topic.prefix": "shop",
    "skipped.operations": "none",
    "interval.handling.mode": "string",
    "provide.transaction.metadata": "true",
    "heartbeat.interval.ms": "100",
}


class Stream:
    """`pgcdc stream --format debezium` into a directory, with one database's changes."""

    def __init__(self, database: Any, path: Path, *arguments: str, **config: str) -> None:
        self._database, self.path = database, path
        self._slot = database.create_slot()
        properties = {**CONFIG, **{name.replace("_", "."): value for name, value in config.items()}}
        options = [option for name, value in properties.items() for option in ("-c", f"{name}={value}")]
        options = [*options, "--format", "debezium", "--messages", "-D", path, *arguments]
        self._line = stream_command(database.uri, self._slot, *options, publications=["p"])

    def up_to_now(self) -> None:
        subprocess.run([*self._line, "--endpos", "now"], check=True, timeout=60)

    def killed_after(self, seconds: float) -> None:
        """Run the stream, and kill it with SIGKILL."""
        with subprocess.Popen([*self._line, "-F", "50ms", "--rotate-interval", "1s"]) as process:
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)


def rows_of(database: Any, table: str) -> list[tuple[str | None, ...]]:
    """Read a table's rows as text, in the form in which lake tables hold them."""
    schema, _, name = table.partition(".")
    columns = database.execute(
        "SELECT a.attname, t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " WHERE attrelid = format('%%I.%%I', %s::text, %s::text)::regclass"
        " AND attnum > 0 AND NOT attisdropped"
        " ORDER BY attnum", (schema, name),
    ).fetchall()  # fmt: skip
    shown = ", ".join(_shown('"' + column.replace('"', '""') + '"', kind) for column, kind in columns)
    return sorted(database.execute(f'SELECT {shown} FROM "{schema}"."{name}"').fetchall(), key=str)


def _shown(column: str, kind: str) -> str:
    if kind == "timestamptz":
        return f"({column} AT TIME ZONE 'UTC')::text"
    if kind == "float8":
        return f"({column} * 1e6)::int8::text"
    if kind in {"_text", "_int4"}:
        return f"to_json({column})::text"
    return f"{column}::text"


def rows_in(spark: SparkSession, warehouse: Path, table: TableSchema) -> list[tuple[str | None, ...]]:
    frame = spark.read.format("delta").load(str(table_path(warehouse, table)))
    shown = []
    for field in frame.schema:
        name, kind = "`" + field.name.replace("`", "``") + "`", field.dataType.simpleString()
        text = f"CAST({name} AS STRING)"
        if kind == "double":
            text = f"CAST(CAST(round({name} * 1e6) AS BIGINT) AS STRING)"
        elif kind == "binary":
            text = f"'\\\\x' || lower(hex({name}))"
        elif kind.startswith("array"):
            text = f"to_json({name}, map('ignoreNullFields', 'false'))"
        shown.append(text)
    return sorted((tuple(row) for row in frame.selectExpr(*shown).collect()), key=str)


def schemas(directory: Path) -> dict[str, TableSchema]:
    found = [
        TableSchema.from_json(json.loads(path.read_text())) for path in (directory / "schemas").iterdir()
    ]
    return {table.display: table for table in found}


def test_the_tables_are_postgresqls(spark: SparkSession, tmp_path: Path, database18: Any) -> None:
    """Three runs of the stream, two of the merge; events that are no rows, such as tombstones, make none."""
    database18.execute(SETUP)
    stream = Stream(database18, tmp_path / "in")
    for number, script in enumerate((FIRST, SECOND, THIRD)):
        database18.execute(script)
        stream.up_to_now()
        if number != 1:
            summary = merge(spark, MergeOptions(str(tmp_path / "in"), str(tmp_path / "wh")))
            assert summary["error"] is None
            assert [warning.partition(" ")[0] for warning in summary["warnings"]] == ['"public.only_in"']
    described = schemas(tmp_path / "in")
    for table in TABLES:
        assert rows_in(spark, tmp_path / "wh", described[table]) == rows_of(database18, table), table


def write(uri: str, seed: int, ended: threading.Event) -> None:
    """Change rows of `pair` at random, in transactions of several changes, some of which fail."""
    pick = random.Random(seed)
    acts = [
        f"INSERT INTO pair VALUES ('x', %(n)s, {LONG}) ON CONFLICT DO NOTHING",
        "UPDATE pair SET b = CASE b WHEN 'x' THEN 'y' ELSE 'x' END WHERE a = %(n)s",
        "UPDATE pair SET a = -a WHERE a = %(n)s",
        f"UPDATE pair SET body = {LONG} WHERE a = %(n)s",
        "DELETE FROM pair WHERE a = -%(n)s",
    ]
    with psycopg.connect(uri, autocommit=True) as connection:
        while not ended.is_set():
            expected = contextlib.suppress(psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected)
            with expected, connection.transaction():
                for _ in range(pick.choice([1, 2, 6])):
                    connection.execute(pick.choice(acts), {"n": pick.randrange(1, 15)})
            ended.wait(0.005)


def test_order_and_pairs_survive_kills(spark: SparkSession, tmp_path: Path, database18: Any) -> None:
    """Transactions overlap, and the stream is killed and started again in the middle of them."""
    database18.execute(SETUP)
    bare = {"value_converter_schemas_enable": "false"}
    stream = Stream(database18, tmp_path / "in", "--record", "value", "--compression", "zstd", **bare)
    ended = threading.Event()
    writers = [threading.Thread(target=write, args=(database18.uri, seed, ended)) for seed in range(3)]
    for writer in writers:
        writer.start()
    for seconds in (1, 1, 2):
        stream.killed_after(seconds)
    ended.set()
    for writer in writers:
        writer.join()
    stream.up_to_now()
    assert merge(spark, MergeOptions(str(tmp_path / "in"), str(tmp_path / "wh")))["error"] is None
    pair = schemas(tmp_path / "in")["public.pair"]
    rows = rows_of(database18, "public.pair")
    assert rows
    assert rows_in(spark, tmp_path / "wh", pair) == rows


def described(name: str, **columns: PgType) -> TableSchema:
    """A table with the key id, whose column v has a default."""
    table = table_schema(name, {"id": pg_type(23), **columns}, ("id",))
    facts = {column: ColumnFacts("'x'::text" if column == "v" else None) for column in ("id", *columns)}
    return replace(table, facts=TableFacts(("id",), None, facts))


def row(number: int, **values: str | None) -> Change:
    return Change("I", 10, number, {"id": str(number), **values})


TEXT, TEXTS, NUMERIC, INTERVAL, TIMETZ, TIME, TSVECTOR = 25, 1009, 1700, 1186, 1266, 1083, 3614
PRECISE = {"decimal_handling_mode": "precise"}

MASKS = (("column.mask.with.5.chars", (re.compile(r"public\.masked\.v"),)),)
OTHER_FORMAT = "--format jsonl or arrow"
ONE = [row(1, v="1")]
TRUNCATE = Change("T", 10, 2)
UNSENT = Change("U", 10, 2, {"id": "1", "v": None}, unchanged=frozenset({"v"}))
LOST: dict[str, tuple[int, list[Change], dict[str, Any], str, str]] = {
    "null": (TEXT, [row(1, v=None)], {}, "value.converter.replace.null.with.default", "=false"),
    "skipped": (TEXT, [*ONE, TRUNCATE], {"skipped_operations": ("t",)}, "skipped.operations", "=none"),
    "alike": (TEXT, [row(1, v="__debezium_unavailable_value")], {}, "unavailable.value.placeholder", "=TEXT"),
    "zeros": (NUMERIC, [row(1, v="1.50")], PRECISE, "decimal.handling.mode", "=string"),
    "nan": (NUMERIC, [row(1, v="NaN")], PRECISE, "decimal.handling.mode", "=string"),
    "unsent": (NUMERIC, [*ONE, UNSENT], PRECISE, "null for an unchanged TOAST value", OTHER_FORMAT),
    "square": (TEXTS, [row(1, v="{{a},{b}}")], {}, "one dimension", OTHER_FORMAT),
    "span": (INTERVAL, [], {"interval_handling_mode": "numeric"}, "interval.handling.mode", "=string"),
    "doubles": (NUMERIC, ONE, {"decimal_handling_mode": "double"}, "decimal.handling.mode", "=string"),
    "clock": (TIME, [], {"time_precision_mode": "connect"}, "time.precision.mode", "=adaptive"),
    "zone": (TIMETZ, [], {}, "time zone", OTHER_FORMAT),
    "unknown": (TSVECTOR, [], {"include_unknown_datatypes": False}, "include.unknown.datatypes", "=true"),
    "masked": (TEXT, ONE, {"masks": MASKS}, "column.mask.with", OTHER_FORMAT),
}
"""By table: the type of v, changes, the configuration, and what the error and its hint name."""


def test_what_events_do_not_tell_stops_their_table(spark: SparkSession, tmp_path: Path) -> None:
    """Only where a value was lost, or any value would be; the hint names the property that loses it."""
    directory = Directory(tmp_path / "in", DebeziumFormat(EXACT))
    for name, (oid, changes, config, _, _) in LOST.items():
        directory.encoding = DebeziumFormat(replace(EXACT, **config))
        directory.segment([(described(name, v=pg_type(oid)), changes or [TRUNCATE])])
    without = {"column_exclude_list": (re.compile(r"public\.fine\.zone"),)}
    directory.encoding = DebeziumFormat(replace(EXACT, **PRECISE, **without, skipped_operations=("t",)))
    fine = described("fine", v=pg_type(TEXT), zone=pg_type(TIMETZ), n=pg_type(NUMERIC))
    directory.segment([(fine, [row(1, v="", zone="12:00:00+02", n="1.5")])])
    summary = merge_into(spark, directory, tmp_path / "wh")
    tables = {table["table"].removeprefix("public."): table for table in summary["tables"]}
    for name, (_, _, _, why, remedy) in LOST.items():
        problem = str(tables[name]["problem"])
        assert problem.startswith(f'could not merge "public.{name}": '), problem
        assert "is not stored exactly in its events" in problem
        assert why in problem
        assert remedy in tables[name]["hint"]
    assert tables["fine"]["problem"] is None
    assert sorted(path.name for path in (tmp_path / "wh" / "public").iterdir()) == ["fine"]
    left = spark.read.format("delta").load(str(table_path(tmp_path / "wh", fine)))
    assert [row.asDict() for row in left.collect()] == [{"id": 1, "v": "", "n": "1.5"}]


def test_what_events_do_not_tell_is_read_from_a_directory_of_any_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark would read brackets in a path as a pattern."""
    table = table_schema("t", {"id": pg_type(23), "note": pg_type(TEXT)}, ("id",))
    directory = Directory(tmp_path / "in[1]", DebeziumFormat(EXACT))
    directory.segment([(table, [Change("I", 10, 0, {"id": "1", "note": "__debezium_unavailable_value"})])])
    (result,) = merge_into(spark, directory, tmp_path / "wh")["tables"]
    assert "unavailable.value.placeholder" in result["problem"]
