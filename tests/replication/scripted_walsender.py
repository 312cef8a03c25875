"""A walsender for one connection that sends what a test says, and records what it receives."""

import contextlib
import socket
import struct
import threading
import time

from processes import wait_until


def message(tag: bytes, body: bytes = b"") -> bytes:
    return tag + struct.pack(">I", len(body) + 4) + body


def error(sqlstate: str, text: str, severity: str = "ERROR", tag: bytes = b"E") -> bytes:
    fields = {"S": severity, "V": severity, "C": sqlstate, "M": text}
    return message(tag, b"".join(f"{k}{v}\0".encode() for k, v in fields.items()) + b"\0")


def copy_data(frame: bytes) -> bytes:
    return message(b"d", frame)


def xlogdata(lsn: int, body: bytes) -> bytes:
    return copy_data(struct.pack(">cqqq", b"w", lsn, lsn, 0) + body)


def keepalive(wal_end: int, *, reply: bool = False) -> bytes:
    return copy_data(struct.pack(">cqqB", b"k", wal_end, 0, reply))


def _row(number: int, text: str, encrypted: bool) -> bytes:
    values = [(23, str(number).encode()), (25, text.encode()), (16, b"f"), (16, b"t" if encrypted else b"f")]
    columns = b"".join(b"value\0" + struct.pack(">IhIhih", 0, 0, oid, -1, -1, 0) for oid, _ in values)
    return (
        message(b"T", struct.pack(">h", len(values)) + columns)
        + message(b"D", struct.pack(">h", len(values)) + b"".join(map(_value, values)))
        + message(b"C", b"SELECT 1\0")
    )


def _value(value: tuple[int, bytes]) -> bytes:
    return struct.pack(">i", len(value[1])) + value[1]


READY = message(b"Z", b"I")


class ScriptedWalsender:
    """`heard` has (seconds since the start, message type, body) of each message after START_REPLICATION.

    It reads nothing while `reading` is cleared, once `idle` is set: it may be reading a message just then.
    If it says that the connection is `encrypted`, libpq reads what it sends. It answers START_REPLICATION
    with `refusal`, if there is one.
    """

    def __init__(
        self, wal_sender_timeout: int = 0, confirmed: str = "0/100", *, encrypted: bool = False
    ) -> None:
        self._before_start = _row(wal_sender_timeout, confirmed, encrypted)
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._socket = self._file = None
        self.heard: list[tuple[float, bytes, bytes]] = []
        self.refusal = b""
        self.streaming = threading.Event()
        self.reading = threading.Event()
        self.reading.set()
        self.idle = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def uri(self) -> str:
        return (
            f"postgresql://u@127.0.0.1:{self._listener.getsockname()[1]}/d?sslmode=disable&gssencmode=disable"
        )

    def send(self, data: bytes) -> None:
        assert self.streaming.wait(10)
        self._socket.sendall(data)

    def statuses(self) -> list[tuple[float, int, int]]:
        """(seconds, written, flushed) of all status updates so far."""
        updates = [(at, body) for at, tag, body in list(self.heard) if tag == b"d" and body[:1] == b"r"]
        return [(at, *struct.unpack_from(">qq", body, 1)) for at, body in updates]

    def wait_for(self, count: int) -> list[tuple[float, int, int]]:
        return wait_until(lambda: len(found := self.statuses()) >= count and found)

    def hang_up(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.reading.set()
        for one in (self._listener, self._socket):
            if one is not None:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in (self._file, self._socket, self._listener):
            if each is not None:
                each.close()

    def _serve(self) -> None:
        try:
            self._socket = self._listener.accept()[0]
            self._file = self._socket.makefile("rb")
            (size,) = struct.unpack(">I", self._file.read(4))
            self._file.read(size - 4)
            self._socket.sendall(message(b"R", struct.pack(">I", 0)) + READY)
            while self._command():
                pass
            self._listen()
        except (OSError, ValueError, struct.error):
            return

    def _read(self) -> tuple[bytes, bytes]:
        tag = self._file.read(1)
        (size,) = struct.unpack(">I", self._file.read(4))
        return tag, self._file.read(size - 4)

    def _command(self) -> bool:
        _, body = self._read()
        text = body.decode()
        begins = text.startswith("START_REPLICATION")
        if begins and not self.refusal:
            self._socket.sendall(message(b"W", struct.pack(">bh", 0, 0)))
            self._began = time.monotonic()
            self.streaming.set()
            return False
        answer = self._before_start if "confirmed_flush_lsn" in text else message(b"C", b"SET\0")
        self._socket.sendall((self.refusal if begins else answer) + READY)
        return True

    def _listen(self) -> None:
        while True:
            if not self.reading.is_set():
                self.idle.set()
                self.reading.wait()
            tag, body = self._read()
            self.heard.append((time.monotonic() - self._began, tag, body))
            if tag == b"c":
                self._socket.sendall(message(b"c") + message(b"C", b"COPY 0\0") + READY)
