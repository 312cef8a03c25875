"""Read a table's changes from a directory, whatever its format, and the rows that result from them."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from segments import contents

from pgcdc_cli.lsn import Lsn

Row = dict[str, Any]


class RowChange(NamedTuple):
    """One change: `op` as in JSON lines, its `place` in history, the row before and after it.

    `lacks` names the columns with unchanged TOAST. A row of any snapshot, and one that is read again while
    streaming, has the `op` `R`.
    """

    op: str
    place: tuple
    before: Row
    after: Row
    lacks: list[str]


def row_changes(out: Path, table: str) -> Iterator[RowChange]:
    """Yield a table's changes in the order of the files; two Debezium events of one change count as one."""
    for number, item in enumerate(contents(out).get(table, [])):
        if isinstance(item, dict):
            place = (item["_commit_lsn"], item["_op"] != "R", item["_seq"])
            yield RowChange(item["_op"], place, item["_old"] or item, item, item["_unchanged"] or [])
        elif isinstance(item, bytes):
            line = json.loads(item)
            yield from _of_event(line, number) if "value" in line else [_of_line(line)]


def _of_line(line: Row) -> RowChange:
    place = (Lsn.parse(line["commit_lsn"]), line["op"] != "R", line["seq"])
    before = line.get("old") or line.get("key") or {}
    return RowChange(line["op"], place, before, line.get("new") or {}, line.get("unchanged", []))


def _of_event(line: Row, number: int) -> Iterator[RowChange]:
    """Skip tombstones, and the delete of the two events that Debezium makes of an update of the key."""
    event, headers = line["value"], line.get("headers", {})
    if event is None or "__debezium.newkey" in headers:
        return
    after = event["after"] or {}
    lacks = [name for name, value in after.items() if value == "__debezium_unavailable_value"]
    if "__debezium.oldkey" in headers:
        yield RowChange("U", (number,), headers["__debezium.oldkey"], after, lacks)
    else:
        before = line["key"] or event["before"] or {}
        yield RowChange(event["op"].upper().replace("C", "I"), (number,), before, after, lacks)


COLUMNS = {
    "accounts": {"id": int, "owner": str, "balance": lambda value: Decimal(str(value)), "seen": None},
    "documents": {"id": str, "title": str, "body": str},
    "audit": {"account": int, "note": str},
}
"""The columns of the tables of `stream_runs.TABLES`; the first one is the key, except in audit."""


def source_rows(database: Any, table: str) -> Counter[tuple]:
    """Count the rows of the source."""
    query = f"SELECT {', '.join(COLUMNS[table])} FROM {table}"
    return Counter(
        _row(table, dict(zip(COLUMNS[table], row, strict=True))) for row in database.execute(query)
    )


def folded_rows(out: Path, table: str) -> Counter[tuple]:
    """Count the rows that result from all changes; an insert must have a new key, others a known one."""
    rows = Counter[tuple]()
    by_key = dict[Any, Row]()
    key = None if table == "audit" else next(iter(COLUMNS[table]))
    for change in row_changes(out, f"public.{table}"):
        if change.op == "T":
            by_key.clear()
            rows.clear()
        elif key is None:
            _change_one_of(rows, change, table)
        else:
            _change_by_key(by_key, change, key)
    return rows + Counter(_row(table, row) for row in by_key.values())


def _change_by_key(rows: dict[Any, Row], change: RowChange, key: str) -> None:
    before = {} if change.op in {"R", "I"} else rows.pop(change.before[key])
    if change.op != "D":
        assert change.after[key] not in rows
        rows[change.after[key]] = change.after | {name: before[name] for name in change.lacks}


def _change_one_of(rows: Counter[tuple], change: RowChange, table: str) -> None:
    if change.op not in {"R", "I"}:
        rows[_row(table, change.before)] -= 1
        assert min(rows.values()) >= 0
    if change.op != "D":
        rows[_row(table, change.after)] += 1


def _row(table: str, values: Row) -> tuple:
    """Convert each format's values to those that psycopg returns."""
    return tuple(
        None if values[name] is None else (of or _moment)(values[name]) for name, of in COLUMNS[table].items()
    )


def _moment(value: datetime | str) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)
