"""`pgcdc stream` tells the service manager (systemd) that it is ready, what it does, and that it is alive."""

import socket

import pytest
from processes import wait_until
from stream_runs import NOW, insert, stream


class Manager:
    """The socket of a service manager, and what it was told."""

    def __init__(self, address):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)
        self.told = []

    def read(self):
        while True:
            try:
                message = self._socket.recv(4096)
            except BlockingIOError:
                return self.told
            self.told.append(dict(line.split("=", 1) for line in message.decode().split("\n")))

    def close(self):
        self._socket.close()


@pytest.fixture(params=["file", "abstract"])
def manager(request, tmp_path, monkeypatch):
    """A manager that waits for messages of what is started from here on."""
    name = f"@{tmp_path}" if request.param == "abstract" else f"{tmp_path}/notify"
    manager = Manager(name.replace("@", "\0"))
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    yield manager
    manager.close()


def test_it_is_told_where_a_running_stream_is(source, follow, manager, tmp_path):
    following = follow(source.uri, source.create_slot(), tmp_path / "f", "-F", "0.1")
    first = wait_until(manager.read)[0]
    assert (first["READY"], first["WATCHDOG"]) == ("1", "1")
    assert first["STATUS"].endswith("; 0 rows in 0 transactions")
    insert(source, 1, 3)
    wait_until(lambda: manager.read()[-1]["STATUS"].endswith("; 3 rows in 1 transaction"))
    before = len(manager.told)
    wait_until(lambda: len(manager.read()) >= before + 3)
    assert following.stop() == (0, "")


def test_a_stream_that_can_not_begin_is_not_ready(source, manager):
    assert stream(source.uri, "missing", "-f", "-").returncode == 5
    assert manager.read() == []


def test_a_command_for_segments_has_nothing_to_tell(source, manager, tmp_path):
    slot, told = source.create_slot(), tmp_path / "told"
    insert(source, 1, 1)
    command = ("--on-segment", f'echo "${{NOTIFY_SOCKET-}}${{WATCHDOG_USEC-}}" >{told}')
    run = stream(source.uri, slot, "-D", tmp_path / "out", *command, *NOW)
    assert (run.returncode, run.stderr) == (0, "")
    assert told.read_text() == "\n"
    assert manager.read()


@pytest.mark.parametrize("address", ["/nowhere/notify", "vsock:2:1234", "@", "\n"])
def test_without_its_socket_the_stream_goes_on(source, monkeypatch, address):
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setenv("WATCHDOG_USEC", "soon")
    insert(source, 1, 1)
    run = stream(source.uri, source.create_slot(), "-f", "-", *NOW)
    assert (run.returncode, run.stderr) == (0, "")
