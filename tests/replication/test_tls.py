"""TLS with a real server: its identity, ours, and passwords that never cross the wire."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import certificates
import psycopg
import pytest
from certificates import Authority
from debian_server import DebianServer, free_port
from processes import PGCDC, stream_command, wait_until
from proxy import Proxy
from psycopg.conninfo import make_conninfo

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import ReplicationConnection
from pgcdc_cli.replication.session import connect

MISSING = DebianServer.missing() or certificates.MISSING
# The embedded servers were built without TLS.
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")

HBA = """
local all all trust
hostssl all scrammed 127.0.0.1/32 scram-sha-256
hostssl all certified 127.0.0.1/32 cert
"""
"""`all` includes walsenders that name a database."""


class TlsServer:
    """PostgreSQL 15 with a certificate for the name localhost; on TCP it requires TLS."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder, "authority")
        self.authority = authority.certificate
        self.stranger = Authority(folder, "stranger").certificate
        self.client = authority.sign("certified")
        self.unknown = authority.sign("somebody")
        self.port = free_port()
        self.server = DebianServer({"listen_addresses": "127.0.0.1", "port": str(self.port)})
        certificate, key = authority.sign("localhost", "DNS:localhost")
        (self.server.data / "pg_hba.conf").write_text(HBA)
        with psycopg.connect(self.server.uri() + f"&port={self.port}", autocommit=True) as admin:
            admin.execute("CREATE ROLE scrammed LOGIN REPLICATION PASSWORD 'r1ght'")
            admin.execute("CREATE ROLE certified LOGIN REPLICATION")
        self.server.allow_tls(certificate, key, self.authority)

    def conninfo(self, user: str, **more: str | Path) -> str:
        given = {"hostaddr": "127.0.0.1", "host": "localhost", "sslmode": "verify-full"}
        given |= {"sslrootcert": str(self.authority), **{name: str(value) for name, value in more.items()}}
        return make_conninfo("", **{"port": self.port, "dbname": "postgres", "user": user, **given})


@pytest.fixture(scope="module")
def tls() -> Iterator[TlsServer]:
    folder = Path(tempfile.mkdtemp(prefix="pgcdc-tls-"))
    server = TlsServer(folder)
    yield server
    server.server.stop()
    shutil.rmtree(folder)


def encryption(conninfo: str) -> tuple[bool, str | None]:
    """Whether a session is encrypted, and the distinguished name of its client certificate."""
    with connect(conninfo) as session:
        query = "SELECT ssl, client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        row = session.execute(query).fetchone()
        assert row is not None
        return row[0] in {True, "t"}, row[1]


def refusal(conninfo: str) -> PgcdcError:
    """The error of a connection; it must be of the same kind for SQL and for replication."""
    kinds = set()
    for replication in (False, True):
        with pytest.raises(PgcdcError, match="could not connect to the server: ") as caught:
            connect(conninfo, replication=replication)
        kinds.add(caught.value.kind)
    assert len(kinds) == 1
    assert "\n" not in caught.value.message
    return caught.value


def test_a_password_by_scram_bound_to_the_channel(tls: TlsServer) -> None:
    conninfo = tls.conninfo("scrammed", password="r1ght", channel_binding="require")
    assert encryption(conninfo) == (True, None)
    with ReplicationConnection(conninfo) as connection:
        assert connection.identify_system().timeline == 1


def test_a_wrong_password_is_not_shown(tls: TlsServer) -> None:
    error = refusal(tls.conninfo("scrammed", password="wr0ng"))
    assert error.kind is ErrorKind.AUTHENTICATION
    assert "wr0ng" not in error.message + error.hint


def test_a_wrong_password_is_the_cause_even_if_it_is_then_tried_without_tls(tls: TlsServer) -> None:
    """By default libpq does so, and a server that wants TLS refuses that, too."""
    error = refusal(tls.conninfo("scrammed", password="wr0ng", sslmode="prefer"))
    assert "password authentication failed" in error.message
    assert error.hint == ErrorKind.AUTHENTICATION.rule.hint


