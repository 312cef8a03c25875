"""Parts of tables read over several connections: in order, bounded, and ended by an error in any of them."""

import json
import threading
from types import SimpleNamespace

import psycopg
import pytest
from processes import wait_until
from segments import contents
from test_snapshot_command import run

from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.stream.snapshot.snapshot_rows import read_parts
from pgcdc_cli.types.database_text import STRICT


class Part:
    def __init__(self, number: int) -> None:
        self.number = number
        schema = SimpleNamespace(columns=())
        self.table = SimpleNamespace(
            schema=schema, reading=f'read the rows of table "t{number}"', unfit=lambda error: error
        )

    def query(self) -> int:
        return self.number


class Session:
    """Yields five chunks of each part, and fails in part number `fails`, if any."""

    def __init__(self, begun: list[int], fails: int | None = None) -> None:
        self._begun = begun
        self._fails = fails

    def copy(self, number, _types, _text, stopped, **_how):
        self._begun.append(number)
        for chunk in range(5):
            if number == self._fails and chunk == 1:
                raise psycopg.OperationalError("gone")
            if stopped():
                raise KeyboardInterrupt
            yield 1, (number, chunk)


def parts(count: int) -> list[Part]:
    return [Part(number) for number in range(count)]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_order_is_that_of_the_parts(workers):
    sessions = [Session([]) for _ in range(workers)]
    read = [chunk.columns for chunk in read_parts(parts(50), sessions, STRICT, lambda: False)]
    assert read == [(number, chunk) for number in range(50) for chunk in range(5)]


def test_readers_go_no_further_ahead_than_there_is_room():
    begun: list[int] = []
    chunks = read_parts(parts(50), [Session(begun), Session(begun)], STRICT, lambda: False)
    assert next(chunks).columns == (0, 0)
    # The first thread waits with the last chunk of part 0, the second with that of part 1.
    wait_until(lambda: len(begun) > 1)
    threading.Event().wait(0.1)
    assert sorted(begun) == [0, 1]
    assert len(list(chunks)) == 249


def test_an_error_of_one_ends_all_at_its_place():
    others = set(threading.enumerate())
    sessions = [Session([], fails=7), Session([], fails=7)]
    chunks = read_parts(parts(50), sessions, STRICT, lambda: False)
    before = [next(chunks).columns for _ in range(7 * 5 + 1)]
    assert before[-1] == (7, 0)
    with pytest.raises(PgcdcError, match='could not read the rows of table "t7": gone'):
        next(chunks)
    assert set(threading.enumerate()) <= others


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_stop_is_never_taken_for_the_end(after):
    stop = threading.Event()
    chunks = read_parts(parts(5), [Session([]), Session([])], STRICT, stop.is_set)
    for _ in range(after):
        next(chunks)
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        list(chunks)


def test_who_takes_no_more_leaves_no_thread_behind():
    others = set(threading.enumerate())
    chunks = read_parts(parts(50), [Session([]), Session([])], STRICT, lambda: False)
    next(chunks)
    assert set(threading.enumerate()) > others
    chunks.close()
    assert set(threading.enumerate()) <= others


def test_what_is_read_by_many_is_what_one_reads(database18, tmp_path):
    """With a table of two parts, whose rows have moved, a small one and an empty one."""
    database18.execute(
        "CREATE TABLE large (a int PRIMARY KEY, b text STORAGE PLAIN);"
        "INSERT INTO large SELECT g, repeat('x', 1900) FROM generate_series(1, 8000) g;"
        "UPDATE large SET b = 'y' WHERE a % 5 = 0;"
        "CREATE TABLE small AS SELECT g FROM generate_series(1, 3) g; CREATE TABLE empty (a int)"
    )
    found = {}
    for workers in (1, 3):
        out = tmp_path / str(workers)
        ended = run(
            database18.uri,
            "--table",
            "public.*",
            "--snapshot-workers",
            workers,
            "-D",
            out,
            "--format",
            "arrow",
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        found[workers] = {
            table: [row["a"] if table == "public.large" else row["g"] for row in rows[1:]]
            for table, rows in contents(out).items()
        }
    assert found[1] == found[3]
    assert len(found[1]["public.large"]) == len(set(found[1]["public.large"])) == 8000


def test_rows_come_in_the_table_s_order_even_if_the_server_would_read_with_several_processes(database18):
    database18.execute("CREATE TABLE t (a int) WITH (parallel_workers = 4)")
    database18.execute("INSERT INTO t SELECT generate_series(1, 100000); ANALYZE t")
    for setting in ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"):
        database18.execute(f"ALTER DATABASE {database18.name} SET {setting} = 0")
    ended = run(database18.uri, "--table", "t", "--where", "a % 9 = 0", "--snapshot-workers", 1)
    found = [json.loads(line)["new"]["a"] for line in ended.stdout.splitlines()]
    assert found == list(range(9, 100001, 9))


def test_a_large_table_of_which_only_columns_may_be_read_is_read_by_one(database18):
    role = f"r_{database18.name}"
    database18.execute("CREATE TABLE t (a int, b text STORAGE PLAIN, secret int)")
    database18.execute("INSERT INTO t SELECT g, repeat('x', 1900) FROM generate_series(1, 5000) g")
    database18.execute(f"CREATE ROLE {role} LOGIN; GRANT SELECT (a, b) ON t TO {role}")
    database18.execute("CREATE PUBLICATION pub FOR TABLE t (a, b)")
    uri = database18.uri.replace("postgresql://postgres@", f"postgresql://{role}@")
    try:
        ended = run(uri, "--publication", "pub", "--snapshot-workers", 2)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert len(ended.stdout.splitlines()) == 5000
    finally:
        database18.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_server_without_room_for_more_is_read_over_fewer_connections(database18):
    role = f"r_{database18.name}"
    database18.execute("CREATE TABLE a (a int); CREATE TABLE b (a int); INSERT INTO b VALUES (1)")
    # One connection for the snapshot, one for the catalog.
    database18.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 2; GRANT SELECT ON a, b TO {role}")
    uri = database18.uri.replace("postgresql://postgres@", f"postgresql://{role}@")
    try:
        ended = run(uri, "--table", "public.*", "--snapshot-workers", 2)
        assert (ended.returncode, len(ended.stdout.splitlines())) == (0, 1)
        assert "; connections that read the snapshot: 1" in ended.stderr
    finally:
        sessions = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'"
        wait_until(lambda: database18.execute(sessions).fetchone() == (0,))
        database18.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
