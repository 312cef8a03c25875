"""A database's timeouts and waits don't apply to us, and a cancelled command is retried."""

import signal
import subprocess

import psycopg
import pytest
from processes import PGCDC, wait_until
from servers import wait_until_free
from stream_runs import NOW, insert, numbers, stream

LONGER_THAN_THESE = "SELECT pg_sleep(1)"


def waits_for(database, condition: str) -> None:
    wait_until(
        lambda: database.execute(f"SELECT 1 FROM pg_locks WHERE NOT granted AND {condition}").fetchone()
    )


@pytest.mark.parametrize("timeout", ["statement_timeout", "lock_timeout"])
def test_a_locked_catalog_is_waited_for(source, tmp_path, follow, timeout):
    slot, out = source.create_slot(), tmp_path / "out"
    source.execute(f"ALTER DATABASE {source.name} SET {timeout} = '200ms'")
    run = follow(source.uri, slot, out)
    insert(source, 1, 1)
    wait_until(lambda: run.rows() == [1])
    source.execute("ALTER TABLE t ADD c int")
    with psycopg.connect(source.uri, options="-c statement_timeout=0") as locker:
        locker.execute("LOCK TABLE pg_attrdef IN ACCESS EXCLUSIVE MODE")
        insert(source, 2, 2)
        waits_for(source, "relation = 'pg_attrdef'::regclass")
        locker.execute(LONGER_THAN_THESE)
    wait_until(lambda: run.rows() == [1, 2])
    assert run.stop() == (0, "")


def test_a_serializable_transaction_is_not_waited_for(source, tmp_path):
    """As a deferrable one does; a standby refuses any."""
    slot, out = source.create_slot(), tmp_path / "out"
    insert(source, 1, 1)
    for setting in ("isolation = serializable", "read_only = on", "deferrable = on"):
        source.execute(f"ALTER DATABASE {source.name} SET default_transaction_{setting}")
    with psycopg.connect(source.uri, options="-c default_transaction_read_only=off") as other:
        other.execute("SELECT FROM t")
        run = stream(source.uri, slot, "-f", str(out), *NOW)
    assert (run.returncode, run.stderr, numbers(out.read_text())) == (0, "", [1])


def test_a_slot_waits_for_the_transactions_before_it(source):
    source.execute(f"ALTER DATABASE {source.name} SET lock_timeout = '200ms'")
    name = f"s_{source.name}"
    line = [*PGCDC, "slot", "create", "-d", source.uri, name]
    with psycopg.connect(source.uri, options="-c statement_timeout=0") as before:
        insert(before, 1, 1)
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            waits_for(source, "locktype = 'transactionid'")
            before.execute(LONGER_THAN_THESE)
            before.rollback()
            errors = process.communicate(timeout=60)[1]
    assert (process.returncode, errors) == (0, "")


def test_a_walsender_that_is_cancelled_is_connected_to_again(source, tmp_path, follow):
    slot, out = source.create_slot(), tmp_path / "out"
    run = follow(source.uri, slot, out)
    insert(source, 1, 1)
    wait_until(lambda: run.rows() == [1])
    # A reader that connects again before the server has let go of the slot would be told so.
    run.process.send_signal(signal.SIGSTOP)
    source.execute(
        "SELECT pg_cancel_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )
    wait_until_free(source, slot)
    run.process.send_signal(signal.SIGCONT)
    insert(source, 2, 2)
    wait_until(lambda: run.rows() == [1, 2])
    status, errors = run.stop()
    reason = f'could not receive from slot "{slot}": canceling statement due to user request'
    lost, found = errors.splitlines()
    assert (status, lost) == (0, f"pgcdc: warning: {reason}; trying again")
    assert found.startswith("pgcdc: warning: connected again after ")
