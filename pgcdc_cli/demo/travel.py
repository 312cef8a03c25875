"""The lake as each merge left it, read without Spark: its tables at the versions that `pgcdc status` names.

At these versions all tables are of one moment, so the shop's foreign keys hold between them.
"""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from pgcdc_cli.demo.report import LakeView, Moment, OrderView
from pgcdc_cli.demo.shop import SCHEMA, TABLES
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.spark.warehouse import read_record

_ORPHANS = """
SELECT (SELECT count(*) FROM orders o LEFT ANTI JOIN customers c ON o.customer_id = c.id)
    + (SELECT count(*) FROM order_lines l LEFT ANTI JOIN orders o ON l.order_id = o.id)
"""
_CHANGED = """
SELECT coalesce(l.id, e.id), e.status, e.total, l.status, l.total
FROM earlier e FULL JOIN later l ON e.id = l.id
WHERE e.id IS NULL OR l.id IS NULL OR e.status <> l.status ORDER BY 1
"""


def take_down(warehouse: Path) -> Moment:
    """Read out of the warehouse's record how far it is merged, and the version of each table."""
    rows = {row.table: row for row in read_record(str(warehouse)) or ()}
    versions = {name: rows[f"{SCHEMA}.{name}"].version for name in TABLES if f"{SCHEMA}.{name}" in rows}
    known = {name: version for name, version in versions.items() if version is not None}
    if len(known) < len(TABLES):
        lacking = ", ".join(name for name in TABLES if name not in known)
        raise PgcdcError(ErrorKind.UNEXPECTED, f'could not find all tables in "{warehouse}": no {lacking}')
    return Moment(rows[""].lsn, known)


def view(warehouse: Path, moment: Moment) -> LakeView:
    """Count a moment's rows, and those that refer to a customer or an order that isn't there."""
    tables = {name: _table(warehouse, moment, name) for name in TABLES}
    counts = {name: _query({"t": table}, "SELECT count(*) FROM t")[0][0] for name, table in tables.items()}
    return LakeView(moment, counts, _query(tables, _ORPHANS)[0][0])


def changed_orders(warehouse: Path, earlier: Moment, later: Moment) -> list[OrderView]:
    """Pick some orders: three whose status has changed in between, one that is gone and one that is new."""
    moments = {"earlier": earlier, "later": later}
    tables = {name: _table(warehouse, moment, "orders") for name, moment in moments.items()}
    found = [OrderView(row[0], _state(*row[1:3]), _state(*row[3:])) for row in _query(tables, _CHANGED)]
    kept = (order for order in found if order.earlier and order.later)
    gone = (order for order in found if not order.later)
    new = (order for order in found if not order.earlier)
    return [*islice(kept, 3), *islice(gone, 1), *islice(new, 1)]


def _table(warehouse: Path, moment: Moment, name: str) -> DeltaTable:
    return DeltaTable(warehouse / SCHEMA / name, version=moment.versions[name])


def _query(tables: Mapping[str, DeltaTable], query: str) -> list[tuple[Any, ...]]:
    engine = QueryBuilder()
    for name, table in tables.items():
        engine.register(name, table)
    columns = [column.to_pylist() for column in pa.table(engine.execute(query).read_all()).columns]
    return list(zip(*columns, strict=True))


def _state(status: str | None, total: object) -> str | None:
    return None if status is None else f"{status}, {'no total' if total is None else total}"
