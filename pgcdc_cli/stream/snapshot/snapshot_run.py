"""One run of `pgcdc snapshot`: the rows of tables in one snapshot, without a slot or a stream."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from pgcdc_cli.catalog import Catalog
from pgcdc_cli.catalog.table_facts import describe_alone
from pgcdc_cli.changes.selection import PATTERN_HINT
from pgcdc_cli.directory.checkpoint import StreamSource
from pgcdc_cli.errors import ErrorKind, PgcdcError, quoted_list
from pgcdc_cli.formats.interface import Format
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.relations import Describe
from pgcdc_cli.sinks.sink import Sink
from pgcdc_cli.stream.encode import SliceEncoder
from pgcdc_cli.stream.invalid_text import TextMender
from pgcdc_cli.stream.loop import SliceWriter
from pgcdc_cli.stream.memory import keep_freed_memory
from pgcdc_cli.stream.settings import RunTotals, Signals
from pgcdc_cli.stream.snapshot.snapshot_rows import Snapshot
from pgcdc_cli.stream.snapshot.snapshot_session import FOREVER, SnapshotSession
from pgcdc_cli.stream.snapshot.snapshot_tables import (
    ChangedTableError,
    SnapshotTable,
    WantedRows,
    find_tables,
    rows_to_come,
)
from pgcdc_cli.types.database_text import DatabaseText, InvalidText

log = logging.getLogger("pgcdc")

ATTEMPTS = 10
"""How often a snapshot is taken, at most, if others change tables before they are locked."""

_THERE = "write to another directory or file: the data there is as of another moment"
_OF_STREAM = (
    "write to another directory or file; pgcdc stream --resnapshot PATTERN reads a stream's table again"
)
_OTHER_OPTIONS = f"{_OF_STREAM}, and a snapshot that ended early continues with its own options"
_NONE_PUBLISHED = f"see what is published with: pgcdc publication show NAME; {PATTERN_HINT}"
_NO_TABLE = f"{PATTERN_HINT}; views, tables without columns, and foreign and temporary ones are not read"


# The snapshot is taken before the position is read, so everything that it sees committed before that.
_SOURCE = """
SELECT (SELECT system_identifier FROM pg_control_system())::text,
       (SELECT timeline_id FROM pg_control_checkpoint()), current_database(), pg_is_in_recovery(),
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END::text
"""


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """What to read, and from where. `invalid_text` says what becomes of bytes that aren't valid text.

    With `with_xid`, rows have the ID of the transaction that reads them, except on a standby, which assigns
    none. `workers` is the number of connections that read. `output` is the file's or directory's name.
    """

    conninfo: str
    output: str
    wanted: WantedRows
    invalid_text: InvalidText = "stop"
    use_catalog: bool = True
    with_xid: bool = False
    workers: int = 1


class SnapshotRun:
    """Reads the wanted rows into the sink. `rows` counts them by table."""

    def __init__(
        self,
        settings: SnapshotSettings,
        sink: Sink,
        format_: Format,
        signals: Signals,
        report: Callable[[RunTotals], None],
    ) -> None:
        self._settings = settings
        self._sink = sink
        self._format = format_
        self._signals = signals
        self._report = report
        self._writer = SliceWriter(sink, signals, report)
        self.rows: Counter[str] = Counter()

    @property
    def totals(self) -> RunTotals:
        return self._writer.totals

    def run(self) -> None:
        """Read and write all rows; they are durable on return.

        Raises PgcdcError, and KeyboardInterrupt on a signal. Then a file or directory has none of the rows,
        and another run starts over.
        """
        keep_freed_memory()
        self._open()
        try:
            self._check_new()
            with self._signals.interruptible():
                session = SnapshotSession(self._settings.conninfo)
            with closing(session), closing(Catalog(session.here)) as catalog:
                self._read(session, catalog)
        finally:
            self._writer.close()
        self.totals.durable_lsn = self._sink.durable_lsn

    def _open(self) -> None:
        try:
            self._sink.open()
        except PgcdcError as error:
            if error.kind is ErrorKind.USAGE:
                # The options of a stream would be refused, too.
                error.hint = _OTHER_OPTIONS
            raise

    def _check_new(self) -> None:
        checkpoint = self._sink.checkpoint
        if checkpoint is not None and (checkpoint.end_lsn or checkpoint.source.slot):
            slot = checkpoint.source.slot
            what, hint = (f"a stream of slot {slot}", _OF_STREAM) if slot else ("a snapshot", _THERE)
            message = f'could not write a snapshot to "{self._settings.output}": {what} already exists'
            raise PgcdcError(ErrorKind.USAGE, message, hint=hint)

    def _read(self, session: SnapshotSession, catalog: Catalog) -> None:
        settings, wanted = self._settings, self._settings.wanted
        with self._signals.interruptible():
            catalog.check_publications(wanted.publications, for_slot=False)
            text = DatabaseText.of(session.database_encoding, None, settings.invalid_text)
            describe = describe_alone
            if settings.use_catalog:
                describe = partial(catalog.describe, text=text, changes=False)
            (source, position, in_recovery), tables = self._find_tables(session, describe)
        self._check_any(tables)
        begun = self._sink.checkpoint
        self._sink.start(source, Lsn(0), None if begun is None else replace(begun, source=source))
        encoder = SliceEncoder(self._format, TextMender(text, set()), source.database)
        encoder.restart(None)
        snapshot = Snapshot(
            session, position, text, lambda: self._signals.stop, settings.workers, typed=encoder.typed
        )
        self._write(snapshot, tables, encoder, with_xid=settings.with_xid and not in_recovery)

    def _find_tables(
        self, session: SnapshotSession, describe: Describe
    ) -> tuple[tuple[StreamSource, Lsn, bool], list[SnapshotTable]]:
        """Take the snapshot; if others change a table before it is locked, take it again, after the lock."""
        wanted = self._settings.wanted
        for attempt in range(ATTEMPTS):
            try:
                source = source_of(session, wanted.publications)
                with session.waiting():
                    return source, find_tables(session, wanted, describe, self._refuse)
            except ChangedTableError as error:
                if attempt == ATTEMPTS - 1:
                    raise
                log.info("%s; taking it again", error.message)
                session.end()
                session.begin()
                session.lock(error.tables, FOREVER)
        raise AssertionError

    def _refuse(self, unmatched: Sequence[str]) -> None:
        """Raise USAGE for a --table pattern that matches nothing; warn about other patterns."""
        tables = {pattern.text for pattern in self._settings.wanted.selection.tables}
        if named := [pattern for pattern in unmatched if pattern in tables]:
            reason = f"nothing matches {quoted_list(named)}"
            raise PgcdcError(
                ErrorKind.USAGE, f"could not find a table to read: {reason}", hint=self._no_table
            )
        for pattern in unmatched:
            log.warning('no table or column that could be read matches "%s"', pattern)

    @property
    def _no_table(self) -> str:
        return _NONE_PUBLISHED if self._settings.wanted.publications else _NO_TABLE

    def _check_any(self, tables: Sequence[SnapshotTable]) -> None:
        if not tables:
            raise PgcdcError(ErrorKind.USAGE, "could not find a table to read", hint=self._no_table)
        self.rows = Counter({table.schema.display: 0 for table in tables})

    def _write(
        self, snapshot: Snapshot, tables: Sequence[SnapshotTable], encoder: SliceEncoder, *, with_xid: bool
    ) -> None:
        self.totals.snapshot_rows = rows_to_come(tables)
        with closing(snapshot.slices(tables, with_xid=with_xid)) as slices:
            for rows in slices:
                if self._signals.stop:
                    raise KeyboardInterrupt
                self._writer.write([encoder.encode(rows)])
                for batch in rows.changes:
                    self.rows[batch.table.display] += len(batch)
                self.totals.snapshot_bytes = snapshot.bytes
                self._report(self.totals)


def source_of(session: SnapshotSession, publications: Sequence[str]) -> tuple[StreamSource, Lsn, bool]:
    """Return the source of a snapshot without a slot, a position after all its rows, and "is a standby"."""
    [(system_id, timeline, database, in_recovery, position)] = session.ask(_SOURCE)
    source = StreamSource(system_id, timeline, database, "", tuple(publications))
    return source, Lsn.parse(position), in_recovery
