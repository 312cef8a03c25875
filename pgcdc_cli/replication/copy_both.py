"""A stream in copy-both mode: receives frames, and confirms what is written and durable.

PostgreSQL manual, "Streaming Replication Protocol"; libpq manual, "Functions Associated with the COPY
Command". Nothing here blocks but `wait`.

One lock guards the connection. The data thread holds it only while it takes what has arrived, and then sends
a status update if one is due. However long it decodes or waits for a disk, the feedback thread sends updates
before `wal_sender_timeout` expires. The buffer of a Unix socket is small, and a walsender that can't send
waits: so a third thread reads ahead into libpq's buffer while the data thread is busy.
"""

import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from fcntl import ioctl
from termios import FIONREAD

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.frames import XLOGDATA, XLOGDATA_HEADER, Keepalive, read_keepalive, standby_status
from pgcdc_cli.large_copies import PIECE, joined
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.failures import server_failure

NEVER = float("inf")

_READ_BYTES = 2 << 20
"""Bytes of frames that end one read, however few they are: so wide rows take no more memory."""

_TRICKLE = 64
"""Frames of one read below which the next can wait: a server that flushes each message wakes us often."""

_WAITING = 8 << 10
"""Bytes waiting in the socket after a read that are no trickle: rows are wide, or the buffer is full."""

_LONGEST_READ = 0.1
"""Seconds of one read, at most, while a large message is incomplete: the feedback thread waits meanwhile."""

_CHUNK = 256
"""Frames taken before their bytes are counted."""

_FIRST_BUFFER, _LARGEST_BUFFER = 16 << 10, 4 << 20
"""Bytes of libpq's input buffer at first (`pqMakeEmptyPGconn`), and how far reading ahead may grow it."""

_PAUSE = 0.01
"""Seconds without reading: in mid-transaction a walsender reads our CopyDone only once its sending blocks."""

_LONGEST_PAUSE = 0.25

_READ_AHEAD_PAUSE, _LONGEST_READ_AHEAD_PAUSE = 0.0003, 0.005
"""Seconds between two reads ahead: less than a server needs to fill the socket's buffer.

More if little came, since each read takes the interpreter's lock from the data thread.
"""

_UNSENT_WAIT = 0.1
"""Seconds until another attempt to send on a socket that takes nothing."""


@dataclass(frozen=True, slots=True)
class Received:
    """A batch of received frames: whole XLogData frames (header included) in order, and the last keepalive.

    A keepalive doesn't end a batch: a walsender that has caught up sends one after each commit
    (`WalSndWaitForWal` in walsender.c). Everything before its position is in these frames, in earlier ones,
    or in a transaction that is still open after them. It requests a reply if any keepalive of the batch did.
    """

    frames: list[bytes]
    keepalive: Keepalive | None
    closed: bool = False
    """The server sent CopyDone: nothing follows."""

    def followed_by(self, later: "Received") -> "Received":
        """Join two batches that were received one after the other."""
        keepalive = later.keepalive and later.keepalive.after(self.keepalive)
        return Received([*self.frames, *later.frames], keepalive or self.keepalive, later.closed)

    @property
    def empty(self) -> bool:
        """Whether nothing was received."""
        return not self.frames and self.keepalive is None and not self.closed


