"""A catalog query without an answer doesn't delay the end by a signal."""

import os
import signal
from contextlib import contextmanager

import psycopg
import pytest
from processes import wait_until
from stream_runs import end_of_log, insert, numbers, stream

from pgcdc_cli.lsn import Lsn

CATALOG = """
SELECT pid FROM pg_stat_activity
WHERE application_name = 'pgcdc' AND backend_type = 'client backend' AND datname = current_database()
"""
SENT = "SELECT coalesce(min(sent_lsn), '0/0')::text FROM pg_stat_replication WHERE state = 'streaming'"


@contextmanager
def frozen(admin):
    """Stop the backend of the catalog's session, once there is one."""
    pid = wait_until(lambda: admin.execute(CATALOG).fetchone())[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_while_a_table_is_described(shop, follow, tmp_path, number):
    with psycopg.connect(shop, autocommit=True) as admin:
        following = follow(shop, "s", tmp_path / "out.jsonl")
        wait_until(lambda: following.rows() == [1])
        with frozen(admin):
            admin.execute("CREATE TABLE more (a int PRIMARY KEY); ALTER PUBLICATION pub ADD TABLE more")
            admin.execute("INSERT INTO more VALUES (2)")
            written = end_of_log(admin)
            wait_until(lambda: Lsn.parse(admin.execute(SENT).fetchone()[0]) >= written)
            assert following.stop(number) == (0, "")
        insert(admin, 3, 3)
        assert stream(shop, "s", "-f", str(following.path), "--endpos", "now").returncode == 0
        assert numbers(following.path.read_text()) == [1, 2, 3]


def test_before_the_stream_begins(shop, follow, tmp_path):
    with psycopg.connect(shop, autocommit=True) as admin:
        following = follow(shop, "s", tmp_path / "out.jsonl")
        with frozen(admin):
            assert following.stop() == (0, "")
        assert stream(shop, "s", "-f", str(following.path), "--endpos", "now").returncode == 0
        assert numbers(following.path.read_text()) == [1]
