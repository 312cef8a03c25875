"""GSSAPI with a real server and a real Kerberos realm: encryption that only libpq can read, and tickets."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
import pytest
from debian_server import DebianServer, free_port
from processes import PGCDC, wait_until
from psycopg.conninfo import make_conninfo

PROGRAMS = ("krb5kdc", "kadmin.local", "kinit")
NO_KERBEROS = "there is no Kerberos server: apt install krb5-kdc krb5-admin-server krb5-user"
MISSING = DebianServer.missing() or (None if all(map(shutil.which, PROGRAMS)) else NO_KERBEROS)
# The embedded servers were built without GSSAPI.
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")

HBA = "local all all trust\nhostgssenc all all 127.0.0.1/32 gss include_realm=0\n"
"""`all` includes walsenders that name a database. Nobody gets in over TCP without encryption."""

CLIENT_CONF = """
[libdefaults]
default_realm = PGCDC.TEST
dns_lookup_kdc = false
dns_canonicalize_hostname = false
rdns = false
[realms]
PGCDC.TEST = {{
  kdc = 127.0.0.1:{port}
}}
"""
KDC_CONF = """
[realms]
PGCDC.TEST = {{
  kdc_listen = 127.0.0.1:{port}
  kdc_tcp_listen = 127.0.0.1:{port}
  database_name = {folder}/principals
  key_stash_file = {folder}/stash
}}
"""


class Realm:
    """A Kerberos realm with the principals `alice`, who has a ticket, and `postgres/localhost`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)  # the server, as another user, reads krb5.conf
        self.keytab = folder / "postgres.keytab"
        port = free_port()
        (folder / "krb5.conf").write_text(CLIENT_CONF.format(port=port))
        (folder / "kdc.conf").write_text(KDC_CONF.format(port=port, folder=folder))
        files = {"KRB5_CONFIG": "krb5.conf", "KRB5_KDC_PROFILE": "kdc.conf", "KRB5CCNAME": "tickets"}
        self.environment = {name: str(folder / file) for name, file in files.items()}
        self._run("kdb5_util", "create", "-s", "-P", "master")
        for query in (
            "addprinc -pw secret alice",
            "addprinc -randkey postgres/localhost",
            f"ktadd -k {self.keytab} postgres/localhost",
        ):
            self._run("kadmin.local", "-q", query)
        self._kdc = subprocess.Popen(["krb5kdc", "-n"], env=os.environ | self.environment)
        wait_until(lambda: self._answers(port))
        self._run("kinit", "alice", given="secret\n")

    def _run(self, *command: str, given: str = "") -> None:
        environment = os.environ | self.environment
        subprocess.run(command, env=environment, input=given, text=True, check=True, capture_output=True)

    @staticmethod
    def _answers(port: int) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    def stop(self) -> None:
        self._kdc.terminate()
        self._kdc.wait()


