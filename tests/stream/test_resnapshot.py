"""`--resnapshot`: a table is read again while it is streamed, and the output matches the source."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
import scale
from processes import PGCDC, stream_command, wait_until
from row_changes import RowChange, row_changes
from segments import contents, manifest
from servers import Database, Encoded, wait_until_free
from stream_runs import NOW, end_of_log, refused, repeating, stream
from test_stream_snapshot import FORMATS, checkpoint

from pgcdc_cli.demo.embedded_server import EmbeddedServer
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.stream.snapshot.resnapshot_session import Visibility

AGAIN = ("--resnapshot", "public.items")
OFTEN = ("-F", "0.001")

TABLES = """
CREATE TABLE items (kind text, id int, n int, doc text, PRIMARY KEY (kind, id));
ALTER TABLE items ALTER doc SET STORAGE EXTERNAL;
CREATE TABLE other (id int PRIMARY KEY);
CREATE PUBLICATION pub FOR TABLE items, other;
"""
FILL = """
INSERT INTO items SELECT 'it''s \\' || g % 3, g, g, repeat(md5(g::text), 80) FROM generate_series(1, {}) g
"""

SMALL_CHUNKS = """
import os, signal, sys
import psycopg
from pgcdc_cli.cli.app import main
from pgcdc_cli.sinks.checkpointed_sink import CheckpointedSink
from pgcdc_cli.stream.snapshot import resnapshot
from pgcdc_cli.stream.snapshot.resnapshot import Resnapshot

resnapshot.CHUNK_ROWS = resnapshot.FIRST_ROWS = int(sys.argv.pop(1))
resnapshot.MOST_MOVED = int(os.environ.get("MOST_MOVED", resnapshot.MOST_MOVED))
where, left = sys.argv.pop(1), int(sys.argv.pop(1))
steps = {"inside": (Resnapshot, "_write"), "behind": (Resnapshot, "_reach")}
steps["durable"], steps["between"] = (CheckpointedSink, "_save"), (Resnapshot, "_read")
steps["begun"] = (Resnapshot, "record")

def deadly(owner, name):
    step = getattr(owner, name)
    def wrapped(*arguments, **settings):
        global left
        found = step(*arguments, **settings)
        left -= 1
        if left == 0 and "STATEMENTS" in os.environ:
            with psycopg.connect(os.environ["SERVER"], autocommit=True) as connection:
                connection.execute(os.environ["STATEMENTS"])
        elif left == 0:
            os.kill(os.getpid(), int(os.environ.get("SIGNAL", signal.SIGKILL)))
        return found
    setattr(owner, name, wrapped)

if where:
    deadly(*steps[where])
