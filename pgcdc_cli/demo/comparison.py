"""Compare lake tables with their source, row by row, and read them as each merge left them.

Both sides are read as Python values. PostgreSQL converts its side to what the merge promises for the type:
text for types that lake tables don't have, NULL for an infinite or far date. pgcdc's own decoding takes no
part, so that an error in it can't go unnoticed.

In the versions that a merge left, all tables have the same position, so the shop's foreign keys hold between
them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from psycopg import sql

from pgcdc_cli.demo.report import LakeView, Moment, OrderView
from pgcdc_cli.demo.shop import SCHEMA, TABLES
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.spark.warehouse import read_record

_AS_THEY_ARE = {"int2", "int4", "int8", "float8", "bool", "bytea", "text", "varchar", "bpchar"}
_RANGES = {
    "timestamptz": ("0001-01-01 00:00:00Z", "9999-12-31 23:59:59.999999Z"),
    "timestamp": ("0001-01-01", "9999-12-31 23:59:59.999999"),
    "date": ("0001-01-01", "9999-12-31"),
}
_WIDEST_DECIMAL = 38

Row = tuple[Any, ...]

_COLUMNS = """
SELECT a.attname, t.typname, e.typname, a.atttypmod,
    (SELECT array_position(i.indkey::int2[], a.attnum) FROM pg_index i
     WHERE i.indrelid = a.attrelid AND i.indisprimary)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

_ORPHANS = """
SELECT (SELECT count(*) FROM orders o LEFT ANTI JOIN customers c ON o.customer_id = c.id)
    + (SELECT count(*) FROM order_lines l LEFT ANTI JOIN orders o ON l.order_id = o.id)
"""
_CHANGED = """
SELECT coalesce(l.id, e.id), e.status, e.total, l.status, l.total
FROM earlier e FULL JOIN later l ON e.id = l.id
WHERE e.id IS NULL OR l.id IS NULL OR e.status <> l.status ORDER BY 1
"""


@dataclass(frozen=True)
class ComparedColumn:
    """A source column; `element` is an array's element type, `key` its position in the primary key."""

    name: str
    type: str
    element: str | None
    typmod: int
    key: int | None


@dataclass(frozen=True)
class Comparison:
    source_rows: int
    copy_rows: int
    differences: Sequence[str]


def compare(connection: psycopg.Connection[Any], table: str, copy: Path, *, limit: int = 5) -> Comparison:
    """Compare the table named `schema.table` with the Delta table in `copy`.

    `differences` has at most `limit` entries, each with key, column and both values.
    """
    columns = _columns(connection, table)
    source = _by_key(columns, _source_rows(connection, table, columns))
    if not (copy / "_delta_log").is_dir():
        return Comparison(len(source), 0, [f"there is no Delta table in {copy}"])
    names, rows = _query({"copy": DeltaTable(copy)}, "SELECT * FROM copy")
    if sorted(names) != sorted(column.name for column in columns):
        wanted = ", ".join(column.name for column in columns)
        return Comparison(len(source), len(rows), [f"columns are {', '.join(names)}, not {wanted}"])
    order = [names.index(column.name) for column in columns]
    arranged = [tuple(row[index] for index in order) for row in rows]
    target = _by_key(columns, arranged)
    differences = [f"{len(arranged) - len(target)} keys occur twice"] * (len(arranged) > len(target))
    found = _differences(columns, source, target)
    differences += [difference for difference, _ in zip(found, range(limit), strict=False)]
    return Comparison(len(source), len(arranged), differences)


def _columns(connection: psycopg.Connection[Any], table: str) -> list[ComparedColumn]:
    return [ComparedColumn(*row) for row in connection.execute(_COLUMNS, (table,))]


def _expression(column: ComparedColumn) -> sql.Composable:
    """Write the expression with which PostgreSQL computes the value that a lake table should have."""
    name = sql.Identifier(column.name)
    if column.type in _RANGES:
        first, last = map(sql.Literal, _RANGES[column.type])
        return sql.SQL("CASE WHEN {0} BETWEEN {1} AND {2} THEN {0} END").format(name, first, last)
    brackets = "" if column.element is None else "[]"
    scalar = column.element or column.type
    if scalar in _AS_THEY_ARE or scalar in _RANGES or (scalar == "numeric" and _fits_decimal(column.typmod)):
        return name
    if scalar == "float4":
        # The server widens it: psycopg reads the shortest decimal, which is another double.
        return sql.SQL("{}::float8" + brackets).format(name)
    if column.element is not None:
        return sql.SQL("{}::text::text[]").format(name)
    # concat uses the type's output function; a cast to text adds a netmask to an inet.
    return sql.SQL("CASE WHEN {0} IS NOT NULL THEN concat({0}) END").format(name)


def _fits_decimal(typmod: int) -> bool:
    """Check the precision in a typmod: 4 + (precision << 16 | scale), or -1 for none (numeric.c)."""
    return 0 <= (typmod - 4) >> 16 <= _WIDEST_DECIMAL


