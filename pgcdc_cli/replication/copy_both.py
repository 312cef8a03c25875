"""A stream in copy-both mode: receives frames, and confirms what is written and durable.

PostgreSQL manual, "Streaming Replication Protocol". Nothing here blocks for longer than the caller says.

One lock guards the connection. The data thread holds it only while it takes what has arrived, and then sends
a status update if one is due. However long it decodes or waits for a disk, the feedback thread sends updates
before `wal_sender_timeout` expires. The buffer of a Unix socket is small, and a walsender that can't send
waits: so a third thread reads ahead while the data thread is busy, and the data thread while it naps.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import psycopg

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.frames import Received
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.feedback import Feedback
from pgcdc_cli.replication.frame_source import FrameSource
from pgcdc_cli.replication.socket_frames import SocketFrames

NEVER = float("inf")

_PAUSE = 0.01
"""Seconds without reading: in mid-transaction a walsender reads our CopyDone only once its sending blocks."""

_LONGEST_PAUSE = 0.25

_READ_AHEAD_PAUSE, _LONGEST_READ_AHEAD_PAUSE = 0.0003, 0.005
"""Seconds between two reads ahead: less than a server needs to fill the socket's buffer.

More if little came, since each read takes the interpreter's lock from the data thread.
"""

_MUCH = 8 << 10
"""Bytes that came at once, of which a Unix socket has room for some thirty times as many."""


class ReplicationStream:
    """The stream that START_REPLICATION begins: receives frames from `slot`, and confirms positions.

    Status updates are sent every `interval` seconds, the first with the position `start`. A server that is
    silent for `patience` seconds is given up. `failure` translates an error of the server or of libpq. Every
    method raises PgcdcError.
    """

    def __init__(
        self,
        frames: FrameSource[Any],
        slot: str,
        start: Lsn,
        *,
        interval: float,
        patience: float,
        failure: Callable[[psycopg.Error], PgcdcError],
    ) -> None:
        self._slot = slot
        self._patience = patience
        self._failure = failure
        self._heard = time.monotonic()
        self._lock = threading.Lock()
        self._frames = frames
        self._feedback = Feedback(frames, self._lock, start, interval)
        self._read_ahead: ReadAhead | None = None
        if isinstance(frames, SocketFrames) and frames.on_unix_socket:
            self._read_ahead = ReadAhead(frames, self._lock)

    def receive(self, limit: int, timeout: float) -> Received:
        """Take up to `limit` frames that have arrived; if there are none, wait up to `timeout` seconds."""
        self._feedback.check()
        try:
            heard = self._frames.wait(0)
            received = self._take(limit)
            if received.empty and timeout > 0:
                heard |= self._frames.wait(timeout)
                received = self._take(limit)
        except psycopg.Error as error:
            raise self._failure(error) from error
        self._mind_silence(heard=heard or not received.empty)
        return received

    def reading_ahead(self) -> AbstractContextManager[None]:
        """Keep reading from the server while the caller handles what `receive` returned."""
        return nullcontext() if self._read_ahead is None else self._read_ahead.running()

    def nap(self, seconds: float) -> None:
        """Let the server send for so many seconds; read meanwhile where the system's buffer is small."""
        if self._read_ahead is None:
            time.sleep(seconds)
        else:
            self._read_ahead.sleep(seconds)

    def _take(self, limit: int) -> Received:
        with self._lock:
            self._feedback.send_if_due()
            received = self._frames.take(limit)
            if received.keepalive is not None and received.keepalive.reply_requested:
                self._feedback.reply()
        return received

    def _mind_silence(self, *, heard: bool) -> None:
        now = time.monotonic()
        if heard:
            self._heard = now
        elif now - self._heard > self._patience:
            raise PgcdcError(
                ErrorKind.CONNECTION,
                f'could not receive from slot "{self._slot}": the server has been silent for'
                f" {now - self._heard:.0f} s",
            )

    def confirm(self, written: Lsn, flushed: Lsn) -> None:
        """Confirm that everything below `flushed` is durable; the next status update reports it."""
        self._feedback.confirm(written, flushed)

    def fail_after_taken(self, error: PgcdcError) -> None:
        """Stop here: once the frames taken so far are returned, raise `error` instead of receiving more."""
        self._frames.fail_after_taken(error)

    def finish(self, timeout: float = 10.0, *, patience: float = NEVER) -> bool:
        """End the stream: send a last status update and CopyDone, and read until the server's CopyDone.

        Gives up after `timeout` seconds, or earlier if the server is silent for `patience` seconds. True if
        its CopyDone came: then it has the last confirmed position.
        """
        try:
            self._stop_reading_ahead()
            self._feedback.finish()
            self._frames.put_copy_end()
            return self._read_to_the_end(timeout, patience)
        except psycopg.Error as error:
            raise self._failure(error) from error

    def _read_to_the_end(self, timeout: float, patience: float) -> bool:
        deadline, silent_at, pause = time.monotonic() + timeout, time.monotonic() + patience, _PAUSE
        while time.monotonic() < min(deadline, silent_at):
            self._frames.flush()
            received = self._frames.take(1 << 20)
            if not received.empty:
                silent_at = time.monotonic() + patience
            if received.closed:
                self._frames.await_command_end(min(deadline, time.monotonic() + 1))
                return True
            if received.frames:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            elif received.keepalive is None:
                self._frames.wait(min(0.1, deadline - time.monotonic()))
        return False

    def stop(self) -> None:
        """End the threads, without a last status update, and leave the connection to libpq."""
        self._stop_reading_ahead()
        self._feedback.stop()
        self._frames.close()

    def _stop_reading_ahead(self) -> None:
        if self._read_ahead is not None:
            self._read_ahead.stop()


class ReadAhead:
    """A thread that reads ahead within `running`, under the connection's lock."""

    def __init__(self, frames: SocketFrames, lock: threading.Lock) -> None:
        self._frames = frames
        self._lock = lock
        self._busy = threading.Event()
        self._rounds = threading.Semaphore(0)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pgcdc-read-ahead", daemon=True)
        self._thread.start()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read ahead while the caller does something else."""
        self._busy.set()
        self._rounds.release()
        try:
            yield
        finally:
            self._busy.clear()

    def sleep(self, seconds: float) -> None:
        """Read ahead in this thread for so many seconds, or until there is no room."""
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0:
            time.sleep(min(rest, _READ_AHEAD_PAUSE))
            with self._lock:
                if self._frames.read_ahead() is None:
                    return

    def stop(self) -> None:
        self._closed = True
        self._rounds.release()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._rounds.acquire()
            if self._closed:
                return
            pause = _READ_AHEAD_PAUSE
            while (arrived := self._step()) is not None:
                much = arrived >= _MUCH
                pause = _READ_AHEAD_PAUSE if much else min(2 * pause, _LONGEST_READ_AHEAD_PAUSE)
                time.sleep(pause)

    def _step(self) -> int | None:
        with self._lock:
            return self._frames.read_ahead() if self._busy.is_set() else None