sys.exit(main())
"""


def small_chunks(uri: str, slot: str, *arguments: object, where: str = "", step: int = 0) -> list[str]:
    """A command line of `pgcdc stream` that reads 50 rows at a time, and kills itself at a given step."""
    command = stream_command(uri, slot, "--snapshot", "never", *arguments)[len(PGCDC) :]
    return [sys.executable, "-c", SMALL_CHUNKS, "50", where, str(step), *command]


class Load(threading.Thread):
    """One of several sessions that insert, delete and change rows and keys, often with unchanged TOAST."""

    def __init__(self, uri: str, seed: int, rows: int) -> None:
        super().__init__(daemon=True)
        self._uri, self._dice, self._rows = uri, random.Random(seed), rows
        self._ended = threading.Event()
        self.transactions = 0

    def run(self) -> None:
        with psycopg.connect(self._uri, autocommit=True) as connection:
            while not self._ended.is_set():
                try:
                    with connection.transaction(force_rollback=self._dice.random() < 0.1):
                        for _ in range(self._dice.randrange(1, 4)):
                            self._change(connection)
                except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                    continue
                self.transactions += 1
                self._ended.wait(0.005)

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def _change(self, connection: psycopg.Connection) -> None:
        low = self._dice.randrange(self._rows)
        some = f"WHERE id BETWEEN {low} AND {low + 3}"
        kind = f"it's \\{self._dice.randrange(3)}"
        match self._dice.randrange(6):
            case 0:
                connection.execute(f"UPDATE items SET n = n + 1 {some}")
            case 1:
                connection.execute(f"UPDATE items SET doc = repeat(md5(random()::text), 80) {some}")
            case 2:
                connection.execute(f"UPDATE items SET kind = %s, n = -n {some}", (kind,))
            case 3:
                connection.execute(f"UPDATE items SET id = id + %s {some}", (self._dice.randrange(-99, 99),))
            case 4:
                connection.execute(f"DELETE FROM items {some}")
            case 5:
                connection.execute(
                    "INSERT INTO items SELECT %s, g, 0, repeat(md5(random()::text), 80)"
                    " FROM generate_series(%s::int, %s) g ON CONFLICT DO NOTHING",
                    (kind, low, low + 6),
                )


@pytest.fixture
def load() -> Iterator[list[Load]]:
    """The running sessions, which end with the test."""
    sessions: list[Load] = []
    yield sessions
    for session in sessions:
        session.stop()


def start(load: list[Load], uri: str, rows: int) -> None:
    for seed in range(3):
        load.append(Load(uri, seed, rows))
        load[-1].start()
    wait_until(lambda: all(one.transactions > 5 for one in load))


def lines(out: Path, table: str = "public.items") -> Iterator[RowChange]:
    return row_changes(out, table)


def folded(out: Path, columns: Sequence[str] = ("n", "doc")) -> dict[tuple, tuple]:
    """The rows by key that result from the files; a value that no change has is None."""
    found: dict[tuple, dict] = {}
    places = []
    for op, place, before, after, lacks in lines(out):
        places.append(place)
        row = found.pop((before["kind"], before["id"]), {}) if op in {"U", "D"} else {}
        if op != "D":
            values = {name: row.get(name) if name in lacks else after.get(name) for name in columns}
            found[after["kind"], after["id"]] = values
    # The order of the files is that of the positions.
    assert places == sorted(set(places))
    return {key: tuple(row.values()) for key, row in found.items()}


def source(database, columns: Sequence[str] = ("n", "doc")) -> dict[tuple, tuple]:
    rows = database.execute(f"SELECT kind, id, {', '.join(columns)} FROM items").fetchall()
    return {(kind, number): tuple(values) for kind, number, *values in rows}


def progress(out: Path) -> dict:
    return checkpoint(out).get("resnapshot", [{"stage": "none", "rows": 0}])[0]


def rows_read(out: Path) -> int:
    return sum(op == "R" for op, *_ in lines(out))


def keys_read(out: Path) -> set[tuple]:
    return {(row["kind"], row["id"]) for op, _, _, row, _ in lines(out) if op == "R"}


def is_the_source_under_load(database, out: Path, form: str, load: list[Load]) -> None:
    rows = 500 * scale.factor
    database.execute(TABLES)
    database.execute(FILL.format(rows))
    slot = database.create_slot()
    start(load, database.uri, rows)
    command = small_chunks(database.uri, slot, "-D", out, *FORMATS[form], *AGAIN)
    with subprocess.Popen([*command, "-F", "0.1"]) as run:
        wait_until(lambda: progress(out)["stage"] == "done", 240 * scale.factor)
        run.send_signal(signal.SIGTERM)
    assert run.returncode == 0
    for one in load:
        one.stop()
    subprocess.run([*command, *NOW], check=True)
    assert folded(out) == source(database)
    assert rows_read(out) == progress(out)["rows"]
    assert form != "debezium" or markers(out) == {"r": {"incremental"}, "other": {"false"}}


def markers(out: Path) -> dict[str, set[str]]:
    """The `source.snapshot` of Debezium events: of rows read, and of changes."""
    found: dict[str, set[str]] = {}
    for event in (json.loads(line)["value"] for line in contents(out)["public.items"]):
        if event is not None:
            found.setdefault("r" if event["op"] == "r" else "other", set()).add(event["source"]["snapshot"])
    return found


def test_all_is_the_source_under_load(database, tmp_path, load):
    is_the_source_under_load(database, tmp_path / "out", "jsonl", load)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMATS)
def test_all_is_the_source_under_load_in_every_format(any_database, tmp_path, form, load):
    is_the_source_under_load(any_database, tmp_path / "out", form, load)


def survives_kills(database, out: Path, form: str, load: list[Load], kills: int) -> None:
    """Kill runs within a chunk, after one, or once it is durable; then let one run end."""
    dice, rows = random.Random(kills), 150 * kills
    database.execute(TABLES)
    database.execute(FILL.format(rows))
    slot = database.create_slot()
    start(load, database.uri, rows)
    arguments = (database.uri, slot, "-D", out, *FORMATS[form], *AGAIN, *OFTEN)
    hits: Counter[str] = Counter()
    for where in ["inside", "behind", "durable"] * (kills // 3):
        command = small_chunks(*arguments, *NOW, where=where, step=dice.randrange(2, 6))
        ended = subprocess.run(command, check=False, timeout=60)
        hits[where] += ended.returncode == -signal.SIGKILL and progress(out)["stage"] == "reading"
    for one in load:
        one.stop()
    subprocess.run(small_chunks(*arguments, *NOW), check=True)
    assert folded(out) == source(database)
    # Durable chunks are not read again, and others are not in the output twice.
    assert rows_read(out) == progress(out)["rows"]
    assert min(hits.values()) >= kills // 6, hits


def test_kills_at_any_step_lose_nothing_and_double_nothing(database18, tmp_path, load):
    survives_kills(database18, tmp_path / "out", "jsonl", load, 3)


def test_a_signal_takes_back_half_a_chunk(database18, tmp_path):
    database18.execute(TABLES)
    database18.execute(FILL.format(300))
    slot, out = database18.create_slot(), tmp_path / "out"
    arguments = (database18.uri, slot, "-D", out, *AGAIN)
    command = small_chunks(*arguments, where="inside", step=6)
    environment = {**os.environ, "SIGNAL": str(int(signal.SIGTERM))}
    run = subprocess.run(command, capture_output=True, env=environment, timeout=60, check=True)
    assert (run.stderr, progress(out)["rows"]) == (b"", 100)
    status = subprocess.run([*PGCDC, "status", str(out)], capture_output=True, text=True, check=True).stdout
    assert "\nread again    public.items: 100 rows, going on\n" in status
    subprocess.run(small_chunks(*arguments, *NOW), check=True)
    assert folded(out) == source(database18)
    assert rows_read(out) == 300


@pytest.mark.long
@pytest.mark.parametrize("form", FORMATS)
def test_many_kills_lose_nothing_and_double_nothing(any_database, tmp_path, load, form, request):
    survives_kills(any_database, tmp_path / "out", form, load, request.config.option.kills)


def killed_half_way(database, out: Path, *statements: str) -> tuple:
    """Read 150 of 300 rows again, then kill the run; return the command's arguments."""
    for statement in (TABLES, FILL.format(300), *statements):
        database.execute(statement)
    arguments = (database.uri, database.create_slot(), "-D", out, *AGAIN, *OFTEN)
    killed = subprocess.run(small_chunks(*arguments, where="behind", step=3), check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert progress(out)["rows"] == 150
    return arguments


def test_a_row_whose_key_came_to_where_all_is_read_is_read_once_more(database18, tmp_path):
    out = tmp_path / "out"
    arguments = killed_half_way(database18, out)
    # The stream sends these rows without the unchanged TOAST value.
    database18.execute("UPDATE items SET kind = 'a', id = -id WHERE kind = 'it''s \\2' AND id > 200")
    database18.execute("ALTER TABLE items ADD COLUMN more int DEFAULT 7")
    database18.execute("UPDATE items SET kind = 'b', id = -id WHERE kind = 'it''s \\1' AND id > 290")
    subprocess.run(small_chunks(*arguments, *NOW), check=True)
    assert folded(out) == source(database18)
    assert {("a", -299), ("b", -298)} <= keys_read(out)
    assert manifest(out)[-1]["end_lsn"] == checkpoint(out)["end_lsn"]


def test_a_row_is_read_once_more_even_if_the_stream_lacks_a_part_of_its_key(database18, tmp_path):
    """That is unchanged TOAST, too; the old key has it."""
    out = tmp_path / "out"
    arguments = killed_half_way(
        database18,
        out,
        "ALTER TABLE items ALTER kind SET STORAGE EXTERNAL",
        "UPDATE items SET kind = repeat('z', 2400) WHERE id = 300",
    )
    database18.execute("UPDATE items SET id = -id WHERE id = 300")
    subprocess.run(small_chunks(*arguments, *NOW), check=True)
    assert ("z" * 2400, -300) in keys_read(out)
    # The table is not begun anew.
    assert rows_read(out) in {300, 301}


def test_a_row_that_moved_is_not_forgotten_by_a_run_that_is_killed(database18, tmp_path, follow):
    """The checkpoint is behind its change, and has its key."""
    out = tmp_path / "out"
    uri, slot, *arguments = killed_half_way(database18, out)
    database18.execute("UPDATE items SET kind = 'a' WHERE id = 299")
    end = end_of_log(database18)
    with psycopg.connect(uri) as locking:
        locking.execute("LOCK TABLE items")
        run = follow(uri, slot, out, *map(str, arguments))
        wait_until(lambda: Lsn.parse(checkpoint(out)["end_lsn"]) >= end)
        run.stop(signal.SIGKILL)
    subprocess.run(small_chunks(uri, slot, *arguments, *NOW), check=True)
    assert folded(out) == source(database18)


def test_a_row_moves_to_where_all_is_read_while_its_key_has_another_name(database18, tmp_path):
    """The stream can't tell where it is then, so the table is begun anew."""
    out = tmp_path / "out"
    arguments = killed_half_way(database18, out)
    database18.execute("ALTER TABLE items RENAME id TO number")
    database18.execute("UPDATE items SET kind = 'a', number = -number WHERE number = 299")
    database18.execute("ALTER TABLE items RENAME number TO id")
    subprocess.run(small_chunks(*arguments, *NOW), check=True)
    assert keys_read(out) >= source(database18).keys()


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        ("int", "text", "g"),
        ('text COLLATE "en-x-icu"', 'text COLLATE "C"', "CASE WHEN g % 2 = 0 THEN 'a' ELSE 'B' END || g"),
    ],
)
def test_a_key_that_gets_another_order_is_read_from_its_first_row(server15, tmp_path, before, after, value):
    """What came after the last row read, and comes before it now, would be left out."""
    database = Database(server15)
    database.execute(f"CREATE TABLE items (id {before} PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE items")
    database.execute(f"INSERT INTO items SELECT {value} FROM generate_series(1, 1200) g")
    slot, out = database.create_slot(), tmp_path / "out"
    arguments = (database.uri, slot, "-D", out, *AGAIN, *OFTEN)
    killed = subprocess.run(small_chunks(*arguments, where="behind", step=4), check=False, timeout=60)
    assert (killed.returncode, progress(out)["stage"]) == (-signal.SIGKILL, "reading")
    database.execute(f"ALTER TABLE items ALTER id TYPE {after}")
    subprocess.run(small_chunks(*arguments, *NOW), check=True)
    read = {str(new["id"]) for op, _, _, new, _ in lines(out) if op == "R"}
    assert read == {id_ for (id_,) in database.execute("SELECT id FROM items")}
    database.drop()


