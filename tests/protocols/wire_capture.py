"""What a server sends for a slot, frame by frame; pgcdc's plain decoder reads it, but not its stream."""

import select
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg
from processes import wait_until
from psycopg import pq

from pgcdc_cli.frames import XLOGDATA, XLOGDATA_HEADER, read_keepalive, standby_status
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.decode import decode
from pgcdc_cli.pgoutput.messages import Message, StreamStart, StreamStop
from pgcdc_cli.replication.commands import start_replication


class Sent(NamedTuple):
    """One message of the plugin: start and end LSN of its frame, its bytes, and the decoded message."""

    start: Lsn
    end: Lsn
    data: bytes
    message: Message


class Capture:
    """A started replication stream; `sent` is what has been read from it."""

    def __init__(self, uri: str, pgconn: pq.abc.PGconn, *, parallel: bool) -> None:
        self.sent: list[Sent] = []
        self._uri = uri
        self._pgconn = pgconn
        self._parallel = parallel
        self._in_stream = False

    def catch_up(self) -> list[Sent]:
        """Read everything that is in the log now; return what is new."""
        with psycopg.connect(self._uri, autocommit=True) as admin:
            [until] = admin.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
            admin.execute("SELECT pg_logical_emit_message(false, 'a record beyond', '')")
        before = len(self.sent)
        wait_until(lambda: self._take(Lsn.parse(until)) or self._ask())
        return self.sent[before:]

    def confirm(self, lsn: Lsn, *, reply: bool = False) -> None:
        self._pgconn.put_copy_data(standby_status(lsn, lsn, 0, reply=reply))
        self._pgconn.flush()

    def _ask(self) -> None:
        """Ask for a keepalive, and wait a moment for data."""
        self.confirm(Lsn(1), reply=True)
        select.select([self._pgconn.socket], [], [], 0.1)

    def end(self) -> None:
        self._pgconn.put_copy_end()
        self._pgconn.flush()
        while self._pgconn.get_copy_data(0)[0] > 0:
            pass

    def _take(self, until: Lsn) -> bool:
        """Read what has arrived; True once a keepalive says that nothing more comes before `until`."""
        self._pgconn.consume_input()
        while (got := self._pgconn.get_copy_data(1))[0] > 0:
            frame = bytes(got[1])
            if frame[0] == XLOGDATA:
                self._message(frame)
            elif read_keepalive(frame).wal_end > until:
                return True
        assert got[0] == 0, self._pgconn.error_message
        return False

    def _message(self, frame: bytes) -> None:
        data = frame[XLOGDATA_HEADER:]
        message = decode(data, in_stream=self._in_stream, streaming_parallel=self._parallel)
        if isinstance(message, StreamStart | StreamStop):
            self._in_stream = isinstance(message, StreamStart)
        start, end = (Lsn.from_bytes(frame[at : at + 8], "big") for at in (1, 9))
        self.sent.append(Sent(start, end, data, message))


@contextmanager
def capturing(uri: str, slot: str, **options: str) -> Iterator[Capture]:
    """Start a stream; options of pgoutput that aren't given are those of protocol 1."""
    options = {"proto_version": "1", "publication_names": "pub"} | options
    with psycopg.connect(
        f"{uri}&replication=database", autocommit=True, cursor_factory=psycopg.ClientCursor
    ) as connection:
        result = connection.pgconn.exec_(start_replication(slot, Lsn(0), options.items()).encode())
        assert result.status == pq.ExecStatus.COPY_BOTH, result.error_message
        capture = Capture(uri, connection.pgconn, parallel=options.get("streaming") == "parallel")
        yield capture
        capture.end()
        connection.pgconn.finish()


def capture(uri: str, slot: str, **options: str) -> list[Sent]:
    """Read a slot up to now, without confirming anything."""
    with capturing(uri, slot, **options) as started:
        return started.catch_up()
