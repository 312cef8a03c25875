"""`--resnapshot`: which tables a run reads again while it streams, and which it doesn't."""

import json
import signal
import subprocess
import sys

import psycopg
import pytest
from processes import PGCDC, stream_command, wait_until
from resnapshot_runs import AGAIN, OFTEN, Resnapshots, create_items, killed_half_way, read_meanwhile, source
from stream_runs import NOW, checkpoint, end_of_log, refused, repeating, stream

from pgcdc_cli.lsn import Lsn

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
    create_items(database18, 120)
    runs = Resnapshots(database18, tmp_path / "out", *OFTEN)
    line = stream_command(runs.uri, runs.slot, *runs.options)[len(PGCDC) :]
    with repeating(database18.uri, "SELECT pg_logical_emit_message(true, 'x', 'moves the end of the WAL')"):
        killed = subprocess.run([sys.executable, "-c", AHEAD, *line], check=False, timeout=60)
    reached = runs.progress
    assert (killed.returncode, reached["stage"], reached["rows"]) == (-signal.SIGKILL, "reading", 50)
    database18.execute("ALTER PUBLICATION pub DROP TABLE items; UPDATE items SET n = -n")
    assert stream(runs.uri, runs.slot, "-D", str(runs.out), *NOW).returncode == 0
    database18.execute("ALTER PUBLICATION pub ADD TABLE items")
    assert stream(runs.uri, runs.slot, *runs.options, *NOW).returncode == 0
    assert runs.folded() == source(database18)


def test_a_table_that_is_left_out_is_forgotten_also_while_another_one_is_locked(database18, tmp_path, follow):
    """Its progress was kept until all tables could be found, which may be never in a run."""
    runs = killed_half_way(database18, tmp_path / "out")
    others = ("-D", str(runs.out), *OFTEN, "--exclude-table", "public.items", "--resnapshot", "public.other")
    with psycopg.connect(runs.uri) as locking:
        locking.execute("LOCK TABLE other")
        database18.execute("UPDATE items SET n = -n")
        end = end_of_log(database18)
        run = follow(runs.uri, runs.slot, runs.out, *others)
        wait_until(lambda: Lsn.parse(checkpoint(runs.out)["end_lsn"]) >= end)
        assert run.stop()[0] == 0
    runs.end()
    assert runs.folded() == source(database18)


def test_a_new_form_of_a_table_is_not_there_before_changes_in_its_old_one(database18, tmp_path):
    statements = (
        "BEGIN; UPDATE items SET n = n + 1 WHERE id % 9 = 0; COMMIT;"
        "BEGIN; ALTER TABLE items ADD COLUMN more int DEFAULT 7;"
        "UPDATE items SET more = 8 WHERE id = 9; COMMIT"
    )
    runs = read_meanwhile(database18, tmp_path / "out", statements)
    forms = ["more" in change.after for change in runs.changes()]
    assert len(set(forms)) == 2
    assert forms == sorted(forms)
    assert runs.folded() == source(database18)


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
    low = ("--resnapshot", "public.low")
    runs = Resnapshots(database18, tmp_path / "out", "--publication", "roots", again=low)
    said = runs.end(statements=statement)
    assert 'table "public.low" is not read any further: it is no longer published' in said
    read = len(runs.changes("public.low"))
    assert (runs.progress["stage"], runs.progress["rows"]) == ("reading", read)
    assert read in range(1, 300)


@pytest.mark.parametrize(
    ("away", "back"),
    [
        ("ALTER TABLE items RENAME TO things", "ALTER TABLE things RENAME TO items"),
        ("ALTER PUBLICATION pub DROP TABLE items", "ALTER PUBLICATION pub ADD TABLE items"),
    ],
)
def test_a_table_that_comes_back_is_read_from_its_first_row(database18, tmp_path, away, back):
    """It counted as read."""
    create_items(database18, 300)
    runs = Resnapshots(database18, tmp_path / "out")
    runs.end(statements=away)
    assert len(runs.changes()) in range(1, 300)
    database18.execute(f"UPDATE {'things' if 'things' in away else 'items'} SET n = -n; {back}")
    runs.end()
    assert runs.progress["stage"] == "done"
    assert runs.folded() == source(database18)


DONE = (
    'pgcdc: warning: table "public.items" is not read once more: an earlier run read it again ({} rows);'
    " a run without --resnapshot forgets that\n"
)


def test_what_is_done_is_not_done_again_until_the_option_was_left_out(database18, tmp_path):
    create_items(database18, 120)
    runs, read = Resnapshots(database18, tmp_path / "out"), []
    for number, option in enumerate([AGAIN, AGAIN, (), AGAIN]):
        database18.execute(f"INSERT INTO items VALUES ('new', {number}, 0, '')")
        if number == 1:
            database18.execute("ALTER TABLE items DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id, kind)")
        run = stream(runs.uri, runs.slot, "-D", str(runs.out), *option, *NOW)
        assert (run.returncode, run.stderr) == (0, DONE.format(121) if number == 1 else "")
        read.append(len(runs.rows_read()))
    assert read == [121, 121, 121, 121 + 124]
    status = [*PGCDC, "status", str(runs.out)]
    shown = subprocess.run(status, capture_output=True, text=True, check=True).stdout
    assert "read again    public.items: 124 rows, done" in shown
    line = subprocess.run([*status, "--json"], capture_output=True, check=True).stdout
    found = {"table": "public.items", "rows": 124, "stage": "done", "rows_to_repeat": 0}
    assert json.loads(line)["checkpoint"]["resnapshot"] == [found]


def test_what_earlier_runs_have_read_is_said_once(database18, tmp_path, follow):
    runs = killed_half_way(database18, tmp_path / "out")
    said = runs.end("--verbose")
    assert [line for line in said.splitlines() if "items" in line] == [
        'pgcdc: table "public.items" is read on, after 150 rows',
        'pgcdc: table "public.items" was read again: 300 rows',
    ]
    again = follow(runs.uri, runs.slot, runs.out, *runs.options)
    reader = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
    for _ in range(2):
        pid = wait_until(lambda: database18.execute(reader, (runs.slot,)).fetchone()[0])
        database18.execute("SELECT pg_terminate_backend(%s, 9000)", (pid,))
    wait_until(lambda: database18.execute(reader, (runs.slot,)).fetchone()[0])
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
    create_items(database18)
    database18.execute("CREATE TABLE late (id int PRIMARY KEY, b text)")
    runs = Resnapshots(database18, tmp_path / "out", *NOW, again=("--resnapshot", "public.late"))
    hint = (
        "publish it first: ALTER PUBLICATION ... ADD TABLE;"
        " pgcdc publication show NAME says what is published; a connector's lists must have it, too"
    )
    message = 'find a table to read again: nothing in the publications matches "public.late"'
    refused(stream(runs.uri, runs.slot, *runs.options), 2, message, hint)
    database18.execute("INSERT INTO late VALUES (1, 'before'), (2, 'before'); INSERT INTO other VALUES (1)")
    database18.execute("ALTER PUBLICATION pub ADD TABLE late")
    database18.execute("UPDATE late SET b = 'after' WHERE id = 2")
    assert stream(runs.uri, runs.slot, *runs.options).returncode == 0
    found = [(change.op, change.after["b"]) for change in runs.changes("public.late")]
    assert found == [("U", "after"), ("R", "before"), ("R", "after")]


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
    runs = Resnapshots(database18, tmp_path / "out", again=("--resnapshot", "public.roo?"))
    runs.end()
    found = [change.after for change in runs.changes("public.root")]
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
