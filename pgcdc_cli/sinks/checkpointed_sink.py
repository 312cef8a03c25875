"""The sink with exactly-once delivery: transaction edges, flushes, checkpoints and positions.

Its rules:
- the checkpoint is written at transaction edges only, after everything it names is fsynced;
- `durable_lsn` advances only after the checkpoint is durable;
- after a failure nothing is retried on the same files: only recovery knows what is on disk by then.

A destination decides where the files are: a directory of segments (`directory_sink.py`), or one file
(`file_sink.py`).
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Protocol

from pgcdc_cli.changes.edge import Edge, LastEdge
from pgcdc_cli.directory.checkpoint import (
    Checkpoint,
    StreamSource,
    allow_mending,
    changed_lists,
    check_options,
    read_checkpoint,
    write_checkpoint,
)
from pgcdc_cli.directory.disk import HeldLock
from pgcdc_cli.directory.file_names import ControlFiles
from pgcdc_cli.formats.interface import EncodedSlice
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.sinks.output_file import OutputFile, OutputFiles
from pgcdc_cli.sinks.sink import EAGER_PACE, LAZY_PACE, FailureGuard, SinkSettings, portion_of
from pgcdc_cli.sinks.spool_file import SpoolFolder

log = logging.getLogger("pgcdc")

HELD_AT_MOST = 16 << 20
"""Bytes of rows held in memory, over all files, at which they are written."""

_WITHOUT_INTERVALS = 10.0
"""Seconds between checkpoints if both intervals are 0, and no rows come: the server must not keep its WAL."""

_ANOTHER_LIST = "%s differs from the last run's: from here on, other changes are written"


class Destination(Protocol):
    """Where the files are: a directory of segments, or one file.

    `control` are the files beside the data. `in_segments`: readers see rows once their segment is finished;
    otherwise they may follow the file, and whole transactions are written as they come. The parameter `save`
    of methods makes a checkpoint durable.
    """

    in_segments: ClassVar[bool]

    @property
    def control(self) -> ControlFiles: ...

    @property
    def gap_remedy(self) -> str | None:
        """The sink's `gap_remedy`, known after `recover`."""
        ...

    def lock(self) -> HeldLock:
        """Lock the output against other processes. Raises LOCKED."""
        ...

    def discard(self) -> None:
        """Remove the folder if this run created it and wrote nothing."""

    def check_unwritten(self) -> None:
        """Raise CHECKPOINT if there is data already, since there is no checkpoint for it."""

    def recover(self, checkpoint: Checkpoint) -> Checkpoint:
        """Bring the files to the state that the checkpoint names; return the checkpoint to go on with."""
        ...

    def start(self, checkpoint: Checkpoint, save: Callable[[Checkpoint], None]) -> None:
        """Open the files that the checkpoint names; a single file is created and saved in it if it is new."""

    def rotate(self, edge: Checkpoint, save: Callable[[Checkpoint], None]) -> None:
        """Save the checkpoint of an edge, and switch to new files; the old ones are finished and fsynced."""

    def end(self, edge: Checkpoint, save: Callable[[Checkpoint], None]) -> None:
        """End a run whose last edge is durable: let go of a file without which nothing is lost."""


