"""A client key that libpq can't use is an error for the user to fix, not a server to wait for."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.replication.session import connect

CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBbzCCARWgAwIBAgIUDT/EK/2hw4VxtWFmQ6fLyEPrwegwCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBdTAgFw0yNjExMjIxMDAyMzZaGA8yMTI2MTAyOTEwMDIzNlow
DDEKMAgGA1UEAwwBdTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABJCaAgul/0HO
nvy3tVTqR3MJr+wlgshzY9cru5aqjAZn3CuDc1pjAA4UtpoRxVxED8fbavsstBK8
54r71qi+muCjUzBRMB0GA1UdDgQWBBTXgDachEyukbyxEG12yZpdPfFcBjAfBgNV
HSMEGDAWgBTXgDachEyukbyxEG12yZpdPfFcBjAPBgNVHRMBAf8EBTADAQH/MAoG
CCqGSM49BAMCA0gAMEUCIQDmxXYaX9U7v2zBqfhANKqJR5hnYRbSSxXziwQZKb9Z
XwIgBx4FKJgVtfSQlsqoZqcKb576etZSUDj5wyIHYsW8I9Y=
-----END CERTIFICATE-----
"""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a listener that agrees to TLS as a server does, so that libpq then loads its key."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                with listener.accept()[0] as one:
                    one.recv(8)
                    one.sendall(b"S")
                    one.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.fixture
def conninfo(port, tmp_path) -> str:
    (tmp_path / "crt").write_text(CERTIFICATE)
    files = f"sslcert={tmp_path}/crt sslkey={tmp_path}/key"
    return f"host=127.0.0.1 port={port} dbname=d user=u sslmode=require {files}"


def refusal(conninfo: str) -> PgcdcError:
    with pytest.raises(PgcdcError) as caught:
        connect(conninfo)
    error = caught.value
    assert error.kind is ErrorKind.USAGE
    assert error.hint == "check sslkey, a file that only its owner may read (chmod 600), and sslpassword"
    assert "\n" not in error.message
    return error


def test_a_key_that_is_missing(conninfo, tmp_path):
    assert f'private key file "{tmp_path}/key"' in refusal(conninfo).message


def test_a_key_that_others_may_read(conninfo, tmp_path):
    (tmp_path / "key").touch(0o644)
    assert f'private key file "{tmp_path}/key" has group or world access' in refusal(conninfo).message


def test_a_key_that_is_none(conninfo, tmp_path):
    (tmp_path / "key").touch(0o600)
    assert f'could not load private key file "{tmp_path}/key"' in refusal(conninfo).message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_key_that_may_not_be_read(conninfo, tmp_path):
    (tmp_path / "key").touch(0o000)
    assert f'private key file "{tmp_path}/key"' in refusal(conninfo).message