class ReplicationStream:
    """The stream that START_REPLICATION begins: receives frames from `slot`, and confirms positions.

    Status updates are sent every `interval` seconds, the first with the position `start`. A server that is
    silent for `patience` seconds is given up. `failure` translates an error of the server or of libpq. Every
    method raises PgcdcError.
    """

    def __init__(
        self,
        pgconn: PGconn,
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
        self._frames = CopyBothFrames(pgconn)
        self._feedback = Feedback(pgconn, self._lock, start, interval)
        on_unix_socket = pgconn.host.startswith((b"/", b"@"))
        self._read_ahead = ReadAhead(self._frames, self._lock) if on_unix_socket else None

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

    def end(self, error: PgcdcError) -> None:
        """Stop here: once the frames taken so far are returned, raise `error` instead of receiving more."""
        self._frames.end(error)

    def finish(self, timeout: float = 10.0, *, patience: float = NEVER) -> bool:
        """End the stream: send a last status update and CopyDone, and read until the server's CopyDone.

        Gives up after `timeout` seconds, or earlier if the server is silent for `patience` seconds. True if
        its CopyDone came: then it has the last confirmed position.
        """
        try:
            self._stop_reading_ahead()
            self._feedback.finish()
            return self._frames.finish(timeout, patience)
        except psycopg.Error as error:
            raise self._failure(error) from error

    def stop(self) -> None:
        """End the threads, without a last status update."""
        self._stop_reading_ahead()
        self._feedback.stop()

    def _stop_reading_ahead(self) -> None:
        if self._read_ahead is not None:
            self._read_ahead.stop()


class CopyBothFrames:
    """The frames of one connection. Only one thread at a time may use it, `wait` excepted.

    Raises psycopg.Error, or the error that was given to `end`.
    """

    def __init__(self, pgconn: PGconn) -> None:
        self._pgconn = pgconn
        self._finishing = False
        self._failure: psycopg.OperationalError | None = None
        self._frames: list[bytes] = []
        self._ended: psycopg.Error | PgcdcError | None = None
        self._left = 0
        self._buffer = _FIRST_BUFFER
        self._may_be_full = False
        self._ahead = 0
        self._readable = select.poll()
        self._readable.register(pgconn.socket, select.POLLIN)

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for something to arrive; true if it may have."""
        return bool(self._readable.poll(max(0.0, timeout) * 1000))

    def take(self, limit: int) -> Received:
        """Take up to `limit` XLogData frames that have arrived, and the last keepalive among them.

        An error is raised only after the frames before it were returned: if it recurs at every start, they
        would never get through otherwise.
        """
        if self._ended is not None:
            raise self._ended
        self._frames = []
        try:
            received = self._take(self._frames, limit)
        except psycopg.Error as error:
            self.end(error)
        if self._ended is None:
            return received
        if not self._left:
            raise self._ended
        return Received(self._frames[: self._left], None)

    def end(self, error: psycopg.Error | PgcdcError) -> None:
        """Stop here: return the frames taken so far, then raise `error`."""
        if self._ended is None:
            self._ended, self._left = error, len(self._frames)

    def _take(self, frames: list[bytes], limit: int) -> Received:
        keepalive: Keepalive | None = None
        consumed, room, until = False, _READ_BYTES, time.monotonic() + _LONGEST_READ
        while room > 0 and len(frames) < limit:
            before = len(frames)
            size, keepalive = self._take_some(frames, min(limit - before, _CHUNK), keepalive)
            room -= sum(map(len, frames[before:]))
            if size < 0:
                self._end()
                return Received(frames, keepalive, closed=True)
            if size > 0:
                continue
            if consumed and self._is_enough(len(frames) - before, until):
                break
            self._may_be_full = False
            self._ahead = 0
            self._consume()
            consumed = True
        return Received(frames, keepalive)

    def _is_enough(self, found: int, until: float) -> bool:
        """Whether the rest can wait, after a look that found so many frames."""
        trickles = found < _TRICKLE and self._arrived() < _WAITING
        return trickles or time.monotonic() > until

    def _take_some(
        self, frames: list[bytes], count: int, keepalive: Keepalive | None
    ) -> tuple[int, Keepalive | None]:
        """Append up to `count` frames. Returns libpq's last size (0: nothing to take, -1: the copy ended)."""
        append, get = frames.append, self._pgconn.get_copy_data
        size = 1
        for _ in range(count):
            size, data = get(1)
            if size >= XLOGDATA_HEADER and data[0] == XLOGDATA:
                append(bytes(data) if size <= PIECE else joined([data]))
            elif size > 0:
                keepalive = read_keepalive(bytes(data)).after(keepalive)
            else:
                break
        return size, keepalive

    def read_ahead(self) -> int | None:
        """Read what has arrived into libpq's buffer; None if it has no room for more. `take` raises errors.

        Returns how many bytes had arrived.

        libpq reads until nothing has arrived or its buffer is full, and doubles a full one (`pqReadData` in
        fe-misc.c). Its size can't be asked for. So the buffer counts as full if much is waiting after a read,
        more than a server sends in the next moment; and the bytes that were waiting before each read are
        added up.
        """
        if self._ahead >= _LARGEST_BUFFER or (self._may_be_full and self._buffer >= _LARGEST_BUFFER):
            return None
        try:
            if arrived := self._arrived():
                self._ahead += arrived
                self._buffer *= 2 if self._may_be_full else 1
                self._pgconn.consume_input()
                self._may_be_full = self._arrived() >= _WAITING
        except psycopg.OperationalError as failure:
            self._failure = self._failure or failure
            return None
        return arrived

    def _arrived(self) -> int:
        return int.from_bytes(ioctl(self._pgconn.socket, FIONREAD, bytes(4)), sys.byteorder)

    def _consume(self) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            self._pgconn.consume_input()
        except psycopg.OperationalError as error:
            raise self._last_words() or error from None

    def _last_words(self) -> psycopg.Error | None:
        """Return the error with which the server closed the connection, if it sent one."""
        try:
            while self._pgconn.get_copy_data(1)[0] > 0:
                pass
            result = self._pgconn.get_result()
        except psycopg.Error:
            return None
        if result is None or result.status != ExecStatus.FATAL_ERROR:
            return None
        return _error(result)

    def _end(self) -> None:
        """Return if CopyDone ended the copy; raise if an error did, or the server's shutdown."""
        if self._pgconn.is_busy():
            return
        result = self._pgconn.get_result()
        if result is None or result.status == ExecStatus.COPY_IN:
            return
        if result.status == ExecStatus.FATAL_ERROR:
            raise _error(result)
        if not self._finishing:
            raise psycopg.OperationalError("the server is shutting down")

    def finish(self, timeout: float, patience: float) -> bool:
        """Send CopyDone and read until the server's, for up to `timeout` seconds; false if none came.

        Gives up earlier if nothing at all comes for `patience` seconds.
        """
        deadline, silent_at, pause = time.monotonic() + timeout, time.monotonic() + patience, _PAUSE
        self._finishing = True
        self._pgconn.put_copy_end()
        while time.monotonic() < min(deadline, silent_at):
            self._pgconn.flush()
            received = self._take([], 1 << 20)
            if not received.empty:
                silent_at = time.monotonic() + patience
            if received.closed:
                self._await_command_end(min(deadline, time.monotonic() + 1))
                return True
            if received.frames:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            elif received.keepalive is None:
                self.wait(min(0.1, deadline - time.monotonic()))
        return False

    def _await_command_end(self, deadline: float) -> None:
        """Wait until the server releases the slot; in mid-transaction it does so only when we disconnect."""
        while self._pgconn.is_busy() and self.wait(deadline - time.monotonic()):
            self._consume()


def _error(result: PGresult) -> psycopg.Error:
    """Make an error from a result; without an SQLSTATE it is libpq's own: the connection was lost."""
    if result.error_field(DiagnosticField.SQLSTATE) is None:
        return psycopg.OperationalError(result.get_error_message())
    return error_from_result(result)


class ReadAhead:
    """A thread that reads ahead within `running`, under the connection's lock."""

    def __init__(self, frames: CopyBothFrames, lock: threading.Lock) -> None:
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
                much = arrived >= _WAITING
                pause = _READ_AHEAD_PAUSE if much else min(2 * pause, _LONGEST_READ_AHEAD_PAUSE)
                time.sleep(pause)

    def _step(self) -> int | None:
        with self._lock:
            return self._frames.read_ahead() if self._busy.is_set() else None


class Feedback:
    """The positions to report to the server, and a thread that sends them when an update is due.

    It only needs to send: a walsender reads updates even while its own sending is blocked. Positions never
    decrease. `flush_lsn`, the only one ever reported as flushed, is the position below which everything is
    durable. Every update requests a keepalive, so that a silent server is known to be lost.
    """

    def __init__(self, pgconn: PGconn, lock: threading.Lock, start: Lsn, interval: float) -> None:
        self._pgconn = pgconn
        self._lock = lock
        self._written = self.flush_lsn = start
        self._interval = interval
        self._due = time.monotonic() + interval
        self._unsent = False
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._writable = select.poll()
        self._writable.register(pgconn.socket, select.POLLOUT)
        self._thread = threading.Thread(target=self._run, name="pgcdc-feedback", daemon=True)
        self._thread.start()

    def confirm(self, written: Lsn, flushed: Lsn) -> None:
        """Set the positions for the next update; positions never decrease."""
        with self._lock:
            self.flush_lsn = max(self.flush_lsn, flushed)
            self._written = max(self._written, written, self.flush_lsn)

    def check(self) -> None:
        """Raise, in the data thread, the error that ended the feedback thread."""
        if isinstance(self._failure, psycopg.Error):
            raise server_failure("send a status update", self._failure) from self._failure
        if self._failure is not None:
            raise self._failure

    def reply(self) -> None:
        """Send an update now, since the server asked for it. The caller holds the lock."""
        self._due = 0.0
        self.send_if_due()

    def send_if_due(self) -> None:
        """Send an update if one is due. The caller holds the lock."""
        if self._due <= time.monotonic() and not self._unsent:
            self._due = time.monotonic() + self._interval
            self._put()
        if self._unsent and self._writable.poll(0):
            # Only if writable: otherwise PQflush reads into libpq's buffer, which nobody may be emptying.
            self._unsent = self._pgconn.flush() == 1

    def finish(self) -> None:
        """End the thread and put the last update into libpq's buffer. The caller doesn't hold the lock."""
        self.stop()
        with self._lock:
            self._put()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _put(self) -> None:
        update = standby_status(self._written, self.flush_lsn, time.time_ns() // 1000, reply=True)
        self._unsent = True
        if not self._pgconn.put_copy_data(update):
            self._due = 0.0

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._lock:
                    self.send_if_due()
                    wait = _UNSENT_WAIT if self._unsent else self._due - time.monotonic()
            except Exception as failure:  # noqa: BLE001 -- `check` raises it in the data thread
                self._failure = failure
                return
            self._stop.wait(max(0.0, wait) if wait < threading.TIMEOUT_MAX else None)