@pytest.mark.parametrize("collation", ["C", "en-x-icu", "blind"])
def test_keys_that_differ_only_in_blanks_at_their_end_are_read_once_each(server15, tmp_path, collation):
    """They are different rows as `varchar`, also where a chunk ends between them."""
    database = Database(server15)
    database.execute(
        "CREATE COLLATION blind (PROVIDER = icu, LOCALE = 'und-u-ks-level2', DETERMINISTIC = false)"
    )
    database.execute(f'CREATE TABLE items (id varchar COLLATE "{collation}", n char(3), PRIMARY KEY (id, n))')
    database.execute("INSERT INTO items SELECT repeat(' ', g % 60), g / 60 FROM generate_series(0, 179) g")
    database.execute("CREATE PUBLICATION pub FOR TABLE items")
    out = tmp_path / "out"
    arguments = (database.uri, database.create_slot(), "-D", out, *AGAIN, *NOW)
    subprocess.run(small_chunks(*arguments), check=True)
    read = sorted((str(new["id"]), str(new["n"])) for _, _, _, new, _ in lines(out))
    assert read == sorted(database.execute("SELECT * FROM items").fetchall())
    database.drop()


SWAP = """
    ALTER TYPE kind RENAME VALUE 'a' TO 'c'; ALTER TYPE kind RENAME VALUE 'b' TO 'a';
    ALTER TYPE kind RENAME VALUE 'c' TO 'b'
"""
RENAMES = {
    "renamed": ("kind", "'b'", "ALTER TYPE kind RENAME VALUE 'b' TO 'c'"),
    "swapped": ("kind", "CASE WHEN g <= 60 THEN 'a'::kind ELSE 'b' END", SWAP),
    "swapped in a domain": ("known_kind", "CASE WHEN g <= 60 THEN 'a'::known_kind ELSE 'b' END", SWAP),
    "swapped in a row": ("of_kind", "ROW(CASE WHEN g <= 60 THEN 'a' ELSE 'b' END)::of_kind", SWAP),
    "swapped in a range": (
        "kinds",
        "CASE WHEN g <= 60 THEN kinds('a', 'a', '[]') ELSE kinds('b', 'b', '[]') END",
        SWAP,
    ),
    "in an array": ("kind[]", "ARRAY[CASE WHEN g <= 60 THEN 'a'::kind ELSE 'b' END]", SWAP),
    "in a row": ("pair", "ROW('one.named', 1)::pair", "ALTER TABLE one.named RENAME TO other"),
}


def read_beside(database, out: Path, rename: str, *, while_it_runs: bool) -> None:
    """Read the table with statements after its first chunk, in the same run or before the next one."""
    database.execute("VACUUM items")
    arguments = (database.uri, database.create_slot(), "-D", out, *AGAIN, *OFTEN)
    if while_it_runs:
        command = small_chunks(*arguments, *NOW, where="between", step=2)
        environment = {**os.environ, "SERVER": database.uri, "STATEMENTS": rename}
        subprocess.run(command, check=True, env=environment, timeout=60)
    else:
        killed = subprocess.run(small_chunks(*arguments, where="behind", step=2), check=False, timeout=60)
        assert (killed.returncode, progress(out)["stage"]) == (-signal.SIGKILL, "reading")
        database.execute(rename)
        subprocess.run(small_chunks(*arguments, *NOW), check=True)


