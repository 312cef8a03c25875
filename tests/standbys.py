"""A server's standbys, and older copies of it."""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from processes import wait_until
from psycopg import Connection, connect

from pgcdc_cli.demo.embedded_server import EmbeddedServer


def standby(primary: EmbeddedServer, settings: Mapping[str, str] | None = None) -> EmbeddedServer:
    """Start a standby that follows a server; `servers.remove` ends it, too."""
    data = Path(tempfile.mkdtemp(prefix=f"pgcdc-pg{primary.version}-standby-"))
    user = primary.data.owner()
    shutil.chown(data, user)
    where = f"host={primary.socket_directory} user=postgres dbname=postgres"
    backup = [primary.bin / "pg_basebackup", "-d", where, "-D", data, "-c", "fast", "--no-sync"]
    subprocess.run(backup, check=True, user=user, stderr=subprocess.DEVNULL)
    for own in (".s.PGSQL.5432.lock", ".handle_pids.json", "log"):
        (data / own).unlink(missing_ok=True)
    with (data / "postgresql.conf").open("a") as conf:
        for name, value in {"primary_conninfo": where, **(settings or {})}.items():
            conf.write(f"{name} = '{value}'\n")
    (data / "standby.signal").touch()
    return EmbeddedServer(data, primary.version)


def replayed(standby: EmbeddedServer, primary: EmbeddedServer) -> None:
    """Wait until a standby is where its primary is."""
    with connect(primary.uri(), autocommit=True) as there, connect(standby.uri(), autocommit=True) as here:
        flush_log(there)
        [end] = there.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(lambda: here.execute(query, (end,)).fetchone()[0])


def flush_log(there: Connection) -> None:
    """Send all that is in the log on its way to standbys; what is running, too, which their slots ask for."""
    there.execute("CHECKPOINT")


def cold_copy(server: EmbeddedServer) -> Path:
    """Copy the data directory of a server, which is stopped for it."""
    copy = Path(tempfile.mkdtemp(prefix="pgcdc-copy-")) / "data"
    server.pg_ctl("stop", "-m", "fast")
    subprocess.run(["cp", "-a", server.data, copy], check=True)
    server._server.ensure_postgres_running()
    return copy


def put_back(server: EmbeddedServer, copy: Path) -> None:
    """Let a server go on from a copy, which is gone then."""
    server.pg_ctl("stop", "-m", "fast")
    shutil.rmtree(server.data)
    shutil.move(copy, server.data)
    copy.parent.rmdir()
    server._server.ensure_postgres_running()