def test_a_certificate_stands_for_a_password(tls: TlsServer) -> None:
    certificate, key = tls.client
    conninfo = tls.conninfo("certified", sslcert=certificate, sslkey=key)
    assert encryption(conninfo) == (True, "/CN=certified")
    with ReplicationConnection(conninfo) as connection:
        assert connection.identify_system().timeline == 1


def test_no_certificate_or_that_of_another_is_an_authentication_error(tls: TlsServer) -> None:
    missing = refusal(tls.conninfo("certified", sslcert="/nowhere", sslkey="/nowhere"))
    assert "sslcert" in missing.hint
    certificate, key = tls.unknown
    another = refusal(tls.conninfo("certified", sslcert=certificate, sslkey=key))
    assert missing.kind is another.kind is ErrorKind.AUTHENTICATION


@pytest.mark.parametrize("reason", ["stranger", "name"])
def test_a_server_that_cannot_prove_who_it_is_gets_no_password(tls: TlsServer, reason: str) -> None:
    """Nor is it tried again: only another certificate or other options can help."""
    wrong = {"stranger": {"sslrootcert": tls.stranger}, "name": {"host": "elsewhere"}}[reason]
    error = refusal(tls.conninfo("scrammed", password="r1ght", **wrong))
    assert error.kind is ErrorKind.USAGE
    assert error.hint == "check sslmode, sslrootcert and sslcert"


def test_without_tls_the_server_refuses(tls: TlsServer) -> None:
    error = refusal(tls.conninfo("scrammed", password="r1ght", sslmode="disable"))
    assert error.kind is ErrorKind.AUTHENTICATION
    assert "no encryption" in error.message


@pytest.fixture
def wire(tls: TlsServer) -> Iterator[Proxy]:
    proxy = Proxy(tls.port)
    yield proxy
    proxy.close()


@pytest.fixture
def admin(tls: TlsServer) -> Iterator[psycopg.Connection]:
    """A session in a database with a published table and slot `s`."""
    with psycopg.connect(tls.server.uri() + f"&port={tls.port}", autocommit=True) as admin:
        admin.execute("CREATE TABLE t (a int)")
        admin.execute("CREATE PUBLICATION pub FOR TABLE t")
        admin.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        yield admin
        wait_until(lambda: admin.execute("SELECT active FROM pg_replication_slots").fetchone() == (False,))
        admin.execute("SELECT pg_drop_replication_slot('s')")
        admin.execute("DROP PUBLICATION pub")
        admin.execute("DROP TABLE t")


def test_wires_cut_inside_tls_lose_and_double_nothing(
    tls: TlsServer, wire: Proxy, admin: psycopg.Connection, tmp_path: Path
) -> None:
    """The first cut is within the handshake of the first connection, the others within frames."""
    path = tmp_path / "out"
    conninfo = tls.conninfo("scrammed", password="r1ght", port=wire.port)
    wire.cut_after(3, once=True)
    line = stream_command(conninfo, "s", "-f", str(path), "-s", "0.2", "-F", "0.1")
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        try:
            insert(admin, 1)
            arrive(path, process, 1)
            for number, size in enumerate((1, 6, 3000, 20_000), 2):
                before = wire.cuts
                wire.cut_after(size)
                insert(admin, number)
                wait_until(lambda: wire.cuts > before or process.poll() is not None)  # noqa: B023 - at once
                wire.resume()
                arrive(path, process, number)
        finally:
            process.terminate()
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 0, errors
    assert written(path) == list(range(1, 5001))
    assert errors.count("; trying again\n") >= 4


def insert(admin: psycopg.Connection, number: int) -> None:
    """Insert the number-th thousand of rows."""
    last = 1000 * number
    admin.execute("INSERT INTO t SELECT generate_series(%s::int, %s)", (last - 999, last))


def arrive(path: Path, process: subprocess.Popen[str], number: int) -> None:
    """Wait until the number-th thousand of rows is in the file, or the process ends."""
    wait_until(lambda: written(path)[-1:] == [1000 * number] or process.poll() is not None)


