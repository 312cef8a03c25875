"""Where the frames of a stream come from: the base of `socket_frames.py` and `libpq_frames.py`."""

import select
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import psycopg

from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.frames import Frames, Keepalive, Received

READ_BYTES = 2 << 20
"""Bytes of frames that end one read, however few they are: so wide rows take no more memory."""

LONGEST_READ = 0.1
"""Seconds of one read, at most, while a large message is incomplete: the feedback thread waits meanwhile."""

Part = TypeVar("Part")


class FrameSource(ABC, Generic[Part]):
    """The frames of one connection, taken in parts: frames, or runs of them.

    Only one thread at a time may use it, `wait` excepted. Raises psycopg.Error, UndecodableError, or the
    error that was given to `fail_after_taken`.
    """

    def __init__(self, wire: int) -> None:
        self.socket = wire
        self._taken: list[Part] = []
        self._keepalive: Keepalive | None = None
        self._copied = False
        self._finishing = False
        self._ended: psycopg.Error | PgcdcError | None = None
        self._left = 0
        self._readable = select.poll()
        self._readable.register(wire, select.POLLIN)

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
        self._taken, self._keepalive = [], None
        try:
            self._take(limit)
        except (psycopg.Error, PgcdcError) as error:
            self.fail_after_taken(error)
        if self._ended is None:
            return Received(self._frames(self._taken), self._keepalive, self._copied)
        if not self._left:
            raise self._ended
        return Received(self._frames(self._taken[: self._left]), None)

    def fail_after_taken(self, error: psycopg.Error | PgcdcError) -> None:
        """Stop here: return the frames taken so far, then raise `error`."""
        if self._ended is None:
            self._ended, self._left = error, len(self._taken)

    def put_copy_end(self) -> None:
        """Take CopyDone to be sent. Whatever else comes isn't wanted, and earlier errors are forgotten."""
        self._finishing, self._ended = True, None
        self._put_copy_done()

    @abstractmethod
    def _take(self, limit: int) -> None:
        """Take frames as parts, and the last keepalive; note whether the server's CopyDone came."""

    @abstractmethod
    def _frames(self, parts: Sequence[Part]) -> Frames: ...

    @abstractmethod
    def _put_copy_done(self) -> None: ...

    @abstractmethod
    def put_copy_data(self, message: bytes) -> bool:
        """Take a message to be sent; false if there is no room for it."""

    @abstractmethod
    def flush(self) -> bool:
        """Send what the socket takes; false if something is left."""

    @abstractmethod
    def await_command_end(self, deadline: float) -> None:
        """Wait until the server has ended the command, but not beyond `deadline`."""

    @abstractmethod
    def close(self) -> None:
        """Leave the connection to libpq."""
