"""What `--resnapshot` waits for before it reads: locks, and transactions that its snapshot doesn't see."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from processes import PGCDC, stream_command, wait_until
from resnapshot_runs import OFTEN, Resnapshots, create_items, source
from servers import Database
from stream_runs import FORMATS, NOW, stream

from pgcdc_cli.stream.snapshot.resnapshot_session import Visibility


@pytest.mark.long
def test_a_locked_table_does_not_hold_up_the_stream(database18, tmp_path):
    """Neither at first nor between chunks; the table is read once the lock is released."""
    create_items(database18, 300)
    runs, lock = Resnapshots(database18, tmp_path / "out", *OFTEN), "SELECT pg_advisory_lock(1)"
    database18.execute(lock)
    with psycopg.connect(database18.uri) as locking, runs.running(statements=lock, where="between", step=3):
        locking.execute("LOCK TABLE items")
        goes_on(database18, runs, 1)
        assert runs.progress["stage"] == "none"
        locking.commit()
        wait_until(lambda: runs.progress["rows"] > 0)
        locking.execute("LOCK TABLE items")
        database18.execute("SELECT pg_advisory_unlock(1)")
        goes_on(database18, runs, 2)
        assert runs.progress["stage"] == "reading"
        locking.commit()
    assert runs.folded() == source(database18)


def test_what_is_not_read_when_time_is_up_is_told(database18, tmp_path):
    """The end position "now" is known only when everything is read, so it can't be reached before."""
    create_items(database18)
    runs = Resnapshots(database18, tmp_path / "out")
    with psycopg.connect(database18.uri) as locking:
        locking.execute("LOCK TABLE items")
        run = stream(runs.uri, runs.slot, *runs.options, *NOW, "--max-time", "2s")
    assert run.returncode == 12
    message = "pgcdc: error: could not reach the end position now: time is up at "
    assert run.stderr.startswith(message), run.stderr
    assert runs.progress["stage"] == "none"


def goes_on(database, runs: Resnapshots, number: int) -> None:
    """Check that the stream still brings new changes."""
    database.execute("INSERT INTO other VALUES (%s)", (number,))
    wait_until(lambda: number_of_lines(runs, "public.other/*.jsonl*") == number)


def number_of_lines(runs: Resnapshots, files: str) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in runs.out.glob(files))


def test_who_wrote_before_a_table_was_published_is_waited_for(database18, tmp_path, follow):
    """The stream lacks those changes, and the newer of two transactions may be the first to end."""
    create_items(database18)
    database18.execute(
        "CREATE TABLE late (id int PRIMARY KEY, b text); INSERT INTO late VALUES (1, 'before')"
    )
    runs = Resnapshots(database18, tmp_path / "out", *OFTEN, again=("--resnapshot", "public.late"))
    with psycopg.connect(database18.uri) as publishing, psycopg.connect(database18.uri) as writing:
        publishing.execute("ALTER PUBLICATION pub ADD TABLE late")
        writing.execute("UPDATE late SET b = 'after'")
        publishing.commit()
        run = follow(runs.uri, runs.slot, runs.out, *runs.options)
        wait_until(lambda: runs.progress["stage"] != "none")
        for number in (1, 2):
            goes_on(database18, runs, number)
        assert runs.progress["rows"] == 0
        writing.commit()
    wait_until(lambda: runs.progress["stage"] == "done")
    assert run.stop()[0] == 0
    assert [(change.op, change.after["b"]) for change in runs.changes("public.late")] == [("R", "after")]


@pytest.mark.parametrize("base", [1000, 2**32 - 6, 2**32 - 3, 2**32 + 3, 7 * 2**32 - 4])
def test_a_snapshot_sees_what_had_ended_wherever_transaction_ids_wrap_around(base):
    """The stream has their last 32 bits."""
    seen = Visibility.parse(f"{base}:{base + 9}:{base},{base + 4},{base + 8}")
    shown = [xid - base for xid in range(base - 9, base + 20) if seen.sees(xid % 2**32)]
    assert shown == [*range(-9, 0), 1, 2, 3, 5, 6, 7]


MOST_XIDS = """
import sys
from pgcdc_cli.cli.app import main
from pgcdc_cli.stream.snapshot.resnapshot import ResnapshotWatch

most, follow = 0, ResnapshotWatch.follow

def counted(self, slice_):
    global most
    found = follow(self, slice_)
    most = max(most, len(self.xids))
    return found

ResnapshotWatch.follow = counted
try:
    main()
finally:
    print(most, file=sys.stderr)
"""


def test_what_was_there_when_the_run_began_is_not_kept_in_memory(database18, tmp_path):
    """There may be any number of transactions before the first snapshot is taken."""
    create_items(database18)
    runs = Resnapshots(database18, tmp_path / "out", *NOW)
    for number in range(100):
        database18.execute("INSERT INTO items VALUES ('kind', %s)", (number,))
    arguments = stream_command(runs.uri, runs.slot, *runs.options)[len(PGCDC) :]
    line = [sys.executable, "-c", MOST_XIDS, *arguments]
    run = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "0\n")
    assert runs.folded() == source(database18)