def _source_rows(connection: psycopg.Connection[Any], table: str, columns: list[ComparedColumn]) -> list[Row]:
    fields = sql.SQL(", ").join(map(_expression, columns))
    source = sql.Identifier(*table.split("."))
    with connection.transaction():
        connection.execute("SET LOCAL TimeZone = 'UTC'")
        connection.execute("SET LOCAL DateStyle = 'ISO'")
        connection.execute("SET LOCAL IntervalStyle = 'postgres'")
        return connection.execute(sql.SQL("SELECT {} FROM {}").format(fields, source)).fetchall()


def _by_key(columns: list[ComparedColumn], rows: Sequence[Row]) -> dict[Row, Row]:
    key = sorted((column.key, index) for index, column in enumerate(columns) if column.key is not None)
    return {tuple(row[index] for _, index in key): row for row in rows}


def _differences(
    columns: list[ComparedColumn], source: dict[Row, Row], target: dict[Row, Row]
) -> Iterator[str]:
    names = [name for _, name in sorted((c.key, c.name) for c in columns if c.key is not None)]
    for key in source.keys() | target.keys():
        shown = ", ".join(f"{name}={value}" for name, value in zip(names, key, strict=True))
        if key not in target:
            yield f"{shown}: the row is missing from the copy"
        elif key not in source:
            yield f"{shown}: the row is in the copy only"
        else:
            yield from _row_differences(shown, columns, source[key], target[key])


def _row_differences(key: str, columns: list[ComparedColumn], source: Row, target: Row) -> Iterator[str]:
    for column, wanted, found in zip(columns, source, target, strict=True):
        if not _same(wanted, found):
            values = f"{_short(wanted)} in the source, {_short(found)} in the copy"
            yield f"{key}, column {column.name}: {values}"


def _same(wanted: object, found: object) -> bool:
    """Whether type and value are equal: 1 is neither True nor 1.0, and NaN equals NaN."""
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(_same, wanted, found))
    if isinstance(wanted, float) and isinstance(found, float):
        return wanted == found or (math.isnan(wanted) and math.isnan(found))
    return type(wanted) is type(found) and wanted == found


def _short(value: object) -> str:
    """Quote texts, so that the text 1 is not the number 1."""
    text = repr(value) if isinstance(value, str | bytes | list) else str(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def read_moment(warehouse: Path) -> Moment:
    """Read from the warehouse's record how far it is merged, and the version of each table."""
    rows = {row.table: row for row in read_record(str(warehouse)) or ()}
    versions = {name: rows[f"{SCHEMA}.{name}"].version for name in TABLES if f"{SCHEMA}.{name}" in rows}
    known = {name: version for name, version in versions.items() if version is not None}
    if len(known) < len(TABLES):
        lacking = ", ".join(name for name in TABLES if name not in known)
        raise PgcdcError(ErrorKind.UNEXPECTED, f'could not find all tables in "{warehouse}": no {lacking}')
    return Moment(rows[""].lsn, known)


def read_lake(warehouse: Path, moment: Moment) -> LakeView:
    """Count the rows at a moment, and those that refer to a customer or an order that doesn't exist."""
    tables = {name: _table(warehouse, moment, name) for name in TABLES}
    counts = {name: _number({"t": table}, "SELECT count(*) FROM t") for name, table in tables.items()}
    return LakeView(moment, counts, _number(tables, _ORPHANS))


def changed_orders(warehouse: Path, earlier: Moment, later: Moment) -> list[OrderView]:
    """Pick some orders: three whose status changed between the moments, one deleted, and one new."""
    moments = {"earlier": earlier, "later": later}
    tables = {name: _table(warehouse, moment, "orders") for name, moment in moments.items()}
    _, rows = _query(tables, _CHANGED)
    found = [OrderView(row[0], _state(*row[1:3]), _state(*row[3:])) for row in rows]
    kept = (order for order in found if order.earlier and order.later)
    gone = (order for order in found if not order.later)
    new = (order for order in found if not order.earlier)
    return [*islice(kept, 3), *islice(gone, 1), *islice(new, 1)]


def _table(warehouse: Path, moment: Moment, name: str) -> DeltaTable:
    return DeltaTable(warehouse / SCHEMA / name, version=moment.versions[name])


def _number(tables: Mapping[str, DeltaTable], query: str) -> int:
    _, [(number,)] = _query(tables, query)
    return int(number)


def _query(tables: Mapping[str, DeltaTable], query: str) -> tuple[list[str], list[Row]]:
    """Return names and rows; the query engine supports deletion vectors, the dataset reader does not."""
    engine = QueryBuilder()
    for name, table in tables.items():
        engine.register(name, table)
    found = pa.table(engine.execute(query).read_all())
    columns = [column.to_pylist() for column in found.columns]
    return found.column_names, list(zip(*columns, strict=True))


def _state(status: str | None, total: object) -> str | None:
    return None if status is None else f"{status}, {'no total' if total is None else total}"