@pytest.mark.parametrize("which", RENAMES)
@pytest.mark.parametrize("while_it_runs", [False, True])
def test_a_key_with_a_name_that_is_renamed_is_read_from_its_first_row(
    database18, tmp_path, which, while_it_runs
):
    """The last row read is known by its text, which then means nothing any more, or something else."""
    key, value, rename = RENAMES[which]
    database18.execute(
        "CREATE TYPE kind AS ENUM ('a', 'b'); CREATE SCHEMA one; CREATE TABLE one.named ();"
        "CREATE DOMAIN some_kind AS kind; CREATE DOMAIN known_kind AS some_kind;"
        "CREATE TYPE of_kind AS (kind kind); CREATE TYPE kinds AS RANGE (subtype = kind);"
        "CREATE TYPE pair AS (name regclass, n int);"
        f"CREATE TABLE items (id {key}, n int, PRIMARY KEY (id, n));"
        f"INSERT INTO items SELECT {value}, g FROM generate_series(1, 120) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    out = tmp_path / "out"
    read_beside(database18, out, rename, while_it_runs=while_it_runs)
    assert progress(out)["stage"] == "done"
    read = [new["n"] for op, _, _, new, _ in lines(out) if op == "R"]
    begun = read.index(1, 1)
    assert read[begun:] == list(range(1, 121))


AHEAD = """
import os, signal, sys
from pgcdc_cli.cli.app import main
from pgcdc_cli.sinks.checkpointed_sink import CheckpointedSink
from pgcdc_cli.stream.snapshot import resnapshot

resnapshot.FIRST_ROWS = 50
save = CheckpointedSink._save

def saved(sink, checkpoint):
    save(sink, checkpoint)
    if any(one.caught_up_at > checkpoint.end_lsn for one in checkpoint.resnapshots):
        os.kill(os.getpid(), signal.SIGKILL)

CheckpointedSink._save = saved
sys.exit(main())
"""


def test_a_run_without_the_option_forgets_also_what_the_stream_has_not_caught_up_with(database18, tmp_path):
    """Changes of the rows that were read may be left out from then on, by a publication or a list."""
    database18.execute(TABLES)
    database18.execute(FILL.format(120))
    slot, out = database18.create_slot(), tmp_path / "out"
    line = stream_command(database18.uri, slot, "-D", out, *AGAIN, *OFTEN)[len(PGCDC) :]
    with repeating(database18.uri, "SELECT pg_logical_emit_message(true, 'x', 'moves the end of the WAL')"):
        killed = subprocess.run([sys.executable, "-c", AHEAD, *line], check=False, timeout=60)
    reached = progress(out)
    assert (killed.returncode, reached["stage"], reached["rows"]) == (-signal.SIGKILL, "reading", 50)
    database18.execute("ALTER PUBLICATION pub DROP TABLE items; UPDATE items SET n = -n")
    assert stream(database18.uri, slot, "-D", str(out), *NOW).returncode == 0
    database18.execute("ALTER PUBLICATION pub ADD TABLE items")
    assert stream(database18.uri, slot, "-D", str(out), *AGAIN, *NOW).returncode == 0
    assert folded(out) == source(database18)


def test_a_loss_is_reported_though_the_rows_in_which_it_was_found_are_taken_back(database18, tmp_path):
    """The row that moved is read, then the last row's key is unknown, and the table is begun anew."""
    database18.execute(
        "CREATE TABLE one (); CREATE TABLE other (); CREATE TYPE pair AS (name regclass, n int);"
        "CREATE TABLE items (id pair, n int, doc text[], PRIMARY KEY (id, n));"
        "ALTER TABLE items ALTER doc SET STORAGE EXTERNAL;"
        "INSERT INTO items SELECT ROW('other', 1)::pair, g FROM generate_series(1, 120) g;"
        "UPDATE items SET doc = ARRAY[ARRAY[repeat('d', 9999)]] WHERE n = 120;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    slot, out = database18.create_slot(), tmp_path / "out"
    arguments = (database18.uri, slot, "-D", out, *FORMATS["debezium"], *AGAIN, *OFTEN)
    killed = subprocess.run(small_chunks(*arguments, where="behind", step=2), check=False, timeout=60)
    assert (killed.returncode, progress(out)["stage"]) == (-signal.SIGKILL, "reading")
    database18.execute("UPDATE items SET id = ROW('one', 1) WHERE n = 120; ALTER TABLE other RENAME TO third")
    subprocess.run(small_chunks(*arguments, *NOW), check=True)
    found = [line for file in out.glob("_losses/*") for line in file.read_text().splitlines()]
    assert [json.loads(line)["column"] for line in found].count("doc") == 1


@pytest.mark.parametrize(("key", "value"), [("regclass", "{}"), ("regclass[]", "ARRAY[{}]"), ("known", "{}")])
@pytest.mark.parametrize("while_it_runs", [False, True])
def test_a_key_whose_names_are_given_to_other_objects_is_read_on_where_it_was(
    database18, tmp_path, key, value, while_it_runs
):
    """Their OIDs, by which they are ordered, stay the same."""
    one_or_other = value.format("CASE WHEN g <= 110 THEN 'one'::regclass ELSE 'other' END")
    database18.execute(
        "CREATE DOMAIN known AS regclass; CREATE TABLE one (); CREATE TABLE other ();"
        f"CREATE TABLE items (id {key}, n int, PRIMARY KEY (id, n));"
        f"INSERT INTO items SELECT {one_or_other}, g FROM generate_series(1, 120) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    rename = "ALTER TABLE one RENAME TO a; ALTER TABLE other RENAME TO one; ALTER TABLE a RENAME TO other"
    out = tmp_path / "out"
    read_beside(database18, out, rename, while_it_runs=while_it_runs)
    assert [new["n"] for op, _, _, new, _ in lines(out) if op == "R"] == list(range(1, 121))


def test_a_row_whose_key_has_a_name_is_read_once_more_though_others_have_that_name(database18, tmp_path):
    """The stream sends the name, which then means another row, or none."""
    database18.execute(
        "CREATE TABLE one (); CREATE TABLE items (id regclass, n int, doc text, PRIMARY KEY (id, n));"
        "ALTER TABLE items ALTER doc SET STORAGE EXTERNAL;"
        "INSERT INTO items SELECT 'one', g, repeat('d', 9999) FROM generate_series(1, 120) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    slot, out = database18.create_slot(), tmp_path / "out"
    arguments = (database18.uri, slot, "-D", out, *AGAIN, *OFTEN)
    killed = subprocess.run(small_chunks(*arguments, where="behind", step=2), check=False, timeout=60)
    assert (killed.returncode, progress(out)["stage"]) == (-signal.SIGKILL, "reading")
    database18.execute("UPDATE items SET n = -n WHERE n = 120; ALTER TABLE one RENAME TO other")
    database18.execute("CREATE TABLE one ()")
    subprocess.run(small_chunks(*arguments, *NOW), check=True)
    assert -120 in [new["n"] for op, _, _, new, _ in lines(out) if op == "R"]


def test_a_row_that_a_filter_lets_in_where_all_is_read_is_read_once_more(database18, tmp_path):
    """The stream inserts it without the unchanged TOAST value."""
    out = tmp_path / "out"
    arguments = killed_half_way(
        database18,
        out,
        "INSERT INTO items SELECT 'a', -g, g, repeat(md5(g::text), 80) FROM generate_series(1, 2) g;"
        "ALTER PUBLICATION pub SET TABLE items WHERE (id > 0), other",
    )
    database18.execute("UPDATE items SET id = -id WHERE id = -1")
    subprocess.run(small_chunks(*arguments, *NOW), check=True)
    assert folded(out) == {key: row for key, row in source(database18).items() if key[1] > 0}


@pytest.mark.long
def test_a_table_of_which_too_many_rows_moved_is_begun_anew(database18, tmp_path):
    """A checkpoint must not grow by the keys of all of them."""
    out = tmp_path / "out"
    arguments = killed_half_way(database18, out)
    for low, high in [(150, 160), (200, 250)]:
        database18.execute(f"UPDATE items SET kind = 'a' WHERE id > {low} AND id <= {high}")
    environment = {**os.environ, "MOST_MOVED": "20"}
    subprocess.run(small_chunks(*arguments, *NOW), check=True, env=environment)
    assert folded(out) == source(database18)
    assert rows_read(out) == 150 + 300


@pytest.mark.long
def test_a_locked_table_does_not_hold_up_the_stream(database18, tmp_path):
    """Neither at first nor between chunks; the table is read once the lock is released."""
    database18.execute(TABLES)
    database18.execute(FILL.format(300))
    slot, out = database18.create_slot(), tmp_path / "out"
    arguments = (database18.uri, slot, "-D", out, *AGAIN, *OFTEN)
    environment = {**os.environ, "SERVER": database18.uri, "STATEMENTS": "SELECT pg_advisory_lock(1)"}
    database18.execute("SELECT pg_advisory_lock(1)")
    command = small_chunks(*arguments, where="between", step=3)
    with psycopg.connect(database18.uri) as locking, subprocess.Popen(command, env=environment) as run:
        try:
            locking.execute("LOCK TABLE items")
            goes_on(database18, out, 1)
            assert progress(out)["stage"] == "none"
            locking.commit()
            wait_until(lambda: progress(out)["rows"] > 0)
            locking.execute("LOCK TABLE items")
            database18.execute("SELECT pg_advisory_unlock(1)")
            goes_on(database18, out, 2)
            assert progress(out)["stage"] == "reading"
            locking.commit()
            wait_until(lambda: progress(out)["stage"] == "done")
            run.send_signal(signal.SIGTERM)
            assert run.wait(60) == 0
        finally:
            run.kill()
    assert folded(out) == source(database18)


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
    database18.execute(TABLES)
    slot, out = database18.create_slot(), tmp_path / "out"
    for number in range(100):
        database18.execute("INSERT INTO items VALUES ('kind', %s)", (number,))
    arguments = stream_command(database18.uri, slot, "-D", out, *AGAIN, *NOW)[len(PGCDC) :]
    run = subprocess.run(
        [sys.executable, "-c", MOST_XIDS, *arguments], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "0\n")
    assert folded(out) == source(database18)


def test_what_is_not_read_when_time_is_up_is_told(database18, tmp_path):
    """The end position "now" is known only when everything is read, so it can't be reached before."""
    database18.execute(TABLES)
    slot, out = database18.create_slot(), tmp_path / "out"
    with psycopg.connect(database18.uri) as locking:
        locking.execute("LOCK TABLE items")
        run = stream(database18.uri, slot, "-D", str(out), *AGAIN, *NOW, "--max-time", "2s")
    assert run.returncode == 12
    message = "pgcdc: error: could not reach the end position now: time is up at "
    assert run.stderr.startswith(message), run.stderr
    assert progress(out)["stage"] == "none"


def goes_on(database, out: Path, number: int) -> None:
    """Check that the stream still brings new changes."""
    database.execute("INSERT INTO other VALUES (%s)", (number,))
    wait_until(
        lambda: (
            sum(len(path.read_bytes().splitlines()) for path in out.glob("public.other/*.jsonl*")) == number
        )
    )


def read_while_it_changes(database, out: Path, statements: str) -> None:
    """Read 300 rows again, and make these changes between two of the chunks."""
    database.execute(TABLES)
    database.execute(FILL.format(300))
    # Otherwise a chunk's reader may set hint bits, and the stream has a turn to catch up with their WAL.
    database.execute("VACUUM items")
    command = small_chunks(
        database.uri, database.create_slot(), "-D", out, *AGAIN, *NOW, where="between", step=3
    )
    environment = {**os.environ, "SERVER": database.uri, "STATEMENTS": statements}
    subprocess.run(command, check=True, env=environment, timeout=60)


def test_a_new_form_of_a_table_is_not_there_before_changes_in_its_old_one(database18, tmp_path):
    out = tmp_path / "out"
    statements = (
        "BEGIN; UPDATE items SET n = n + 1 WHERE id % 9 = 0; COMMIT;"
        "BEGIN; ALTER TABLE items ADD COLUMN more int DEFAULT 7;"
        "UPDATE items SET more = 8 WHERE id = 9; COMMIT"
    )
    read_while_it_changes(database18, out, statements)
    forms = ["more" in new for _, _, _, new, _ in lines(out)]
    assert len(set(forms)) == 2
    assert forms == sorted(forms)
    assert folded(out) == source(database18)


def test_a_row_that_moves_while_the_stream_is_behind_is_not_missed(database18, tmp_path):
    """The stream is waited for after each chunk that is newer, so the row's new key is known in time."""
    out = tmp_path / "out"
    statement = "UPDATE items SET kind = 'a', id = -id WHERE kind = 'it''s \\2' AND id > 290"
    read_while_it_changes(database18, out, statement)
    assert folded(out) == source(database18)
    assert ("a", -299) in keys_read(out)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER PUBLICATION pub DROP TABLE low",
        pytest.param("ALTER PUBLICATION roots ADD TABLE root", marks=pytest.mark.long),
    ],
)
def test_a_table_that_is_no_longer_published_as_it_was_is_read_no_further(database18, tmp_path, statement):
    """Nor is one whose changes are now published as its root's, though a publication still names it."""
    database18.execute(
        "CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (1000);"
        "CREATE TABLE other (id int PRIMARY KEY); INSERT INTO root SELECT generate_series(1, 300);"
        "CREATE PUBLICATION pub FOR TABLE low, other;"
        "CREATE PUBLICATION roots FOR TABLE other WITH (publish_via_partition_root)"
    )
    slot, out = database18.create_slot(), tmp_path / "out"
    arguments = ("--publication", "roots", "-D", out, "--resnapshot", "public.low", *NOW)
    command = small_chunks(database18.uri, slot, *arguments, where="between", step=3)
    environment = {**os.environ, "SERVER": database18.uri, "STATEMENTS": statement}
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60)
    assert 'table "public.low" is not read any further: it is no longer published' in run.stderr
    assert (progress(out)["stage"], progress(out)["rows"]) == (
        "reading",
        sum(1 for _ in lines(out, "public.low")),
    )
    assert progress(out)["rows"] in range(1, 300)


@pytest.mark.parametrize(
    ("away", "back"),
    [
        ("ALTER TABLE items RENAME TO things", "ALTER TABLE things RENAME TO items"),
        ("ALTER PUBLICATION pub DROP TABLE items", "ALTER PUBLICATION pub ADD TABLE items"),
    ],
)
def test_a_table_that_comes_back_is_read_from_its_first_row(database18, tmp_path, away, back):
    """It counted as read."""
    database18.execute(TABLES)
    database18.execute(FILL.format(300))
    slot, out = database18.create_slot(), tmp_path / "out"
    command = small_chunks(database18.uri, slot, "-D", out, *AGAIN, *NOW, where="between", step=3)
    environment = {**os.environ, "SERVER": database18.uri, "STATEMENTS": away}
    subprocess.run(command, check=True, env=environment, timeout=60)
    assert sum(1 for _ in lines(out)) in range(1, 300)
    database18.execute(f"UPDATE {'things' if 'things' in away else 'items'} SET n = -n; {back}")
    subprocess.run(small_chunks(database18.uri, slot, "-D", out, *AGAIN, *NOW), check=True, timeout=60)
    assert progress(out)["stage"] == "done"
    assert folded(out) == source(database18)


DONE = (
    'pgcdc: warning: table "public.items" is not read once more: an earlier run read it again ({} rows);'
    " a run without --resnapshot forgets that\n"
)


def test_what_is_done_is_not_done_again_until_the_option_was_left_out(database18, tmp_path):
    database18.execute(TABLES)
    database18.execute(FILL.format(120))
    slot, out = database18.create_slot(), tmp_path / "out"
    read = []
    for number, option in enumerate([AGAIN, AGAIN, (), AGAIN]):
        database18.execute(f"INSERT INTO items VALUES ('new', {number}, 0, '')")
        if number == 1:
            database18.execute("ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id, kind)")
        run = stream(database18.uri, slot, "-D", str(out), *option, *NOW)
        assert (run.returncode, run.stderr) == (0, DONE.format(121) if number == 1 else "")
        read.append(rows_read(out))
    assert read == [121, 121, 121, 121 + 124]
    status = subprocess.run([*PGCDC, "status", str(out)], capture_output=True, text=True, check=True).stdout
    assert "read again    public.items: 124 rows, done" in status
    line = subprocess.run([*PGCDC, "status", str(out), "--json"], capture_output=True, check=True).stdout
    found = {"table": "public.items", "rows": 124, "stage": "done", "rows_to_repeat": 0}
    assert json.loads(line)["checkpoint"]["resnapshot"] == [found]


def test_what_earlier_runs_have_read_is_said_once(database18, tmp_path, follow):
    out = tmp_path / "out"
    uri, slot, *arguments = killed_half_way(database18, out)
    run = subprocess.run(
        small_chunks(uri, slot, *arguments, *NOW, "--verbose"), capture_output=True, text=True, check=True
    )
    assert [line for line in run.stderr.splitlines() if "items" in line] == [
        'pgcdc: table "public.items" is read on, after 150 rows',
        'pgcdc: table "public.items" was read again: 300 rows',
    ]
    again = follow(uri, slot, out, *map(str, arguments))
    reader = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
    for _ in range(2):
        pid = wait_until(lambda: database18.execute(reader, (slot,)).fetchone()[0])
        database18.execute("SELECT pg_terminate_backend(%s, 9000)", (pid,))
    wait_until(lambda: database18.execute(reader, (slot,)).fetchone()[0])
    status, errors = again.stop()
    assert (status, errors.count(DONE.format(300))) == (0, 1)


def test_rows_of_several_tables_that_are_read_at_one_position_are_numbered_on(database18, tmp_path):
    for table in "tuv":
        database18.execute(f"CREATE TABLE {table} (a int PRIMARY KEY); INSERT INTO {table} VALUES (1), (2)")
    database18.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    out = tmp_path / "out"
    run = stream(database18.uri, database18.create_slot(), "-f", str(out), "--resnapshot", "public.*", *NOW)
    assert (run.returncode, run.stderr) == (0, "")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["seq"] for row in rows] == list(range(6))


