"""The changes in a log, read by SQL with protocol 1: whole transactions in the order of their commits."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import psycopg

from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode

Row = dict[str, Any]


class Change(NamedTuple):
    """One change, as every format should represent it."""

    commit_lsn: int
    seq: int
    lsn: int
    xid: int
    op: str
    table: str | None
    new: Row | None = None
    old: Row | None = None
    unchanged: tuple[str, ...] = ()
    detail: Row | None = None
    """A truncate's options, a message's prefix and content."""
    columns: tuple[str, ...] = ()
    """All columns that the table had."""


_SAY_NOTHING = (m.Commit, m.StreamAbort)
"""PostgreSQL 18 sends aborts even without streaming, of transactions that had outgrown its memory."""

INTEGERS = {20, 21, 23}
BOOLEAN = 16


def read_log(uri: str, slot: str, *, messages: bool) -> Iterator[Change]:
    """Read a slot up to the log's end, without confirming anything."""
    query = (
        "SELECT lsn::text, data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'pub', 'messages', %s)"
    )
    with psycopg.connect(uri, autocommit=True) as connection, connection.cursor(binary=True) as cursor:
        rows = cursor.execute(query, (slot, str(messages).lower()))
        yield from _changes((int(Lsn.parse(lsn)), decode(data)) for lsn, data in rows)


def _changes(log: Iterable[tuple[int, m.Message]]) -> Iterator[Change]:
    relations: dict[int, m.Relation] = {}
    begin, seq = m.Begin(Lsn(0), 0, 0), 0
    for lsn, message in log:
        if isinstance(message, m.Begin):
            begin, seq = message, 0
        elif isinstance(message, m.Relation):
            relations[message.oid] = message
        elif not isinstance(message, _SAY_NOTHING):
            for change in _one(message, relations):
                stamps = {"commit_lsn": int(begin.final_lsn), "seq": seq, "lsn": lsn, "xid": begin.xid}
                yield change._replace(**stamps)
                seq += 1  # noqa: SIM113  it goes on over several messages


def _one(message: m.Message, relations: dict[int, m.Relation]) -> Iterator[Change]:
    nowhere = Change(0, 0, 0, 0, "M", None)
    match message:
        case m.LogicalMessage(prefix=prefix, content=content):
            yield nowhere._replace(detail={"prefix": prefix, "content": content.decode()})
        case m.Truncate():
            options = {"cascade": message.cascade, "restart_identity": message.restart_identity}
            for oid in message.relation_oids:
                yield _of_table(relations[oid])._replace(op="T", detail=options)
        case m.Insert(oid, new):
            yield _of_table(relations[oid])._replace(op="I", **_new(relations[oid], new))
        case m.Update(oid, old, new):
            both = _new(relations[oid], new) | {"old": _old(relations[oid], old)}
            yield _of_table(relations[oid])._replace(op="U", **both)
        case m.Delete(oid, old):
            yield _of_table(relations[oid])._replace(op="D", old=_old(relations[oid], old))
        case _:
            raise AssertionError(message)


def _of_table(relation: m.Relation) -> Change:
    columns = tuple(column.name for column in relation.columns)
    return Change(0, 0, 0, 0, "", f"{relation.namespace}.{relation.name}", columns=columns)


def _new(relation: m.Relation, row: m.FullTuple) -> dict[str, Any]:
    pairs = list(zip(relation.columns, row.values, strict=True))
    return {
        "new": {c.name: _plain(c, v) for c, v in pairs if not isinstance(v, m.UnchangedToast)},
        "unchanged": tuple(c.name for c, v in pairs if isinstance(v, m.UnchangedToast)),
    }


def _old(relation: m.Relation, row: m.KeyTuple | m.FullTuple | None) -> Row | None:
    if row is None:
        return None
    pairs = zip(relation.columns, row.values, strict=True)
    return {c.name: _plain(c, v) for c, v in pairs if isinstance(row, m.FullTuple) or c.key}


def _plain(column: m.RelationColumn, value: m.TupleValue) -> int | bool | str | None:
    if isinstance(value, m.Null):
        return None
    assert isinstance(value, m.Text)
    text = value.data.decode()
    if column.type_oid == BOOLEAN:
        return text == "t"
    return int(text) if column.type_oid in INTEGERS else text


def fold(changes: Iterable[Change], keys: dict[str, str]) -> dict[str, dict[Any, Row]]:
    """The rows that remain in each of these tables, by the value of their key."""
    tables: dict[str, dict[Any, Row]] = {table: {} for table in keys}
    for change in changes:
        if change.table in keys:
            _apply(tables[change.table], keys[change.table], change)
    return tables


def _apply(rows: dict[Any, Row], key: str, change: Change) -> None:
    if change.op == "T":
        rows.clear()
        return
    gone = (change.old or change.new)[key] if change.op in "UD" else None
    before = rows.pop(gone) if change.op in "UD" else {}
    if change.op in "IU":
        assert change.new[key] not in rows
        kept = {name: (change.old or {}).get(name, before[name]) for name in change.unchanged}
        rows[change.new[key]] = change.new | kept
