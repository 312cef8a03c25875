"""PostgreSQL 15 as packaged by Debian, for what the embedded servers are built without (XML, contrib)."""

import getpass
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psycopg
from processes import wait_until

SETTINGS = {
    "wal_level": "logical",
    "fsync": "off",
    "listen_addresses": "",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "TimeZone": "UTC",
}

PACKAGES = "postgresql-15 postgresql-contrib postgresql-15-wal2json"
"""The packages that .ci/run installs."""


_held: list[socket.socket] = []


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody listens on, nor gets from the system.

    A socket that is bound to it, and doesn't listen, keeps it until the tests end. Servers may listen on it
    all the same: with SO_REUSEADDR, which they set, too.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _held.append(held)
    return int(held.getsockname()[1])


class DebianServer:
    """A server in its own folder, on a Unix socket; never run as root, which PostgreSQL refuses."""

    bin = Path("/usr/lib/postgresql/15/bin")

    def __init__(self, settings: Mapping[str, str] | None = None, programs: Path | None = None) -> None:
        """Start PostgreSQL 15, or another version from its folder of programs."""
        self.bin = programs or self.bin
        self._user = "postgres" if os.geteuid() == 0 else getpass.getuser()
        self._folder = Path(tempfile.mkdtemp(prefix="pgcdc-pg15-"))
        shutil.chown(self._folder, self._user)
        self.data = self._folder / "data"
        self._run("initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-N")
        with (self.data / "postgresql.conf").open("a") as conf:
            lines = SETTINGS | {"unix_socket_directories": str(self._folder)} | dict(settings or {})
            conf.writelines(f"{name} = '{value}'\n" for name, value in lines.items())
        self.pg_ctl("start")

    @staticmethod
    def missing(plugin: str = "pgoutput") -> str | None:
        """The reason why there is no such server here, or none with this output plugin; None if there is."""
        library = DebianServer.bin.parent / "lib" / f"{plugin}.so"
        if not (DebianServer.bin / "postgres").exists() or not library.exists():
            return f"PostgreSQL 15 is not installed: apt install {PACKAGES}"
        if os.geteuid() == 0 and not any(entry.pw_name == "postgres" for entry in pwd.getpwall()):
            return "there is no user postgres to run PostgreSQL 15 as"
        return None

    def allow_plugin(self, plugin: str) -> None:
        """List a plugin as allowed, if this minor release asks for that."""
        with psycopg.connect(self.uri(), autocommit=True) as admin:
            if admin.execute("SELECT FROM pg_settings WHERE name = 'output_plugin_libraries'").rowcount:
                admin.execute(f"ALTER SYSTEM SET output_plugin_libraries = pgoutput, {plugin}")
                self.pg_ctl("reload")
                wait_until(lambda: plugin in admin.execute("SHOW output_plugin_libraries").fetchone()[0])

    def allow_tls(self, certificate: Path, key: Path, authority: Path) -> None:
        """Accept TLS connections, and clients' certificates of this authority, from the next reload on."""
        for source, name in ((certificate, "server.crt"), (key, "server.key"), (authority, "root.crt")):
            shutil.copyfile(source, self.data / name)
            (self.data / name).chmod(0o600)
            shutil.chown(self.data / name, self._user)
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write("ssl = on\nssl_ca_file = 'root.crt'\n")
        self.pg_ctl("reload")

    def use_keytab(self, keytab: Path) -> None:
        """Authenticate by Kerberos with the keys in this file, from the next reload on."""
        copy = self.data / "server.keytab"
        shutil.copyfile(keytab, copy)
        shutil.chown(copy, self._user)
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write(f"krb_server_keyfile = '{copy}'\n")
        self.pg_ctl("reload")

    @property
    def socket_directory(self) -> str:
        return str(self._folder)

    def uri(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self._folder}"

    def pg_ctl(self, *arguments: str) -> None:
        self._run("pg_ctl", "-w", "-s", "-l", str(self._folder / "log"), *arguments)

    def stop(self) -> None:
        self.pg_ctl("-m", "fast", "stop")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self.bin / program, "-D", self.data, *arguments],
            check=True,
            user=self._user if os.geteuid() == 0 else None,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