def test_a_table_that_is_published_later(database18, tmp_path):
    database18.execute(TABLES)
    database18.execute("CREATE TABLE late (id int PRIMARY KEY, b text)")
    slot, out = database18.create_slot(), tmp_path / "out"
    late = ("--resnapshot", "public.late")
    hint = (
        "publish it first: ALTER PUBLICATION ... ADD TABLE;"
        " pgcdc publication show NAME says what is published; a connector's lists must have it, too"
    )
    message = 'find a table to read again: nothing in the publications matches "public.late"'
    refused(stream(database18.uri, slot, "-D", str(out), *late, *NOW), 2, message, hint)
    database18.execute("INSERT INTO late VALUES (1, 'before'), (2, 'before'); INSERT INTO other VALUES (1)")
    database18.execute("ALTER PUBLICATION pub ADD TABLE late")
    database18.execute("UPDATE late SET b = 'after' WHERE id = 2")
    assert stream(database18.uri, slot, "-D", str(out), *late, *NOW).returncode == 0
    found = [(op, new["b"]) for op, _, _, new, _ in lines(out, "public.late")]
    assert found == [("U", "after"), ("R", "before"), ("R", "after")]


def test_who_wrote_before_a_table_was_published_is_waited_for(database18, tmp_path, follow):
    """The stream lacks those changes, and the newer of two transactions may be the first to end."""
    database18.execute(TABLES)
    database18.execute(
        "CREATE TABLE late (id int PRIMARY KEY, b text); INSERT INTO late VALUES (1, 'before')"
    )
    slot, out = database18.create_slot(), tmp_path / "out"
    with psycopg.connect(database18.uri) as publishing, psycopg.connect(database18.uri) as writing:
        publishing.execute("ALTER PUBLICATION pub ADD TABLE late")
        writing.execute("UPDATE late SET b = 'after'")
        publishing.commit()
        run = follow(database18.uri, slot, out, "-D", str(out), "--resnapshot", "public.late", *OFTEN)
        wait_until(lambda: progress(out)["stage"] != "none")
        for number in (1, 2):
            goes_on(database18, out, number)
        assert progress(out)["rows"] == 0
        writing.commit()
    wait_until(lambda: progress(out)["stage"] == "done")
    assert run.stop()[0] == 0
    assert [(op, new["b"]) for op, _, _, new, _ in lines(out, "public.late")] == [("R", "after")]


