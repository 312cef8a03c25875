"""Rows as earlier changes of the same run left them: what an update replaced that brings no old row."""

import json
from collections import OrderedDict
from typing import Any, TypeAlias

from pgcdc_cli.lsn import Lsn

Row: TypeAlias = dict[str, Any]
Change: TypeAlias = dict[str, Any]

_ROWS = 10_000
_LONGEST = 1_000
"""Characters; a longer value is not remembered."""


class EarlierRows:
    """Completes the old images of changes, objects of JSON lines, from those before; remembers some rows."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[str, ...], tuple[Lsn, Row]] = OrderedDict()

    def complete(self, change: Change) -> Change:
        """Give a change with all old values that are known, and remember the row that it leaves."""
        if change["op"] == "T":
            self._forget(change["schema"], change["table"])
        if change["op"] not in "IRUD" or not change.get("key"):
            return change
        earlier = self._take(change)
        if change["op"] != "D":
            self._keep(change, earlier)
        return {**change, "old": earlier | change.get("old", {})} if change["op"] in "UD" else change

    def _take(self, change: Change) -> Row:
        """Remove the row that a change finds. One that was left later is no earlier row: it is read again."""
        old = change.get("old", {})
        key = {name: old.get(name, value) for name, value in change["key"].items()}
        lsn, row = self._rows.pop(_name(change, key), (Lsn(0), {}))
        return row if lsn < Lsn.parse(change["lsn"]) else {}

    def _keep(self, change: Change, earlier: Row) -> None:
        unfit = {name.removeprefix("new.") for name in change.get("json_null", ())}
        sent = {
            name: value
            for name, value in change["new"].items()
            if name not in unfit and not (isinstance(value, str) and len(value) > _LONGEST)
        }
        known = sent.keys() | set(change.get("unchanged", ()))
        row = {name: value for name, value in earlier.items() if name in known} | sent
        self._rows[_name(change, change["key"])] = Lsn.parse(change["lsn"]), row
        if len(self._rows) > _ROWS:
            self._rows.popitem(last=False)

    def _forget(self, schema: str, table: str) -> None:
        for name in [name for name in self._rows if name[:2] == (schema, table)]:
            del self._rows[name]


def _name(change: Change, key: Row) -> tuple[str, ...]:
    return change["schema"], change["table"], json.dumps(key)
