"""The records that `EventRouter` makes of an outbox's events."""

import logging
from functools import lru_cache

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.debezium.outbox import OutboxLayout
from pgcdc_cli.formats.debezium.record import Fragments, RowRecords, Rows
from pgcdc_cli.types.kernels import Fragment

log = logging.getLogger("pgcdc")


class OutboxRecords(RowRecords):
    """Inserted rows as events of their own, as a table's `outbox` lays them out."""

    def event(
        self, operation: str, _key: Fragments, rows: Rows, *, headers: Fragments = (), second: bool = False
    ) -> Fragments:
        """Give an inserted row's record; nothing for other changes. An update may be a USAGE error."""
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
        return self.line(columns[layout.topic], put(layout.key), put(layout.value), all_headers)

    def tombstone(self, _key: Fragments, *, headers: Fragments = ()) -> Fragments:
        """Give nothing: the events that were inserted are there."""
        del headers
        return ()


@lru_cache(1024)
def _refuse(topic: str, layout: OutboxLayout) -> None:
    """Say once a table that its rows are not to be updated."""
    reason = f"could not make an event of an update of {topic}: an outbox's rows are inserted and deleted"
    if layout.router.on_update == "fatal":
        raise PgcdcError(
            ErrorKind.USAGE,
            reason,
            hint="debezium.op.invalid.behavior=warn leaves updates out with a warning",
        )
    log.log(logging.ERROR if layout.router.on_update == "error" else logging.WARNING, "%s", reason)
