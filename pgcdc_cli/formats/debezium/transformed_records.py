"""Records as message transforms change them."""

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.debezium.connector_config import AddedMember, ExtractNewRecordState
from pgcdc_cli.formats.debezium.event_table import EventTable
from pgcdc_cli.formats.debezium.outbox import OutboxLayout
from pgcdc_cli.formats.debezium.record import (
    NONE,
    Fragments,
    Handled,
    Positions,
    RowRecords,
    Rows,
    RunContext,
    Tokens,
    Variables,
    record_line,
    row_object,
    transaction_members,
)
from pgcdc_cli.formats.debezium.types import connect_schemas
from pgcdc_cli.formats.debezium.types.kind import token
from pgcdc_cli.formats.debezium.unwrapped import DELETED
from pgcdc_cli.types.kernels import Fragment

Members: TypeAlias = Mapping[str, Mapping[str, Fragments]]
"""A record's plain members, by block and name as in `AddedMember`."""


def row_records(
    context: RunContext,
    table: EventTable,
    names: tuple[str, str],
    positions: Positions | Variables,
    handled: Handled,
) -> RowRecords:
    """Make the writer of one batch's records; for the arguments see `RowRecords`."""
    if table.outbox is not None:
        return OutboxRecords(context, table, names, positions, handled)
    kind = RowRecords if table.unwrap is None else UnwrappedRecords
    return kind(context, table, names, positions, handled)


class UnwrappedRecords(RowRecords):
    """Writes just the rows, as the table's `unwrap` configures."""

    @property
    def _unwrap(self) -> ExtractNewRecordState:
        assert self.table.unwrap is not None
        return self.table.unwrap

    def event(
        self, operation: str, key: Fragments, rows: Rows, *, headers: Fragments = (), second: bool = False
    ) -> Fragments:
        """Write a row's record; nothing for a truncate, or for a delete that is dropped."""
        old, new = rows
        row, deletes = old if new is None else new, self._unwrap.deletes
        empty = new is None and deletes in {"none", "tombstone"}
        if row is None or (new is None and deletes == "drop") or (empty and self.context.values_only):
            return ()
        members = self._members(operation, second=second)
        value = (self.table.null_value,) if empty else self._value(row, members, deleted=new is None)
        added = added_headers(self.context, self._unwrap.headers, members)
        topic = self.table.topic if self.table.routed is None else row[self.table.routed[new is not None]]
        return record_line(self.context, topic, key, value, self.context.headers(headers, added))

    def tombstone(self, key: Fragments, *, headers: Fragments = ()) -> Fragments:
        """Write a record without a value; nothing if tombstones are dropped.

        Its topic is the table's; its headers are those of the delete before it.
        """
        if self.context.values_only or not self._unwrap.tombstones:
            return ()
        members = self._members("d", second=False)
        added = added_headers(self.context, self._unwrap.headers, members, tombstone=True)
        return record_line(self.context, self.table.topic, key, NONE, self.context.headers(headers, added))

    def _value(self, row: Tokens, members: Members, *, deleted: bool) -> Fragments:
        unwrap, table = self._unwrap, self.table
        further = {one.added: members[one.block][one.name] for one in unwrap.fields}
        if unwrap.rewrites:
            further = {DELETED: (b'"true"' if deleted else b'"false"',), **further}
        *value, end = row_object(table, row)
        for name, fragments in further.items():
            value += [(b"," if len(value) > 1 else b"") + token(name) + b":", *fragments]
        return (table.value_head, *value, end, table.value_tail)

    def _members(self, operation: str, *, second: bool) -> Members:
        transaction = transaction_members(self.positions, second=second)
        own = {name: (value,) for name, value in self.handled._asdict().items()}
        return {
            "": {"op": (b'"%s"' % operation.encode(),), **own},
            "source": self.source,
            "transaction": transaction or dict.fromkeys(connect_schemas.OF_TRANSACTION, NONE),
        }


def control_line(
    context: RunContext, topic: str, key: Fragments, value: Fragments, members: Members
) -> Fragments:
    """Write a record other than a row's; of its `members`, 2.5 adds some to the headers, and 3.4 none."""
    transform, name = context.config.transformed(topic)
    headers: Fragments = (b"{}",)
    if isinstance(transform, ExtractNewRecordState) and not context.newer:
        headers = context.headers(added=added_headers(context, transform.headers, members))
    return record_line(context, token(name), key, value, headers)


def added_headers(
    context: RunContext, wanted: Sequence[AddedMember], members: Members, *, tombstone: bool = False
) -> Fragments:
    """Write those of the wanted headers whose members exist, each followed by a comma."""
    config, headers = context.config, list[Fragment]()
    for one in wanted:
        value = members.get(one.block, {}).get(one.name)
        if value is not None:
            schema = connect_schemas.event_members(config.debezium_version, one.block)[one.name]
            optional = not (tombstone and one.name == "op")
            plain = {key: part for key, part in schema.items() if key != "field"} | {"optional": optional}
            head, tail = connect_schemas.wrapping(plain, enabled=config.key_converter_schemas_enable)
            headers += [token(one.added) + b":" + head, *value, tail + b","]
    return headers


log = logging.getLogger("pgcdc")


class OutboxRecords(RowRecords):
    """Writes inserted rows as events of their own, as the table's `outbox` lays them out."""

    def event(
        self, operation: str, _key: Fragments, rows: Rows, *, headers: Fragments = (), second: bool = False
    ) -> Fragments:
        """Write an inserted row's record; nothing for other changes. Raises PgcdcError for a fatal update."""
        del second
        row, layout = rows[1], self.table.outbox
        assert layout is not None
        if operation == "u":
            _refuse(self.table.topic.decode(), layout)
        if row is None or operation not in {"c", "r"}:
            return ()
        columns = row[len(row) - len(layout.columns) :]

        def put(parts: tuple[bytes | int, ...]) -> list[Fragment]:
            return [part if isinstance(part, bytes) else columns[part] for part in parts]

        added = [fragment for header in layout.headers for fragment in put(header)]
        all_headers = self.context.headers(headers, added)
        return record_line(
            self.context, columns[layout.topic], put(layout.key), put(layout.value), all_headers
        )

    def tombstone(self, _key: Fragments, *, headers: Fragments = ()) -> Fragments:
        """Write nothing: deletes of an outbox's rows make no records."""
        del headers
        return ()


@lru_cache(1024)
def _refuse(topic: str, layout: OutboxLayout) -> None:
    """Log once per table that an outbox's rows must not be updated. Raises PgcdcError (USAGE) if fatal."""
    reason = (
        f"could not make an event from an update of {topic}: an outbox's rows are only inserted and deleted"
    )
    if layout.router.on_update == "fatal":
        raise PgcdcError(
            ErrorKind.USAGE,
            reason,
            hint="debezium.op.invalid.behavior=warn leaves updates out with a warning",
        )
    log.log(logging.ERROR if layout.router.on_update == "error" else logging.WARNING, "%s", reason)
