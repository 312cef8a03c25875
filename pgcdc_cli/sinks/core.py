"""The state machine that a directory and a single file share: edges, flushes, checkpoints, positions.

Rules, all kept here:
- the checkpoint is written at transaction edges only, after everything it names is fsynced;
- `durable_lsn` moves only after the checkpoint is durable;
- after a failure nothing is tried again on the same files: what is on disk now, only recovery may judge.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pgcdc_cli.changes.slice import Edge, LastCommit, Prepared
from pgcdc_cli.directory.checkpoint import (
    Checkpoint,
    Source,
    check_options,
    read_checkpoint,
    write_checkpoint,
)
from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.directory.open_files import Files
from pgcdc_cli.directory.spool_file import SpoolFolder
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.base import EncodedSlice, FileFormat, Piece
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.sinks.base import LAZY_PACE, SinkSettings
from pgcdc_cli.sinks.output_file import OutputFile

HELD_AT_MOST = 16 << 20
"""Bytes of rows in memory, over all files, at which all of them are written."""


class CheckpointedSink(ABC):
    """A sink with a checkpoint. Life: `open`, `start`, any number of writes, `close`."""

    pace = LAZY_PACE
    _eager = False
    """Are whole transactions written as they come, for somebody who looks on?"""

    def __init__(
        self,
        root: str,
        spool: str,
        encoding: FileFormat,
        settings: SinkSettings,
        disk: Disk,
        clock: Callable[[], float] | None,
    ) -> None:
        self.disk = disk
        self.files = Files(disk, root)
        self._spools = SpoolFolder(self.files, spool, settings.spool_limit)
        self.outputs: list[OutputFile] = []
        self._encoding = encoding
        self._settings = settings
        self._clock = clock or time.monotonic
        self._options = {"format": encoding.name, "suffix": encoding.suffix, **settings.options}
        self._checkpoint: Checkpoint | None = None
        self._edge_lsn = Lsn(0)
        self._last_commit: LastCommit | None = None
        self._prepared: tuple[Prepared, ...] = ()
        self._unsaved: dict[OutputFile, None] = {}
        self._open = False
        self._held = 0
        self._flushed_at = 0.0
        self._reopening = False
        self._failure: PgcdcError | None = None
        self._started = False
        self._unlock: Callable[[], None] | None = None

    @property
    def edge_lsn(self) -> Lsn:
        return self._edge_lsn

    @property
    def last_commit(self) -> LastCommit | None:
        return self._last_commit

    @property
    def prepared(self) -> tuple[Prepared, ...]:
        return self._prepared

    @property
    def durable_lsn(self) -> Lsn:
        return Lsn(0) if self._checkpoint is None else self._checkpoint.end_lsn

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint as it is on disk; None before the first."""
        return self._checkpoint

    @property
    def _saved(self) -> Checkpoint:
        assert self._checkpoint is not None, "the sink was not started"
        return self._checkpoint

    def open(self) -> Checkpoint | None:
        """Lock, read the checkpoint and recover what it names; None where nothing was ever written.

        Raises LOCKED, CHECKPOINT, OUTPUT, or USAGE for a checkpoint of another format or other options.
        """
        self._unlock = self.disk.lock(self._lock_path)
        try:
            with self._guard():
                self._checkpoint = self._read()
        except BaseException:
            self._release()
            raise
        return self._checkpoint

    def _read(self) -> Checkpoint | None:
        checkpoint = read_checkpoint(self.disk, self._checkpoint_path)
        if checkpoint is None:
            self._check_fresh()
            self._spools.clear(())
            return None
        check_options(self._checkpoint_path, self._options, checkpoint.options)
        self.disk.fsync_folder(self.files.root)
        self._spools.check(checkpoint.prepared)
        recovered = self._recover(checkpoint)
        self._edge_lsn, self._last_commit = recovered.end_lsn, recovered.last_commit
        self._prepared = recovered.prepared
        self._spools.clear(self._prepared)
        return recovered

    def start(self, source: Source, start_lsn: Lsn, checkpoint: Checkpoint | None = None) -> None:
        """Begin a new stream at `start_lsn`, or go on with `checkpoint` as `check_source` returned it.

        Comes again, with a checkpoint, after every new connection; nothing may be unsynced then.
        """
        with self._guard():
            assert (checkpoint is None) == (self._checkpoint is None), (
                "a checkpoint is gone on with, or never was"
            )
            if checkpoint is None:
                checkpoint = Checkpoint(source=source, end_lsn=start_lsn, options=self._options)
            elif checkpoint.stream_id != self._saved.stream_id:
                self._finish_stream()
            merged = self._merged(checkpoint)
            if merged != self._checkpoint:
                self._save(merged)
            self._edge_lsn = merged.end_lsn
            if not self._started:
                self._flushed_at = self._clock()
                self._begin()
            self._started = True

    def _merged(self, checkpoint: Checkpoint) -> Checkpoint:
        if self._checkpoint is None:
            return checkpoint
        return replace(
            self._checkpoint,
            source=checkpoint.source,
            stream_id=checkpoint.stream_id,
            end_lsn=checkpoint.end_lsn,
        )

    def write(self, part: EncodedSlice) -> None:
        """Append a slice. Flushes, rotates or reopens at its edge when that is due."""
        with self._guard():
            self._open = True
            for piece in part.pieces:
                self._append(piece, whole=part.edge is not None)
            self._note(part)
            if part.edge is not None:
                self._settle(part.edge)
            if self._held >= HELD_AT_MOST:
                self._cut_all()

    def _append(self, piece: Piece, *, whole: bool) -> None:
        output = self._output(piece)
        held, size = output.held, output.now.size
        output.append(piece, whole=whole)
        self._held += output.held - held
        self._grew(output.now.size - size)
        self._unsaved[output] = None

    def _settle(self, edge: Edge) -> None:
        for output in self._unsaved:
            if output.begun:
                output.settle()
        self._open = False
        self._edge_lsn = max(self._edge_lsn, edge.end_lsn)
        if edge.commit_lsn:
            self._last_commit = LastCommit.after(self._last_commit, edge)
        if edge.prepared is not None:
            self._prepared = edge.prepared
        if self._eager:
            self._write_whole()
        self._at_edge()

    def _cut_all(self) -> None:
        for output in self._unsaved:
            size = output.now.size
            output.cut()
            self._grew(output.now.size - size)
        self._held = 0

    def advance(self, lsn: Lsn) -> None:
        """Take over the position of a keepalive that came at a transaction edge."""
        assert not self._open, "a keepalive's position inside of a transaction"
        with self._guard():
            self._edge_lsn = max(self._edge_lsn, lsn)
            self._flush_if_due()

    def tick(self) -> None:
        """Flush or rotate if the clock says so; called at least once a second."""
        with self._guard():
            if self._open:
                self._flush_if_due()
            else:
                self._at_edge()

    def _at_edge(self) -> None:
        if self._boundary_due():
            self._reopening = False
            self._boundary()
        else:
            self._flush_if_due()

    def _flush_if_due(self) -> None:
        if any(output.behind for output in self._unsaved):
            interval = self._settings.fsync_interval
            if interval == 0:
                return
        else:
            interval = self._settings.status_interval
        if self._clock() - self._flushed_at >= interval:
            self._flush()

    def flush(self) -> None:
        """Make everything up to the last edge durable, now."""
        with self._guard():
            if self._started:
                self._flush()

    def _write_whole(self) -> None:
        for output in self._unsaved:
            size = output.now.size
            output.settle_edge()
            self._grew(output.now.size - size)
        self._held = sum(output.held for output in self._unsaved)

    def _flush(self) -> None:
        self._write_whole()
        changed = [output for output in self._unsaved if output.edge != output.durable]
        self._flushed_at = self._clock()
        moved = (self._edge_lsn, self._prepared) != (self.durable_lsn, self._saved.prepared)
        if changed or moved:
            self._sync(changed)
            files = tuple(output.entry for output in self.outputs if output.lasting)
            self._save(self._at_position(files=files))
        self._now_durable(changed)

    def _sync(self, changed: list[OutputFile]) -> None:
        for output in changed:
            self.files.fsync(output.path)
        for one in self._prepared:
            if one.path is not None and one not in self._saved.prepared:
                self.files.fsync(one.path)
        self._place_schemas()
        self.files.fsync_folders()

    def _at_position(self, **changes: Any) -> Checkpoint:  # noqa: ANN401 - fields of Checkpoint
        """Give the checkpoint of the last edge."""
        changes |= {
            "end_lsn": self._edge_lsn,
            "last_commit": self._last_commit,
            "prepared": self._prepared,
        }
        return replace(self._saved, **changes)

    def _save(self, checkpoint: Checkpoint) -> None:
        write_checkpoint(self.disk, self._checkpoint_path, checkpoint)
        before, self._checkpoint = self._checkpoint, checkpoint
        for one in () if before is None else before.prepared:
            if one not in checkpoint.prepared:
                self._spools.discard(one)

    def _now_durable(self, changed: list[OutputFile]) -> None:
        for output in changed:
            output.durable = output.edge
        self._unsaved = {output: None for output in self._unsaved if output.begun}

    def new_spools(self) -> SpoolFolder:
        """Drop what the last connection put aside, but for prepared transactions."""
        with self._guard():
            self._spools.clear(self._prepared)
        return self._spools

    def rollback(self) -> None:
        """Forget what was written after the last edge (the connection was lost)."""
        with self._guard():
            self._rollback()

    def _rollback(self) -> None:
        for output in self._unsaved:
            output.rollback()
        self._open = False
        self.outputs = [output for output in self.outputs if not output.empty]
        self._unsaved = {output: None for output in self._unsaved if not output.empty}
        self._held = sum(output.held for output in self._unsaved)
        self._shrank()

    def reopen(self) -> None:
        """HUP: reopen the file, or rotate, at the next edge."""
        self._reopening = True

    def close(self) -> None:
        """Drop what is after the last edge, finish the files, make all durable, unlock.

        After a failure, or before `start`, it only closes what is open: what is on disk is left to
        recovery. A second call does nothing.
        """
        try:
            started, self._started = self._started, False
            if started and self._failure is None:
                with self._guard():
                    self._rollback()
                    self._end()
                    self._spools.close(self._prepared)
        finally:
            self._release()

    def _release(self) -> None:
        unlock, self._unlock = self._unlock, None
        try:
            self.files.close_all()
        finally:
            if unlock is not None:
                unlock()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except PgcdcError as error:
            self._failure = error
            raise
        except BaseException as error:
            self._failure = PgcdcError(ErrorKind.UNEXPECTED, f"could not write: {error!r}")
            raise

    @property
    @abstractmethod
    def _lock_path(self) -> str: ...

    @property
    @abstractmethod
    def _checkpoint_path(self) -> str: ...

    @abstractmethod
    def _check_fresh(self) -> None:
        """Raise CHECKPOINT if there is data, which must not be started over."""

    @abstractmethod
    def _recover(self, checkpoint: Checkpoint) -> Checkpoint:
        """Bring the files to the state that the checkpoint names; return the checkpoint then on disk."""

    @abstractmethod
    def _begin(self) -> None:
        """Do what is left to do before the first write."""

    @abstractmethod
    def _output(self, piece: Piece) -> OutputFile:
        """Find or make the file for a piece."""

    @abstractmethod
    def _boundary_due(self) -> bool:
        """Say whether it is time to rotate or reopen."""

    @abstractmethod
    def _boundary(self) -> None:
        """Rotate or reopen, at an edge."""

    @abstractmethod
    def _finish_stream(self) -> None:
        """Finish what belongs to a stream that goes on as another."""

    @abstractmethod
    def _end(self) -> None:
        """Finish the files and make all durable."""

    @abstractmethod
    def _note(self, part: EncodedSlice) -> None:
        """Remember the tables that a slice speaks of."""

    @abstractmethod
    def _place_schemas(self) -> None:
        """Put schema files in place that are not yet there."""

    @abstractmethod
    def _grew(self, size: int) -> None:
        """Count bytes that were written."""

    @abstractmethod
    def _shrank(self) -> None:
        """Look anew at the outputs after some were taken back."""
