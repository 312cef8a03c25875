"""Standbys of a server, and older copies of it."""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from processes import wait_until
from psycopg import Connection, connect

from pgcdc_cli.demo.embedded_server import EmbeddedServer


def standby(primary: EmbeddedServer, settings: Mapping[str, str] | None = None) -> EmbeddedServer:
    """Start a standby of a server; `servers.remove` removes it, too."""
    data = Path(tempfile.mkdtemp(prefix=f"pgcdc-pg{primary.version}-standby-"))
    _back_up(primary, data)
    _follow(primary, data, settings or {})
    return EmbeddedServer(data, primary.version)


def rejoin(old: EmbeddedServer, primary: EmbeddedServer) -> None:
    """Start a stopped primary as a standby of the server that took its place, with that server's slots.

    A fast shutdown has ended its log where the other's timeline begins. Its own slots are dropped.
    """
    with connect(primary.uri(), autocommit=True) as there:
        there.execute("SELECT pg_create_physical_replication_slot('standby')")
    _follow(primary, old.data, {"primary_slot_name": "standby", "hot_standby_feedback": "on"})
    old.pg_ctl("restart")
    with connect(old.uri(), autocommit=True) as here:
        here.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT synced")


def synchronize(primary: EmbeddedServer, follower: EmbeddedServer) -> None:
    """Copy slot `s` to the standby, which keeps it once its own log has reached the slot's position."""
    with connect(follower.uri(), autocommit=True) as here:

        def is_kept() -> bool:
            replayed(follower, primary)
            here.execute("SELECT pg_sync_replication_slots()")
            kept = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 's' AND synced AND NOT temporary"
            return here.execute(kept).fetchone() is not None

        wait_until(is_kept, pause=0.3)


def _back_up(server: EmbeddedServer, data: Path) -> None:
    user = server.data.owner()
    shutil.chown(data.parent if not data.exists() else data, user)
    backup = [server.bin / "pg_basebackup", "-d", _where(server), "-D", data, "-c", "fast", "--no-sync"]
    subprocess.run(backup, check=True, user=user, stderr=subprocess.DEVNULL)
    for own in (".s.PGSQL.5432.lock", ".handle_pids.json", "log"):
        (data / own).unlink(missing_ok=True)


def _follow(primary: EmbeddedServer, data: Path, settings: Mapping[str, str]) -> None:
    with (data / "postgresql.conf").open("a") as conf:
        for name, value in {"primary_conninfo": _where(primary), **settings}.items():
            conf.write(f"{name} = '{value}'\n")
    (data / "standby.signal").touch()


def _where(server: EmbeddedServer) -> str:
    return f"host={server.socket_directory} user=postgres dbname=postgres"


def replayed(standby: EmbeddedServer, primary: EmbeddedServer) -> None:
    """Wait until a standby has replayed all of its primary's log."""
    with connect(primary.uri(), autocommit=True) as there, connect(standby.uri(), autocommit=True) as here:
        flush_log(there)
        [end] = there.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(lambda: here.execute(query, (end,)).fetchone()[0])


def flush_log(there: Connection) -> None:
    """Send all of the log to standbys, with a record of running transactions, which their slots need."""
    there.execute("CHECKPOINT")


def cold_copy(server: EmbeddedServer) -> Path:
    """Stop a server, copy its data directory, and start it again."""
    copy = Path(tempfile.mkdtemp(prefix="pgcdc-copy-")) / "data"
    server.pg_ctl("stop", "-m", "fast")
    subprocess.run(["cp", "-a", server.data, copy], check=True)
    server._server.ensure_postgres_running()
    return copy


def base_backup(server: EmbeddedServer) -> Path:
    """Copy a running server, without its slots, as pg_basebackup does."""
    copy = Path(tempfile.mkdtemp(prefix="pgcdc-copy-")) / "data"
    _back_up(server, copy)
    shutil.copy(server.data / ".handle_pids.json", copy)
    return copy


def put_back(server: EmbeddedServer, copy: Path) -> None:
    """Replace a server's data directory by a copy, which is moved, and start it again."""
    server.pg_ctl("stop", "-m", "fast")
    shutil.rmtree(server.data)
    shutil.move(copy, server.data)
    copy.parent.rmdir()
    server._server.ensure_postgres_running()
