"""While a catalog query waits, however long, the server still gets status updates."""

import subprocess

import psycopg
from processes import stream_command, wait_until


def test_the_server_hears_from_us_while_the_catalog_is_locked(database18, tmp_path):
    database18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database18.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    slot = database18.create_slot()
    output = tmp_path / "out"
    options = ["--format", "debezium", "-c", "topic.prefix=srv", "-s", "300ms", "--no-progress"]
    line = stream_command(database18.uri, slot, *options, "-f", output)
    query = (
        "SELECT pid, reply_time FROM pg_stat_replication"
        " WHERE pid = (SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s)"
    )
    updates = set()

    def walsender():
        return database18.execute(query, (slot,)).fetchone()

    def hears_again():
        """Whether the server has had several updates, over the connection that there was before."""
        found = walsender()
        assert found is not None
        assert found[0] == pid
        updates.add(found[1])
        return len(updates) > 5

    with psycopg.connect(database18.uri) as locker, subprocess.Popen(line) as process:
        try:
            pid, _ = wait_until(walsender)
            locker.execute("LOCK TABLE pg_attrdef IN ACCESS EXCLUSIVE MODE")
            database18.execute("INSERT INTO t VALUES (1)")
            waiting = "SELECT 1 FROM pg_locks WHERE relation = 'pg_attrdef'::regclass AND NOT granted"
            wait_until(lambda: database18.execute(waiting).fetchone())
            wait_until(hears_again)
            assert not output.exists() or output.read_text() == ""
            locker.rollback()
            wait_until(lambda: output.exists() and '"id":1' in output.read_text())
        finally:
            locker.rollback()
            process.terminate()
    assert process.returncode == 0
