"""A password is nowhere where others could read it: in no file, message or argument of a process."""

import json
import os
import subprocess
from pathlib import Path

import psycopg
import pytest
from processes import PGCDC, stream_command, wait_until
from psycopg.conninfo import make_conninfo
from stream_runs import NOW, insert

SECRET = "r1ght"


def leaks(folder: Path) -> list[str]:
    """List the files below a folder that contain the password."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return [str(path) for path in files if SECRET.encode() in path.read_bytes()]


def arguments_of_children(pid: int) -> list[str]:
    """Read the command lines, as `ps` does, of all processes that descend from one."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args", "-ww"], capture_output=True, text=True, check=True)
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()[1:]]
    family = {pid}
    while more := {int(row[0]) for row in rows if int(row[1]) in family} - family:
        family |= more
    return [row[2] for row in rows if int(row[0]) in family]


def check_run(line: list[str], environment: dict[str, str], folder: Path, status: int = 0) -> None:
    ran = subprocess.run(
        line, capture_output=True, text=True, env={**os.environ, **environment}, cwd=folder, check=False
    )
    assert ran.returncode == status, ran.stderr
    assert SECRET not in ran.stdout + ran.stderr
    assert leaks(folder) == []


@pytest.fixture
def careful(shop):
    """The URI of a role that needs the password."""
    with psycopg.connect(shop, autocommit=True) as admin:
        admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO careful")
    return shop.replace("postgres@", "careful@")


@pytest.mark.parametrize("sink", [["-D", "out"], ["-D", "out", "--format", "arrow"], ["-f", "out"]])
def test_nothing_written_or_said_holds_it(careful, tmp_path, sink):
    """Neither from PGPASSWORD nor from the connection string, even with --debug and -vv."""
    more = ["--debug", "-vv", *sink, *NOW]
    check_run(stream_command(careful, "s", *more), {"PGPASSWORD": SECRET}, tmp_path)
    check_run(stream_command(make_conninfo(careful, password=SECRET), "s", *more), {}, tmp_path)
    gone = make_conninfo(careful, password=SECRET, dbname="gone")
    check_run(stream_command(gone, "s", *more), {}, tmp_path, status=2)


@pytest.mark.usefixtures("careful")
def test_a_connectors_own_is_not_kept_with_its_other_properties(shop, tmp_path):
    config = {"database.user": "careful", "database.password": SECRET, "topic.prefix": "srv"}
    with psycopg.connect(shop) as admin:
        host = admin.info.get_parameters()["host"]
    config |= {"database.dbname": "shop", "slot.name": "s", "publication.name": "pub"}
    config |= {"plugin.name": "pgoutput", "database.hostname": host}
    (tmp_path / "work").mkdir()
    (tmp_path / "connector.json").write_text(json.dumps(config))
    line = [*PGCDC, "stream", "--format", "debezium", "--connector-config", str(tmp_path / "connector.json")]
    line += ["--debug", "-vv", "-D", "out", *NOW]
    check_run(line, {}, tmp_path / "work")


def test_no_process_shows_what_came_by_the_environment(shop, careful, tmp_path, follow, monkeypatch):
    """Nor does `pg_stat_activity`."""
    monkeypatch.setenv("PGPASSWORD", SECRET)
    following = follow(careful, "s", tmp_path / "out")
    with psycopg.connect(shop, autocommit=True) as admin:
        query = "SELECT a::text FROM pg_stat_activity a WHERE usename = 'careful'"
        sessions = wait_until(lambda: admin.execute(query).fetchall())
    assert SECRET not in str(sessions)
    wait_until(following.rows)
    assert SECRET not in "".join(arguments_of_children(following.process.pid))
    assert SECRET not in following.stop()[1]


def test_each_new_connection_reads_the_password_file_anew(shop, careful, tmp_path, follow, monkeypatch):
    """So what writes tokens there, which expire, keeps a stream running."""
    passwords = tmp_path / "pgpass"
    passwords.touch(mode=0o600)
    passwords.write_text(f"*:*:*:*:{SECRET}\n")
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    following = follow(careful, "s", tmp_path / "out")
    wait_until(lambda: following.rows() == [1])
    with psycopg.connect(shop, autocommit=True) as admin:
        passwords.write_text("*:*:*:*:an0ther\n")
        admin.execute("ALTER ROLE careful PASSWORD 'an0ther'")
        try:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'careful'")
            insert(admin, 2, 2)
            wait_until(lambda: following.rows() == [1, 2])
            assert following.stop()[0] == 0
        finally:
            admin.execute(f"ALTER ROLE careful PASSWORD '{SECRET}'")