@pytest.fixture
def nine(other) -> Iterator[Database]:
    """A database with nine items, in a server whose commits may wait for a standby."""
    database = Database(other)
    create_items(database, 9)
    yield database
    let_commits_go(database)
    database.drop()


def test_what_the_stream_has_and_others_do_not_see_yet_is_waited_for(nine, tmp_path, follow):
    """A commit that waits for a synchronous standby is in the WAL, but other sessions don't see it yet."""
    runs = Resnapshots(nine, tmp_path / "out", *OFTEN)
    with psycopg.connect(nine.uri) as older:
        older.execute("UPDATE items SET n = 100 WHERE id = 1")
        run = follow(runs.uri, runs.slot, runs.out, *runs.options)
        wait_until(lambda: runs.progress["stage"] == "reading")
        waiting = [let_commits_wait(nine), begin(change, nine.uri, "UPDATE items SET n = 200 WHERE id = 2")]
        wait_until(lambda: commits_that_wait(nine) == 2)
        older.execute("SET LOCAL synchronous_commit = local")
        older.commit()
        # There are two changes, and no row read, as long as no snapshot sees the second change.
        wait_until(lambda: number_of_lines(runs, "*/*.partial") == 2)
        time.sleep(1)
        assert number_of_lines(runs, "*/*.partial") == 2
        let_commits_go(nine)
        wait_until(lambda: runs.progress["stage"] == "done")
        assert run.stop()[0] == 0
        for thread in waiting:
            thread.join()
    changes = runs.changes()
    assert [change.op for change in changes] == ["U"] * 2 + ["R"] * 9
    assert {change.after["n"] for change in changes if change.after["id"] < 3} == {100, 200}


def test_what_comes_before_the_first_snapshot_and_is_not_seen_by_it_is_waited_for(nine, tmp_path):
    """Such a commit began after the tables were found, and is streamed before they are read."""
    runs, lock = Resnapshots(nine, tmp_path / "out", *OFTEN), "SELECT pg_advisory_lock(1)"
    first = let_commits_wait(nine)
    nine.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    first.join()
    nine.execute(lock)
    with runs.running(statements=lock, where="begun", step=1):
        stopped = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
        wait_until(lambda: nine.execute(stopped).fetchone() == (True,))
        second = begin(change, nine.uri, "UPDATE items SET n = 200 WHERE id = 2")
        wait_until(lambda: commits_that_wait(nine) == 1)
        nine.execute("SELECT pg_advisory_unlock(1)")
        wait_until(lambda: number_of_lines(runs, "*/*.partial") > 0)
        time.sleep(1)
        assert number_of_lines(runs, "*/*.partial") == 1
        let_commits_go(nine)
    second.join()
    assert {change.after["n"] for change in runs.changes() if change.after["id"] == 2} == {200}


def test_a_stream_that_commits_wait_for_waits_for_none_of_its_own(nine, tmp_path):
    """As the synchronous standby it confirms nothing before it has found the tables."""
    runs = Resnapshots(nine, tmp_path / "out", *OFTEN)
    waiting = let_commits_wait(nine, standby="pgcdc")
    run = stream(runs.uri, runs.slot, *runs.options, *NOW, "-s", "0.1")
    let_commits_go(nine)
    waiting.join()
    assert (run.returncode, run.stderr, len(runs.rows_read())) == (0, "", 9)


def test_nor_does_it_wait_for_its_own_change_of_a_publication(nine, tmp_path):
    """The publication of a connector follows its lists before the stream begins."""
    line = (
        nine.uri,
        nine.create_slot(),
        "-D",
        str(tmp_path / "out"),
        *FORMATS["debezium"],
        *NOW,
        "-s",
        "0.1",
    )
    filtered = (*line, "--snapshot", "never", "-c", "publication.autocreate.mode=filtered")
    assert stream(*filtered, "-c", "table.include.list=public.items").returncode == 0
    waiting = let_commits_wait(nine, standby="pgcdc")
    run = stream(*filtered)
    let_commits_go(nine)
    waiting.join()
    assert run.returncode == 0
    published = "SELECT tablename FROM pg_publication_tables ORDER BY 1"
    assert nine.execute(published).fetchall() == [("items",), ("other",)]


def let_commits_wait(database: Database, standby: str = "nobody") -> threading.Thread:
    """Let commits wait for a synchronous standby that isn't there; returns a thread in which one waits.

    They wait once the checkpointer, too, has read the setting.
    """
    database.execute("SET synchronous_commit = local")
    database.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
    database.execute("SELECT pg_reload_conf()")
    in_force = threading.Event()
    thread = begin(change_until, in_force, database.uri)
    wait_until(lambda: commits_that_wait(database) == 1)
    in_force.set()
    return thread


def let_commits_go(database: Database) -> None:
    database.execute("ALTER SYSTEM RESET synchronous_standby_names")
    database.execute("SELECT pg_reload_conf()")


def commits_that_wait(database: Database) -> int:
    """Count the commits that wait for a synchronous standby."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    return database.execute(query).fetchone()[0]


def begin(target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def change_until(event: threading.Event, uri: str) -> None:
    """Commit what isn't published, again and again."""
    while not event.is_set():
        change(uri, "SELECT pg_logical_emit_message(true, 'nothing', '')")


def change(uri: str, statement: str) -> None:
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = on")
        connection.execute(statement)
