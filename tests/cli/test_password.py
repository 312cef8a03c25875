"""Passwords are asked for only on a terminal, reach the server, and are never shown."""

import os
import socket
import struct
import subprocess
import threading

import pytest
from processes import PGCDC

SECRET = "s3cr3t"
DENIED = b"SFATAL\0C28P01\0Mno, not that\0\0"


class Doorkeeper(threading.Thread):
    """A server that asks for a password (protocol: "Message Formats") and accepts none."""

    def __init__(self):
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.passwords = []

    def run(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb", buffering=0) as wire:
                self.answer(wire)

    def answer(self, wire):
        while True:
            size, code = struct.unpack(">ii", wire.read(8))
            wire.read(size - 8)
            if code >> 16 == 3:
                break
            wire.write(b"N")  # neither SSL nor GSSAPI
        wire.write(b"R" + struct.pack(">ii", 8, 3))
        kind = wire.read(1)
        if kind == b"p":
            [size] = struct.unpack(">i", wire.read(4))
            self.passwords.append(wire.read(size - 4).rstrip(b"\0").decode())
            wire.write(b"E" + struct.pack(">i", len(DENIED) + 4) + DENIED)


@pytest.fixture
def doorkeeper():
    thread = Doorkeeper()
    thread.start()
    yield thread
    thread.listener.shutdown(socket.SHUT_RDWR)
    thread.listener.close()
    thread.join(10)


def read_until(stream, end):
    """Read up to `end`, or to the end of the stream."""
    text = ""
    while not text.endswith(end) and (character := stream.read(1)):
        text += character
    return text


@pytest.fixture
def ask(doorkeeper, tmp_path):
    """Run `pgcdc slot list` and type an answer; without `terminal` it can't ask anybody."""

    def run(*arguments, terminal=True, env=None):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        controller, keyboard = os.openpty()
        command = [*PGCDC, "slot", "list", "-h", "127.0.0.1", "-U", "me"]
        process = subprocess.Popen(
            [*command, "-p", str(doorkeeper.port), *arguments],
            stdin=keyboard if terminal else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**clean, "HOME": str(tmp_path), **(env or {})},
        )
        os.close(keyboard)
        err = read_until(process.stderr, "Password: ")
        # Typed only now, because input before the question is discarded.
        os.write(controller, f"{SECRET}\n".encode())
        out, rest = process.communicate(timeout=60)
        os.close(controller)
        assert SECRET not in out + err + rest
        return process.returncode, err + rest

    return run


def test_it_is_asked_for_before_connecting(ask, doorkeeper):
    status, err = ask("-W")
    assert status == 4
    assert err.count("Password: ") == 1
    assert set(doorkeeper.passwords) == {SECRET}


def test_it_is_asked_for_when_the_server_wants_it(ask, doorkeeper):
    status, err = ask()
    assert status == 4
    assert err.count("Password: ") == 1
    assert set(doorkeeper.passwords) == {SECRET}


@pytest.mark.parametrize(("arguments", "terminal"), [(["-w"], True), ([], False), (["-w"], False)])
def test_it_is_not_asked_for(ask, doorkeeper, arguments, terminal):
    status, err = ask(*arguments, terminal=terminal)
    assert status == 4
    assert "Password: " not in err
    assert doorkeeper.passwords == []
    error, hint = err.splitlines()
    assert error.startswith("pgcdc: error: could not connect to the server: ")
    assert error.endswith("no password supplied")
    assert hint == "hint: check user, password (PGPASSWORD, ~/.pgpass or -W) and pg_hba.conf"


def test_libpqs_own_ways_need_no_question(ask, doorkeeper):
    for arguments, env in (
        ([], {"PGPASSWORD": SECRET}),
        (["-d", f"postgresql://me:{SECRET}@127.0.0.1:{doorkeeper.port}/shop"], {}),
        (["-d", f"password={SECRET}", "--debug"], {}),
    ):
        status, err = ask(*arguments, terminal=False, env=env)
        assert status == 4
        assert "no, not that" in err
        assert set(doorkeeper.passwords) == {SECRET}
        doorkeeper.passwords.clear()
