"""What the demo shows of the past: each merge's versions, complete, and what changed in between."""

import json

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pgcdc_cli.demo import comparison, shop
from pgcdc_cli.demo.report import Moment, OrderView
from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.lsn import Lsn

ORDERS = pa.schema(
    [("id", pa.int64()), ("customer_id", pa.string()), ("status", pa.string()), ("total", pa.string())]
)
LINES = pa.schema([("order_id", pa.int64())])
EARLIER = [(1, "ada", "new", "9.50"), (2, "ada", "new", "5.00"), (3, "eve", "paid", None)]
LATER = [(1, "ada", "paid", "9.60"), (2, "ada", "new", "6.00"), (4, "ada", "new", None)]


def write(path, schema, rows):
    columns = zip(*rows, strict=True)
    table = pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema
    )
    write_deltalake(path, table, mode="overwrite")


def moment(lsn, version):
    return Moment(Lsn(lsn), dict.fromkeys(shop.TABLES, version))


@pytest.fixture
def lake(tmp_path):
    """A shop after two merges; in the second one, order 3 is gone but its lines are still there."""
    for orders in (EARLIER, LATER):
        for name in ("products", "stock", "promotions"):
            write(tmp_path / "shop" / name, LINES, [(1,)])
        write(tmp_path / "shop" / "customers", pa.schema([("id", pa.string())]), [("ada",), ("eve",)])
        write(tmp_path / "shop" / "orders", ORDERS, orders)
        write(tmp_path / "shop" / "order_lines", LINES, [(1,), (3,), (3,)])
    return tmp_path


def test_each_moment_has_its_own_rows(lake):
    earlier = comparison.read_lake(lake, moment(1, 0))
    assert earlier.rows == {**dict.fromkeys(shop.TABLES, 1), "customers": 2, "orders": 3, "order_lines": 3}
    assert earlier.orphans == 0


def test_rows_that_refer_to_no_row_are_counted(lake):
    assert comparison.read_lake(lake, moment(2, 1)).orphans == 2
    mixed = Moment(Lsn(2), {**dict.fromkeys(shop.TABLES, 1), "orders": 0})
    assert comparison.read_lake(lake, mixed).orphans == 0


def test_orders_are_shown_then_and_now(lake):
    assert comparison.changed_orders(lake, moment(1, 0), moment(2, 1)) == [
        OrderView(1, "new, 9.50", "paid, 9.60"),
        OrderView(3, "paid, no total", None),
        OrderView(4, None, "new, no total"),
    ]
    assert comparison.changed_orders(lake, moment(1, 1), moment(2, 1)) == []


def record(lake, names):
    row = {"stream_id": "s", "mode": "merge", "path": None, "segment": 2, "lsn": "0/2A", "keyless": False}
    rows = [
        {**row, "table": "", "version": None},
        *({**row, "table": f"shop.{name}", "version": 7} for name in names),
    ]
    (lake / "_pgcdc.json").write_text(
        json.dumps({"rows": [{**row, "problem": None, "merged_at": None} for row in rows]})
    )


def test_versions_are_those_of_the_warehouses_record(tmp_path):
    record(tmp_path, shop.TABLES)
    assert comparison.read_moment(tmp_path) == moment(0x2A, 7)


def test_a_warehouse_without_all_tables_is_refused(tmp_path):
    with pytest.raises(PgcdcError, match="could not find all tables"):
        comparison.read_moment(tmp_path)
    record(tmp_path, ["customers", "products", "orders", "stock", "promotions"])
    with pytest.raises(PgcdcError, match="no order_lines"):
        comparison.read_moment(tmp_path)
