"""A proxy that makes a connection fail in every way."""

import contextlib
import socket
import threading
import time

from pgcdc_cli.demo.embedded_server import EmbeddedServer


class Proxy:
    """A TCP port in front of a server's Unix socket or port, on which everything can go wrong."""

    def __init__(self, server: EmbeddedServer | int) -> None:
        self.move(server)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._gates: list[threading.Event] = []
        self._add_gate()
        self._budget: int | None = None
        self._counting = threading.Lock()
        self._once = False
        self._delay = 0.0
        self._change = (b"", b"")
        self._refusals = 0
        self.cuts = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    def uri(self, database: str, user: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}?sslmode=disable"

    def move(self, server: EmbeddedServer | int) -> None:
        """Connect later clients to another server; present connections stay."""
        self._target = server if isinstance(server, int) else f"{server.socket_directory}/.s.PGSQL.5432"

    def stall(self) -> None:
        """Let nothing more through, in either direction, without closing anything."""
        self._gates[-1].clear()

    def strand(self) -> None:
        """Stall the present connections; later ones work."""
        self.stall()
        self._add_gate()

    def resume(self) -> None:
        """Let everything through again, without delay."""
        with self._counting:
            self._budget = None
        self._delay = 0.0
        for gate in self._gates:
            gate.set()

    def _add_gate(self) -> None:
        gate = threading.Event()
        gate.set()
        self._gates.append(gate)

    def cut(self) -> None:
        """Close all connections."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.cuts += 1

    def delay(self, seconds: float) -> None:
        """Delay each piece of data by this time."""
        self._delay = seconds

    def half_close(self) -> None:
        """Shut down the sending side towards the clients; what they send still arrives."""
        for client in self._sockets[::2]:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)

    def end_with(self, message: bytes) -> None:
        """Send clients a message as if from the server, which must be silent; then close all connections."""
        for client in self._sockets[::2]:
            with contextlib.suppress(OSError):
                client.sendall(message)
        self.cut()

    def cut_after(self, size: int, *, once: bool = False) -> None:
        """Close all connections after `size` more bytes from the server; later ones, too, unless `once`."""
        self._budget, self._once = size, once

    def replace(self, before: bytes, after: bytes) -> None:
        """Replace bytes in what the server sends."""
        self._change = (before, after)

    def refuse(self, connections: int) -> None:
        """Close the next connections at once."""
        self._refusals = connections

    def close(self) -> None:
        self.resume()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            if self._refusals:
                self._refusals -= 1
                client.close()
                continue
            by_port = isinstance(self._target, int)
            upstream = socket.socket(socket.AF_INET if by_port else socket.AF_UNIX)
            try:
                upstream.connect(("127.0.0.1", self._target) if by_port else self._target)
            except OSError:
                client.close()
                upstream.close()
                continue
            self._sockets += [client, upstream]
            carry = threading.Thread(
                target=self._carry, args=(client, upstream, self._gates[-1]), daemon=True
            )
            self._threads.append(carry)
            carry.start()

    def _carry(self, client: socket.socket, upstream: socket.socket, gate: threading.Event) -> None:
        """Carry a connection's data until both directions have ended."""
        with client, upstream:
            back = threading.Thread(target=self._pump, args=(upstream, client, gate, True), daemon=True)
            back.start()
            self._pump(client, upstream, gate, False)
            back.join()

    def _pump(
        self, source: socket.socket, sink: socket.socket, gate: threading.Event, from_server: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                gate.wait()
                time.sleep(self._delay)
                allowed, is_last = self._allowed(data) if from_server else (data, False)
                sink.sendall(allowed)
                if is_last:
                    self.cut()
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def _allowed(self, data: bytes) -> tuple[bytes, bool]:
        """Return what may still pass of this, and whether the connections are to be cut behind it."""
        data = data.replace(*self._change)
        with self._counting:
            if self._budget is None:
                return data, False
            data = data[: self._budget]
            self._budget -= len(data)
            is_last = self._budget == 0
            if is_last and self._once:
                self._budget = None
            return data, is_last