def written(path: Path) -> list[int]:
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line)["new"]["a"] for line in lines if line.endswith("\n")]


def test_one_look_takes_many_rows_though_each_comes_in_a_record_of_its_own(
    tls: TlsServer, admin: psycopg.Connection
) -> None:
    admin.execute("INSERT INTO t SELECT generate_series(1, 1000)")
    row = admin.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    assert row is not None
    end, frames, looks = Lsn.parse(row[0]), 0, 0
    options = {"proto_version": "1", "publication_names": "pub"}
    with ReplicationConnection(tls.conninfo("scrammed", password="r1ght")) as connection:
        stream = connection.start("s", Lsn(0), options.items())
        wait_until(lambda: sent(admin) >= end)
        while frames < 1000:
            frames += len(stream.receive(10_000, 10.0).frames)
            looks += 1
    assert looks < 100


def test_the_last_words_behind_a_large_message_are_heard(tls: TlsServer, admin: psycopg.Connection) -> None:
    """What libpq reads together with the end of the connection it reports as that end alone."""
    row = admin.execute("SELECT pg_logical_emit_message(false, '', repeat('x', 100000))::text").fetchone()
    assert row is not None
    options = {"proto_version": "1", "publication_names": "pub", "messages": "true"}
    with ReplicationConnection(tls.conninfo("scrammed", password="r1ght")) as connection:
        stream = connection.start("s", Lsn(0), options.items())
        wait_until(lambda: sent(admin) >= Lsn.parse(row[0]))
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
        wait_until(lambda: sent(admin) == Lsn(0))
        assert len(stream.receive(10, 10.0).frames) == 1
        with pytest.raises(PgcdcError, match="terminating connection due to administrator command") as caught:
            stream.receive(10, 10.0)
    assert caught.value.kind is ErrorKind.NOT_READY


def sent(admin: psycopg.Connection) -> Lsn:
    """The position up to which the only walsender has sent."""
    row = admin.execute("SELECT coalesce(max(sent_lsn), '0/0')::text FROM pg_stat_replication").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


@pytest.fixture
def texts(tls: TlsServer) -> Iterator[dict[int, str | None]]:
    """Rows of a published table: more than a chunk, one larger than a chunk, and every escape of COPY."""
    with psycopg.connect(tls.server.uri() + f"&port={tls.port}", autocommit=True) as admin:
        admin.execute("CREATE TABLE texts (a int PRIMARY KEY, b text)")
        admin.execute(
            r"INSERT INTO texts SELECT g, CASE WHEN g % 7 > 0 THEN repeat(E'\t\\N\n\x08é ' || g, g % 40) END"
            " FROM generate_series(1, 60000) g"
        )
        admin.execute(r"INSERT INTO texts VALUES (0, repeat(E'\\\n', 5000000))")
        admin.execute("GRANT SELECT ON texts TO scrammed; CREATE PUBLICATION texts FOR TABLE texts")
        yield dict(admin.execute("SELECT a, b FROM texts").fetchall())
        admin.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        admin.execute("DROP PUBLICATION texts; DROP TABLE texts")


@pytest.mark.parametrize("command", ["snapshot", "stream"])
def test_a_snapshot_has_every_row_as_it_is(
    tls: TlsServer, texts: dict[int, str | None], tmp_path: Path, command: str
) -> None:
    """On encrypted connections libpq returns rows one by one; here several connections read."""
    conninfo = tls.conninfo("scrammed", password="r1ght", sslmode="require")
    given = ["--publication", "texts", "-f", str(tmp_path / "out"), "--snapshot-workers", "3"]
    given += ["-S", "s", "--snapshot", "initial", "--endpos", "now"] if command == "stream" else []
    subprocess.run([*PGCDC, command, "-d", conninfo, *given], check=True)
    rows = [json.loads(line)["new"] for line in (tmp_path / "out").read_text().splitlines()]
    assert len(rows) == len(texts)
    assert {row["a"]: row["b"] for row in rows} == texts