def test_publications_decide_which_rows_and_columns(database18, tmp_path):
    database18.execute(
        "CREATE TABLE root (id int, b int, c int, g int GENERATED ALWAYS AS (b + 1) STORED,"
        " PRIMARY KEY (id)) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE high PARTITION OF root FOR VALUES FROM (10) TO (99);"
        "INSERT INTO root SELECT g, g, g FROM generate_series(0, 19) g;"
        "CREATE PUBLICATION pub FOR TABLE root (id, b, g) WHERE (id <> 3)"
        " WITH (publish_via_partition_root, publish_generated_columns = stored)"
    )
    slot, out = database18.create_slot(), tmp_path / "out"
    arguments = (database18.uri, slot, "-D", out, "--resnapshot", "public.roo?", *NOW)
    subprocess.run(small_chunks(*arguments), check=True)
    found = [new for _, _, _, new, _ in lines(out, "public.root")]
    assert found == [{"id": g, "b": g, "g": g + 1} for g in range(20) if g != 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-f", "out", "--format", "wal2json"), "--resnapshot: wal2json can't represent existing rows"),
        (("-f", "out", "--format", "raw"), "raw output is what the plugin sends"),
        ((), "a checkpoint has to keep its progress: use -f FILE or -D"),
        (
            ("-D", "out", "--snapshot", "only"),
            "reads while it streams, and --snapshot only exits before that",
        ),
    ],
)
def test_what_it_does_not_go_with(tmp_path, arguments, message):
    command = stream_command("", "s", *AGAIN, *arguments)
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (run.returncode, message in run.stderr) == (2, True), run.stderr


def test_a_table_without_a_key_is_refused(database18, tmp_path):
    database18.execute(TABLES)
    database18.execute("ALTER TABLE other DROP CONSTRAINT other_pkey")
    slot = database18.create_slot()
    run = stream(database18.uri, slot, "-D", str(tmp_path / "out"), "--resnapshot", "public.*", *NOW)
    hint = (
        "give it a primary key or REPLICA IDENTITY USING INDEX, or read it into another directory or file:"
        " pgcdc snapshot"
    )
    refused(run, 2, 'read table "public.other" again: it has no key', hint)


