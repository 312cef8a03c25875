"""A refused connection has one meaning, whatever the language of the server's messages (`lc_messages`)."""

import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.replication.session import connect

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libpq traces connections only on Linux")


@contextmanager
def refusing(sqlstate: str, message: str) -> Iterator[str]:
    """Start a server that refuses every connection; yields a connection string."""
    fields = "".join(f"{field}\0" for field in ("SFATAL", "VFATAL", f"C{sqlstate}", f"M{message}", ""))
    answer = b"E" + (4 + len(fields.encode())).to_bytes(4, "big") + fields.encode()

    class Refusal(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.read(int.from_bytes(self.rfile.read(4), "big") - 4)
            self.wfile.write(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusal) as server:
        threading.Thread(target=server.serve_forever, args=[0.01]).start()
        try:
            port = server.server_address[1]
            yield f"host=127.0.0.1 port={port} user=ada dbname=shop sslmode=disable gssencmode=disable"
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    ("sqlstate", "message", "kind", "hint"),
    [
        ("53300", "tut mir leid, schon zu viele Verbindungen", ErrorKind.CONNECTION, "max_connections"),
        ("57P01", "breche Verbindung ab", ErrorKind.NOT_READY, "run again"),
        ("55000", "Datenbank »shop« akzeptiert gegenwärtig keine Verbindungen", ErrorKind.NOT_READY, "again"),
        ("3D000", "Datenbank »shop« existiert nicht", ErrorKind.USAGE, "check -d"),
        ("42704", "unbekannter Konfigurationsparameter »work_men«", ErrorKind.USAGE, "PGOPTIONS"),
        ("42501", "keine Berechtigung, um WAL-Sender zu starten", ErrorKind.RIGHTS, "REPLICATION"),
        ("28000", "Rolle »ada« existiert nicht", ErrorKind.AUTHENTICATION, "check user"),
    ],
)
@pytest.mark.parametrize("replication", [False, True])
def test_a_refusal_in_german_is_told_apart_by_its_code(
    sqlstate: str, message: str, kind: ErrorKind, hint: str, *, replication: bool
) -> None:
    with refusing(sqlstate, message) as conninfo, pytest.raises(PgcdcError) as refused:
        connect(conninfo, replication=replication)
    assert refused.value.kind is kind
    assert message in refused.value.message
    assert hint in refused.value.hint