class KerberosServer:
    """PostgreSQL 15 in this realm, and the table `texts` in publication `pub`."""

    def __init__(self, realm: Realm) -> None:
        self.realm = realm
        self.port = free_port()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KRB5_CONFIG", realm.environment["KRB5_CONFIG"])
            self.server = DebianServer({"listen_addresses": "127.0.0.1", "port": str(self.port)})
            self.server.use_keytab(realm.keytab)
        (self.server.data / "pg_hba.conf").write_text(HBA)
        self.server.pg_ctl("reload")
        self.admin = psycopg.connect(f"{self.server.uri()}&port={self.port}", autocommit=True)
        self.admin.execute("CREATE ROLE alice LOGIN REPLICATION")
        self.admin.execute("CREATE TABLE texts (a int PRIMARY KEY, b text)")
        self.admin.execute("GRANT SELECT ON texts TO alice; CREATE PUBLICATION pub FOR TABLE texts")

    def pgcdc(
        self, *arguments: str, environment: Mapping[str, str] | None = None, **parameters: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as alice over TCP."""
        to = {"host": "localhost", "hostaddr": "127.0.0.1", "dbname": "postgres", "user": "alice"}
        command, *others = arguments
        conninfo = make_conninfo("", port=self.port, **to, **parameters)
        line = [*PGCDC, command, *others, "-d", conninfo]
        given = os.environ | self.realm.environment | dict(environment or {})
        return subprocess.run(line, env=given, capture_output=True, text=True, check=False)

    def insert(self, first: int, last: int) -> None:
        """Insert rows of every length up to some kilobytes, and one of some megabytes."""
        query = "INSERT INTO texts SELECT g, repeat(%s, g %% 300) FROM generate_series(%s::int, %s) g"
        self.admin.execute(query, ("\t\\é\n" * 3, first, last))
        self.admin.execute("INSERT INTO texts VALUES (%s, repeat('large', 1000000))", (last + 1,))

    def stop(self) -> None:
        self.admin.close()
        self.server.stop()


@pytest.fixture(scope="module")
def kerberos() -> Iterator[KerberosServer]:
    folder = Path(tempfile.mkdtemp(prefix="pgcdc-realm-"))
    realm = Realm(folder)
    server = KerberosServer(realm)
    yield server
    server.stop()
    realm.stop()
    shutil.rmtree(folder)


def test_what_gssapi_encrypts_is_written_as_it_is(kerberos: KerberosServer, tmp_path: Path) -> None:
    """The rows before a stream, and those that it brings, come in packets that end anywhere in a row."""
    kerberos.insert(1, 20_000)
    line = ["stream", "-S", "s", "--publication", "pub", "-f", str(tmp_path / "out"), "--endpos", "now"]
    for more in (["--snapshot", "initial"], []):
        ran = kerberos.pgcdc(*line, *more, gssencmode="require")
        assert (ran.returncode, ran.stderr) == (0, "")
        kerberos.insert(30_001, 50_000) if more else None
    rows = [json.loads(row)["new"] for row in (tmp_path / "out").read_text().splitlines()]
    expected = kerberos.admin.execute("SELECT a, b FROM texts ORDER BY a").fetchall()
    assert [(row["a"], row["b"]) for row in sorted(rows, key=lambda row: row["a"])] == expected


def test_without_a_ticket_the_hint_says_how_to_get_one(kerberos: KerberosServer) -> None:
    nobody = {"KRB5CCNAME": str(kerberos.realm.folder / "nobody")}
    ran = kerberos.pgcdc("slot", "list", environment=nobody, gssencmode="require")
    assert ran.returncode == 4
    assert ran.stderr.splitlines()[1] == (
        "hint: check the ticket (klist; kinit gets one), -U, and -h: the server's name in its principal"
    )


def test_a_server_that_wants_encryption_says_which_parameters_choose_it(kerberos: KerberosServer) -> None:
    """The library that psycopg brings doesn't try GSSAPI by itself, unlike psql."""
    ran = kerberos.pgcdc("slot", "list", gssencmode="disable")
    assert (ran.returncode, "no encryption" in ran.stderr) == (4, True)
    assert ran.stderr.splitlines()[1] == (
        "hint: check user and pg_hba.conf: hostssl asks for TLS (sslmode), hostgssenc for GSSAPI"
        " (gssencmode=prefer, as psql has it)"
    )


def test_a_refusal_without_a_reason_points_to_the_servers_log(kerberos: KerberosServer) -> None:
    """libpq has no text for a server that can't read its own keys."""
    keytab = kerberos.server.data / "server.keytab"
    keytab.chmod(0o000)
    try:
        ran = kerberos.pgcdc("slot", "list", gssencmode="require")
    finally:
        keytab.chmod(0o600)
    error, hint = ran.stderr.splitlines()
    assert (ran.returncode, error.endswith(" failed: no reason given")) == (3, True)
    assert hint == "hint: see the server's log"