def test_a_key_that_may_be_null_is_refused(database18, tmp_path):
    """No row is beyond a NULL, or before it: rows without a key would be missed."""
    database18.execute(
        "CREATE TABLE items (id int); INSERT INTO items SELECT nullif(g, 3) FROM generate_series(1, 9) g;"
        "ALTER TABLE items ADD CONSTRAINT id_known NOT NULL id NOT VALID;"
        "CREATE UNIQUE INDEX items_id ON items (id); ALTER TABLE items REPLICA IDENTITY USING INDEX items_id;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    arguments = (database18.uri, database18.create_slot(), "-D", str(tmp_path / "out"), *AGAIN, *NOW)
    reason = 'column "id" of its key may be NULL: NOT NULL was added as NOT VALID'
    hint = "validate it first: ALTER TABLE ... VALIDATE CONSTRAINT ..."
    refused(stream(*arguments), 2, f'read table "public.items" again: {reason}', hint)
    database18.execute("UPDATE items SET id = 3 WHERE id IS NULL")
    database18.execute("ALTER TABLE items VALIDATE CONSTRAINT id_known")
    run = stream(*arguments)
    assert (run.returncode, run.stderr, rows_read(tmp_path / "out")) == (0, "", 9)


def filled(server: EmbeddedServer, name: str) -> str:
    """Create a database with nine items, and a slot, both of this name; return the database's URI."""
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    with psycopg.connect(server.uri(name), autocommit=True) as admin:
        admin.execute(TABLES + FILL.format(9))
        admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
    return server.uri(name)


def test_what_the_stream_has_and_others_do_not_see_yet_is_waited_for(other, tmp_path, follow):
    """A commit that waits for a synchronous standby is in the WAL, but other sessions don't see it yet."""
    uri, out = filled(other, "again"), tmp_path / "out"
    with psycopg.connect(uri, autocommit=True) as admin, psycopg.connect(uri) as older:
        older.execute("UPDATE items SET n = 100 WHERE id = 1")
        run = follow(uri, "again", out, "-D", str(out), *AGAIN, *OFTEN)
        wait_until(lambda: progress(out)["stage"] == "reading")
        waiting = [let_commits_wait(admin, uri)]
        statement = "UPDATE items SET n = 200 WHERE id = 2"
        waiting.append(threading.Thread(target=change, args=(uri, statement), daemon=True))
        waiting[1].start()
        wait_until(lambda: commits_that_wait(admin) == 2)
        older.execute("SET LOCAL synchronous_commit = local")
        older.commit()
        # There are two changes, and no row read, as long as no snapshot sees the second change.
        wait_until(lambda: partial_lines(out) == 2)
        time.sleep(1)
        assert partial_lines(out) == 2
        admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
        admin.execute("SELECT pg_reload_conf()")
        wait_until(lambda: progress(out)["stage"] == "done")
        assert run.stop()[0] == 0
        for thread in waiting:
            thread.join()
        assert [op for op, *_ in lines(out)] == ["U"] * 2 + ["R"] * 9
        assert {n for _, _, _, new, _ in lines(out) for n in [new["n"]] if new["id"] < 3} == {100, 200}
        wait_until_free(admin, "again")
        admin.execute("SELECT pg_drop_replication_slot('again')")


def test_what_comes_before_the_first_snapshot_and_is_not_seen_by_it_is_waited_for(other, tmp_path):
    """Such a commit began after the tables were found, and is streamed before they are read."""
    uri, out = filled(other, "begun"), tmp_path / "out"
    with psycopg.connect(uri, autocommit=True) as admin:
        first = let_commits_wait(admin, uri)
        admin.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        first.join()
        admin.execute("SELECT pg_advisory_lock(1)")
        environment = {**os.environ, "SERVER": uri, "STATEMENTS": "SELECT pg_advisory_lock(1)"}
        command = small_chunks(uri, "begun", "-D", out, *AGAIN, *OFTEN, where="begun", step=1)
        with subprocess.Popen(command, env=environment) as run:
            try:
                stopped = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
                wait_until(lambda: admin.execute(stopped).fetchone() == (True,))
                statement = "UPDATE items SET n = 200 WHERE id = 2"
                second = threading.Thread(target=change, args=(uri, statement), daemon=True)
                second.start()
                wait_until(lambda: commits_that_wait(admin) == 1)
                admin.execute("SELECT pg_advisory_unlock(1)")
                wait_until(lambda: partial_lines(out) > 0)
                time.sleep(1)
                assert partial_lines(out) == 1
                admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
                admin.execute("SELECT pg_reload_conf()")
                wait_until(lambda: progress(out)["stage"] == "done")
                run.send_signal(signal.SIGTERM)
                assert run.wait(60) == 0
            finally:
                run.kill()
        second.join()
        assert {new["n"] for _, _, _, new, _ in lines(out) if new["id"] == 2} == {200}
        wait_until_free(admin, "begun")
        admin.execute("SELECT pg_drop_replication_slot('begun')")


def test_a_stream_that_commits_wait_for_waits_for_none_of_its_own(other, tmp_path):
    """As the synchronous standby it confirms nothing before it has found the tables."""
    uri, out = filled(other, "mutual"), tmp_path / "out"
    with psycopg.connect(uri, autocommit=True) as admin:
        waiting = let_commits_wait(admin, uri, standby="pgcdc")
        try:
            run = stream(uri, "mutual", "-D", str(out), *AGAIN, *OFTEN, *NOW, "-s", "0.1")
        finally:
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("SELECT pg_reload_conf()")
        waiting.join()
        assert (run.returncode, run.stderr, rows_read(out)) == (0, "", 9)
        admin.execute("SELECT pg_drop_replication_slot('mutual')")


def let_commits_wait(admin: psycopg.Connection, uri: str, standby: str = "nobody") -> threading.Thread:
    """Let commits wait for a synchronous standby that isn't there; returns a thread in which one waits.

    They wait once the checkpointer, too, has read the setting.
    """
    admin.execute("SET synchronous_commit = local")
    admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
    admin.execute("SELECT pg_reload_conf()")
    in_force = threading.Event()
    thread = threading.Thread(target=change_until, args=(in_force, uri), daemon=True)
    thread.start()
    wait_until(lambda: commits_that_wait(admin) == 1)
    in_force.set()
    return thread


def commits_that_wait(admin: psycopg.Connection) -> int:
    """Count the commits that wait for a synchronous standby."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    return admin.execute(query).fetchone()[0]


def change_until(event: threading.Event, uri: str) -> None:
    """Commit what isn't published, again and again."""
    while not event.is_set():
        change(uri, "SELECT pg_logical_emit_message(true, 'nothing', '')")


def change(uri: str, statement: str) -> None:
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = on")
        connection.execute(statement)


def partial_lines(out: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in out.glob("*/*.partial"))


@pytest.mark.parametrize(
    ("key", "identity"),
    [
        ("PRIMARY KEY (id, kind) INCLUDE (n)", "DEFAULT"),
        ("UNIQUE (id, kind)", "USING INDEX items_id_kind_key"),
    ],
)
def test_rows_are_read_in_the_order_of_the_index(database18, tmp_path, key, identity):
    """In another order each chunk would sort the whole table; a run goes on where the last one ended."""
    database18.execute(
        f"CREATE TABLE items (kind text NOT NULL, id int NOT NULL, n int, doc text, {key});"
        f"ALTER TABLE items REPLICA IDENTITY {identity};"
        "INSERT INTO items SELECT CASE WHEN g % 2 = 0 THEN 'a' ELSE 'b' END, g / 2, nullif(g % 5, 0)"
        " FROM generate_series(1, 300) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    slot, out = database18.create_slot(), tmp_path / "out"
    arguments = (database18.uri, slot, "-D", out, *AGAIN, *NOW, *OFTEN)
    assert subprocess.run(small_chunks(*arguments, where="behind", step=4), check=False).returncode != 0
    assert progress(out)["stage"] == "reading"
    subprocess.run(small_chunks(*arguments), check=True)
    found = [(new["id"], new["kind"]) for _, _, _, new, _ in lines(out)]
    assert found == sorted(found)
    assert folded(out) == source(database18)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pair", "ROW(g % 7, 'it''s, ' || g)::pair"),
        ("known_pair", "ROW(g, NULL)::pair"),
        ("regclass", "(SELECT oid FROM pg_class ORDER BY oid LIMIT 1 OFFSET g)::regclass"),
        ("known_kind", "CASE g % 2 WHEN 0 THEN 'z'::known_kind ELSE 'a' END"),
        ("char(5)", "'a' || g"),
        ("bit(9)", "g::bit(9)"),
    ],
)
def test_keys_that_no_text_is_compared_with(database18, tmp_path, key, value):
    """Beside such a value a text would be read as something else, or as nothing at all."""
    database18.execute(
        "CREATE TYPE pair AS (a int, b text); CREATE DOMAIN known_pair AS pair CHECK ((VALUE).a > 0);"
        "CREATE TYPE kind AS ENUM ('z', 'a'); CREATE DOMAIN known_kind AS kind;"
        f"CREATE TABLE items (n int, id {key}, PRIMARY KEY (id, n));"
        f"INSERT INTO items SELECT g, {value} FROM generate_series(1, 120) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    slot, out = database18.create_slot(), tmp_path / "out"
    subprocess.run(small_chunks(database18.uri, slot, "-D", out, *AGAIN, *NOW), check=True)
    found = [new["n"] for _, _, _, new, _ in lines(out)]
    assert found == [n for (n,) in database18.execute("SELECT n FROM items ORDER BY id, n")]


def test_keys_that_a_setting_of_the_database_would_read_as_others(database18, tmp_path):
    """With `array_nulls` off, NULL in an array would be a string, and in another place of the order."""
    database18.execute(
        f"ALTER DATABASE {database18.name} SET array_nulls = off;"
        "CREATE TABLE items (n int, id text[] PRIMARY KEY);"
        "INSERT INTO items SELECT g, ARRAY['k', CASE WHEN g > 0 THEN 'Z' || g END, g::text]"
        " FROM generate_series(-100, 100) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    slot, out = database18.create_slot(), tmp_path / "out"
    again = (*AGAIN, *NOW, "--max-time", "60s")
    subprocess.run(small_chunks(database18.uri, slot, "-D", out, *again), check=True)
    found = [new["n"] for _, _, _, new, _ in lines(out)]
    assert found == [n for (n,) in database18.execute("SELECT n FROM items ORDER BY id")]


@pytest.mark.parametrize(
    ("encoding", "odd", "escaped"),
    [("SQL_ASCII", b"\xff", "\\xff"), ("EUC_JP", b"\x8f\xa2\xfe", "\\x8f\u25ef")],
)
def test_keys_that_are_no_text(server18, tmp_path, encoding, odd, escaped):
    """Bytes that Python takes for no text in this encoding, at the end of a chunk and where a row moves."""
    database = Encoded(server18, encoding)
    database.send(
        b"CREATE TABLE items (id text PRIMARY KEY, doc text);"
        b"ALTER TABLE items ALTER doc SET STORAGE EXTERNAL;"
        b"INSERT INTO items SELECT repeat('%b', g %% 10 + 1) || g, repeat('d', 9999)"
        b" FROM generate_series(1, 300) g" % odd
    )
    slot, out = database.create_slot(), tmp_path / "out"
    arguments = (database.uri, slot, "-D", out, *AGAIN, *NOW, *OFTEN, "--invalid-text", "escape")
    assert subprocess.run(small_chunks(*arguments, where="behind", step=3), check=False).returncode != 0
    assert progress(out)["stage"] == "reading"
    # The last row comes to where all is read.
    database.send(b"UPDATE items SET id = '%b' WHERE id = (SELECT max(id) FROM items)" % odd)
    subprocess.run(small_chunks(*arguments), check=True)
    read = [new["id"] for op, _, _, new, _ in lines(out) if op == "R"]
    assert len(set(read)) == 300
    assert escaped in read
    database.drop()


def test_names_are_printed_as_the_stream_prints_them(database18, tmp_path):
    """With their schemas; else a key would be two."""
    database18.execute(
        "CREATE SCHEMA more; CREATE TYPE more.kind AS ENUM ('a'); CREATE TABLE more.hidden ();"
        "CREATE TABLE items (id regclass, kind more.kind, PRIMARY KEY (id, kind));"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    slot, out = database18.create_slot(), tmp_path / "out"
    database18.execute("INSERT INTO items VALUES ('items', 'a'), ('more.hidden', 'a'), ('pg_class', 'a')")
    subprocess.run(small_chunks(database18.uri, slot, "-D", out, *AGAIN, *NOW), check=True)
    found = [(op, new["id"]) for op, _, _, new, _ in lines(out)]
    names = {"public.items", "more.hidden", "pg_class"}
    assert sorted(found) == sorted((op, name) for op in "IR" for name in names)


def test_names_beside_a_key_of_an_extension_are_printed_as_the_stream_prints_them(server15, tmp_path):
    """The operators of the key's type are in the schema whose name would be left out."""
    database = Database(server15)
    database.execute(
        "CREATE EXTENSION citext; CREATE TABLE items (id citext, name regclass, PRIMARY KEY (id, name));"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    slot, out = database.create_slot(), tmp_path / "out"
    database.execute("INSERT INTO items SELECT 'a' || g, 'items' FROM generate_series(1, 120) g")
    subprocess.run(small_chunks(database.uri, slot, "-D", out, *AGAIN, *NOW), check=True)
    assert Counter((op, new["name"]) for op, _, _, new, _ in lines(out)) == {
        ("I", "public.items"): 120,
        ("R", "public.items"): 120,
    }
    database.drop()


def test_keys_that_only_their_index_tells_apart(server15, tmp_path):
    """To the column "a" is "A", which may well be the first row of the next chunk."""
    database = Database(server15)
    database.execute(
        "CREATE COLLATION either_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        "CREATE TABLE items (id text COLLATE either_case NOT NULL);"
        'CREATE UNIQUE INDEX items_id ON items (id COLLATE "C"); '
        "ALTER TABLE items REPLICA IDENTITY USING INDEX items_id;"
        "INSERT INTO items SELECT repeat(letter, g)"
        " FROM generate_series(1, 25) g, unnest('{a,A,b,B}'::text[]) letter;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    slot, out = database.create_slot(), tmp_path / "out"
    subprocess.run(small_chunks(database.uri, slot, "-D", out, *AGAIN, *NOW), check=True)
    found = [new["id"] for _, _, _, new, _ in lines(out)]
    assert found == [one for (one,) in database.execute('SELECT id FROM items ORDER BY id COLLATE "C"')]
    database.drop()


def test_a_key_whose_index_tells_apart_what_is_equal_otherwise_is_refused(database18, tmp_path):
    """Rows equal to the last one of a chunk would be left out."""
    database18.execute(
        "CREATE TYPE pair AS (a numeric); CREATE TABLE items (id pair NOT NULL, n text NOT NULL);"
        "CREATE UNIQUE INDEX items_id ON items (id record_image_ops, n text_pattern_ops);"
        "ALTER TABLE items REPLICA IDENTITY USING INDEX items_id;"
        "INSERT INTO items VALUES ('(1.0)', ''), ('(1.00)', ''); CREATE PUBLICATION pub FOR TABLE items"
    )
    line = (database18.uri, database18.create_slot(), "-f", str(tmp_path / "out"), *AGAIN, *NOW)
    refused(
        stream(*line),
        2,
        'read table "public.items" again: the index of its key has an operator class that tells apart what is'
        " equal otherwise",
        "read it into another directory or file, with pgcdc snapshot",
    )


def test_a_key_that_the_usual_operators_do_not_compare_is_refused(server15, tmp_path):
    database = Database(server15)
    database.execute(
        "CREATE EXTENSION hstore; CREATE TABLE items (id hstore PRIMARY KEY);"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    slot = database.create_slot()
    # One chunk would have them all.
    database.execute("INSERT INTO items VALUES ('a=>1'), ('a=>2')")
    run = stream(database.uri, slot, "-f", str(tmp_path / "out"), *AGAIN, *NOW)
    assert (tmp_path / "out").read_text() == ""
    refused(
        run,
        2,
        'read the rows of table "public.items": operator does not exist: hstore > hstore',
        "its key can't be compared: read it into another directory or file, with pgcdc snapshot",
    )
    database.drop()


@pytest.mark.long
def test_keys_of_a_type_that_compares_in_its_own_way(server15, tmp_path):
    """The order of `citext` isn't that of `text`'s operators."""
    database = Database(server15)
    database.execute(
        "CREATE SCHEMA more; CREATE EXTENSION citext SCHEMA more;"
        "CREATE DOMAIN name AS more.citext; CREATE TABLE items (id public.name PRIMARY KEY);"
        "INSERT INTO items SELECT CASE WHEN g % 2 = 0 THEN 'a' ELSE 'A' END || g"
        " FROM generate_series(1, 500) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    slot, out = database.create_slot(), tmp_path / "out"
    subprocess.run(small_chunks(database.uri, slot, "-D", out, *AGAIN, *NOW), check=True)
    found = [new["id"] for _, _, _, new, _ in lines(out)]
    assert sorted(found) == sorted(one for (one,) in database.execute("SELECT id::text FROM items"))
    database.drop()