class CheckpointedSink:
    """A sink with a checkpoint. Call `open`, `start`, any number of writes, then `close`."""

    def __init__(
        self,
        destination: Destination,
        outputs: OutputFiles,
        settings: SinkSettings,
        clock: Callable[[], float] | None,
    ) -> None:
        self.outputs = outputs
        self.pace = LAZY_PACE if destination.in_segments else EAGER_PACE
        self.portion = portion_of(settings) if destination.in_segments else None
        self._destination = destination
        self._files = outputs.files
        self._schedule = Schedule(settings, clock or time.monotonic)
        self._checkpoint_path = self._files.full(destination.control.checkpoint)
        self._spools = SpoolFolder(self._files, destination.control.spool, settings.spool_limit)
        format_ = outputs.format
        self._options = {"format": format_.name, "suffix": format_.suffix, **settings.options}
        self._checkpoint: Checkpoint | None = None
        self._edge = LastEdge()
        self._in_transaction = self._started = self._reopening = False
        self._guard = FailureGuard()
        self._lock: HeldLock | None = None

    @property
    def edge(self) -> LastEdge:
        return self._edge

    @property
    def written_lsn(self) -> Lsn:
        return self.durable_lsn if self.outputs.held or self._files.writing else self._edge.lsn

    @property
    def durable_lsn(self) -> Lsn:
        return Lsn(0) if self._checkpoint is None else self._checkpoint.end_lsn

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint on disk; None before the first."""
        return self._checkpoint

    @property
    def gap_remedy(self) -> str | None:
        return self._destination.gap_remedy

    @property
    def _saved(self) -> Checkpoint:
        assert self._checkpoint is not None, "the sink was not started"
        return self._checkpoint

    def open(self) -> None:
        """Lock the output, and recover the state of its checkpoint.

        Raises LOCKED, CHECKPOINT, OUTPUT, or USAGE for a checkpoint of another format or other options.
        """
        self._lock = self._destination.lock()
        try:
            with self._guard:
                self._recover()
        except BaseException:
            self._release()
            raise

    def _recover(self) -> None:
        checkpoint = read_checkpoint(self._files.disk, self._checkpoint_path)
        if checkpoint is None:
            self._destination.check_unwritten()
        else:
            default = self.outputs.format.capabilities.invalid_text
            checkpoint = allow_mending(checkpoint, self._options, default)
            if checkpoint.source.slot or not checkpoint.end_lsn:
                # No options continue a finished snapshot: the run refuses it once it is open.
                check_options(self._checkpoint_path, self._options, checkpoint.options)
            self._files.disk.fsync_folder(self._files.root)
            self._spools.check(checkpoint.prepared)
            recovered = self._destination.recover(checkpoint)
            self._checkpoint = checkpoint
            self._save(recovered)
            self._edge = recovered.edge

    def start(self, source: StreamSource, start_lsn: Lsn, checkpoint: Checkpoint | None = None) -> None:
        """Begin a new stream at `start_lsn`, or go on with `checkpoint` as `check_source` returned it.

        Called again, with a checkpoint, for every new connection; everything must be durable by then.
        """
        with self._guard:
            assert (checkpoint is None) == (self._checkpoint is None), "the checkpoint, wherever there is one"
            if checkpoint is None:
                checkpoint = Checkpoint(source=source, end_lsn=start_lsn, options=self._options)
                self._save(checkpoint)
            if not self._started:
                self._begin()
            self._go_on(checkpoint)

    def _begin(self) -> None:
        self._schedule.begin()
        self._spools.clear(self._edge.prepared)
        self._destination.start(self._saved, self._save)
        self._started = True

    def _go_on(self, checkpoint: Checkpoint) -> None:
        """Take over the stream's source and position; files of another stream identity are finished first."""
        if checkpoint.stream_id != self._saved.stream_id:
            # The changes that would bring the tables to one position are lost.
            self._edge.read = self._edge.resnapshots = ()
            self._finish()
        self._warn_of_lists()
        source, stream_id, end_lsn = checkpoint.source, checkpoint.stream_id, checkpoint.end_lsn
        self._save(
            replace(
                self._saved,
                source=source,
                stream_id=stream_id,
                end_lsn=end_lsn,
                options=self._options,
                read=self._edge.read,
            )
        )
        self._edge.lsn = end_lsn

    def _warn_of_lists(self) -> None:
        # Of a snapshot that begins anew, nothing is kept that was written with other lists.
        if self._saved.end_lsn or self._saved.read:
            for name in changed_lists(self._options, self._saved.options):
                log.warning(_ANOTHER_LIST, name)

    def creating(self, position: Lsn) -> None:
        """Record durably that the stream's slot is about to be created at this position."""
        with self._guard:
            self._save(replace(self._saved, creating=position))

    def write(self, encoded: EncodedSlice) -> None:
        """Append a slice. Flushes, rotates or reopens at its edge if that is due."""
        with self._guard:
            self._in_transaction = True
            if not self.outputs:
                self._schedule.first_row_came()
            self.outputs.append(encoded)
            if encoded.edge is not None:
                self._settle(encoded.edge)
            if self.outputs.held >= HELD_AT_MOST:
                self.outputs.write_all()

    def _settle(self, edge: Edge) -> None:
        self.outputs.mark_edge()
        self._in_transaction = False
        before = self._edge.prepared
        self._edge.reach(edge)
        for one in before:
            # No checkpoint names it, so after a crash the server sends it again; `_save` drops the others.
            if one not in self._edge.prepared and one not in self._saved.prepared:
                self._spools.discard(one)
        if not self._destination.in_segments:
            self.outputs.write_whole()
        self._do_what_is_due()

    def advance(self, lsn: Lsn) -> None:
        """Take over the position of a keepalive that came at a transaction edge."""
        assert not self._in_transaction, "a keepalive's position inside of a transaction"
        with self._guard:
            self._edge.advance(lsn)
            self._flush_if_due()

    def tick(self) -> None:
        """Flush or rotate if an interval has passed; called at least once a second."""
        with self._guard:
            if self._in_transaction:
                self._flush_if_due()
            elif self._started:
                self._do_what_is_due()

    @property
    def _may_rotate(self) -> bool:
        """Whether new files may begin at this edge: a segment has all tables as of one position."""
        return not (self._destination.in_segments and self._edge.some_tables_are_ahead)

    def _do_what_is_due(self) -> None:
        if self._may_rotate and (self._reopening or self._is_full()):
            self._rotate()
        else:
            self._flush_if_due()

    def _is_full(self) -> bool:
        """Whether it is time for a new segment."""
        if not (self._destination.in_segments and self.outputs):
            return False
        size = self._schedule.rotate_size
        return (size is not None and self._has_written(size)) or self._schedule.rotation_is_due

    def _has_written(self, size: int) -> bool:
        """Whether the files have this size; rows in memory are written to know their compressed size."""
        if self.outputs.size + self.outputs.held < size:
            return False
        self.outputs.write_whole()
        return self.outputs.size >= size

    def _flush_if_due(self) -> None:
        if not self._schedule.flush_is_due(unsynced=self.outputs.unsynced):
            return
        if self.outputs.unsynced and not self._schedule.fsyncs:
            # A client that waits for `synchronous_commit = remote_write` must not wait until the rotation.
            self._schedule.flushed()
            self.outputs.write_whole()
        else:
            self._flush()

    def flush(self) -> None:
        """Make everything up to the last edge durable, now."""
        with self._guard:
            if self._started:
                self._flush()

    def _flush(self) -> None:
        self.outputs.write_whole()
        self._schedule.flushed()
        edge = self._at_edge()
        if self.outputs.changed() or edge != self._saved:
            self._make_durable(edge, self._save)

    def _rotate(self) -> None:
        self._reopening = False
        self.outputs.finish()
        self._schedule.flushed()
        edge = self._at_edge()
        if self.outputs or edge != self._saved:
            self._make_durable(edge, lambda edge: self._destination.rotate(edge, self._save))

    def _make_durable(self, edge: Checkpoint, save: Callable[[Checkpoint], None]) -> None:
        """Fsync, then save the checkpoint; only then what was written counts as durable."""
        changed = self.outputs.changed()
        # If another run removed our files, the lock is the cause to name.
        self._check_lock()
        self._fsync(changed)
        save(edge)
        self.outputs.now_durable(changed)

    def _at_edge(self) -> Checkpoint:
        return self._saved.at(self._edge, self.outputs.entries())

    def _fsync(self, changed: list[OutputFile]) -> None:
        self.outputs.fsync(changed)
        new = [one for one in self._edge.prepared if one not in self._saved.prepared]
        self._files.fsync_all({one.path: one.size for one in new if one.path is not None})
        self._files.fsync_folders()

    def _save(self, checkpoint: Checkpoint) -> None:
        """Make a checkpoint durable, unless it is on disk already; then drop spools that it doesn't name."""
        before = self._checkpoint
        if checkpoint == before:
            return
        # If others write here, or the folder was replaced, the checkpoint would name other files.
        self._check_lock()
        write_checkpoint(self._files.disk, self._checkpoint_path, checkpoint)
        self._checkpoint = checkpoint
        for one in () if before is None else before.prepared:
            if one not in checkpoint.prepared:
                self._spools.discard(one)

    def _check_lock(self) -> None:
        assert self._lock is not None, "the sink is not open"
        self._lock.check()

    @property
    def spooled(self) -> int:
        """Bytes in spools."""
        return self._spools.size

    def new_spools(self) -> SpoolFolder:
        """Drop the spools of the last connection, except those of prepared transactions."""
        with self._guard:
            self._spools.clear(self._edge.prepared)
        return self._spools

    def rollback(self) -> None:
        """Take back what was written after the last edge (the connection was lost)."""
        with self._guard:
            self._rollback()

    def _rollback(self) -> None:
        self.outputs.rollback()
        self._in_transaction = False

    def reopen(self) -> None:
        """HUP: reopen the file, or rotate, at the next edge."""
        self._reopening = True

    def close(self) -> None:
        """Take back what is after the last edge, finish the files, make everything durable, and unlock.

        After a failure, or before `start`, only close what is open, and leave the rest to recovery. A second
        call does nothing.
        """
        try:
            self._release_unstarted()
            started, self._started = self._started, False
            if started and self._guard.failure is None:
                with self._guard:
                    self._rollback()
                    self._finish()
                    self._destination.end(self._saved, self._save)
                    self._spools.close(self._edge.prepared)
        finally:
            self._release()

    def _release_unstarted(self) -> None:
        """Let go of a file that was moved before `start`: the next run would look for it in vain.

        Not of one with more than the checkpoint knows, which must not be cut off before the source is known.
        """
        waits = self._lock is not None and self._guard.failure is None and not self._started
        if self._reopening and waits and self._checkpoint is not None and self._checkpoint.inode is not None:
            with self._guard:
                if self.gap_remedy is None:
                    self._begin()

    def _finish(self) -> None:
        """Make everything durable; reopen the file, or finish the segment, if that may be."""
        if self._may_rotate and (self._destination.in_segments or self._reopening):
            self._rotate()
        else:
            self._flush()

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        try:
            self._files.close_all()
        finally:
            if lock is not None and self._checkpoint is None:
                lock.discard()
                if self._guard.failure is None:
                    self._destination.discard()
            elif lock is not None:
                lock.release()


class Schedule:
    """When to flush and when to rotate, by the intervals of the settings."""

    def __init__(self, settings: SinkSettings, clock: Callable[[], float]) -> None:
        self.fsyncs = settings.fsync_interval > 0
        self.rotate_size = settings.rotate_size
        self._settings = settings
        self._clock = clock
        self._flushed_at = self._first_row_at = 0.0

    def begin(self) -> None:
        self._flushed_at = self._first_row_at = self._clock()

    def first_row_came(self) -> None:
        self._first_row_at = self._clock()

    def flushed(self) -> None:
        self._flushed_at = self._clock()

    def flush_is_due(self, *, unsynced: bool) -> bool:
        """Whether it is time to flush, with or without rows that aren't durable."""
        # With nothing to fsync, a checkpoint costs as much as one with rows.
        interval = self._settings.status_interval or self._settings.fsync_interval or _WITHOUT_INTERVALS
        if unsynced and self.fsyncs:
            interval = self._settings.fsync_interval
        return self._clock() - self._flushed_at >= interval

    @property
    def rotation_is_due(self) -> bool:
        """Whether the first row of the segment came an interval ago."""
        interval = self._settings.rotate_interval
        return interval is not None and self._clock() - self._first_row_at >= interval
