"""A source that isn't the checkpoint's, or has lost the next changes: it is refused, and nothing lost."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from processes import PGCDC, stream_command, wait_until
from segments import contents
from servers import wait_until_free
from stream_runs import (
    NOW,
    delivers,
    end_of_log,
    insert,
    make_slot,
    numbers,
    position,
    refused,
    stream,
    taken,
)
from warm_process import run_warm

UPGRADED = "if it was upgraded (pg_upgrade), and all was read before: --accept-upgrade"
OTHER_PLACE = "use another directory, or connect to the source that the checkpoint names"
ACCEPT_GAP = "changes in between are lost: --accept-gap continues without them"
OTHER_VERSION = "it is intact: continue with the pgcdc that wrote it, or a newer one"
RESTORE = "restore the file from a copy, or start over with an empty directory and a new slot"


def status(uri: str, path: Path) -> subprocess.CompletedProcess[str]:
    return run_warm([*PGCDC, "status", "-d", uri, str(path)])


def test_a_checkpoint_of_another_slot(source, written):
    slot, out = written
    another = source.create_slot(f"orders_of_the_mail_order_house_{slot[-4:]}")
    before = position(source, slot), position(source, another)
    refused(
        stream(source.uri, another, "-D", str(out), *NOW), 13,
        f"continue from the checkpoint: it belongs to slot {slot}, not {another}", OTHER_PLACE,
    )  # fmt: skip
    assert (position(source, slot), position(source, another)) == before
    assert delivers(source.uri, slot, out) == [1, 2]


def test_a_checkpoint_of_a_slot_whose_name_is_mistyped(source, written):
    slot, out = written
    mistyped = slot[:-2]
    message = f"continue from the checkpoint: it belongs to slot {slot}, not {mistyped}"
    hint = f"did you mean -S {slot}; or {OTHER_PLACE}"
    refused(stream(source.uri, mistyped, "-D", str(out), *NOW), 13, message, hint)
    source.create_slot(mistyped)
    refused(stream(source.uri, mistyped, "-D", str(out), *NOW), 13, message, hint)
    assert delivers(source.uri, slot, out) == [1, 2]


def test_a_checkpoint_of_another_server(source, written, own_server):
    slot, out = written
    server = own_server()
    make_slot(server.uri(), slot)
    with psycopg.connect(server.uri()) as there:
        query = "SELECT system_identifier::text FROM pg_control_system()"
        ours, theirs = (one.execute(query).fetchone()[0] for one in (source, there))
    refused(
        stream(server.uri(), slot, "-D", str(out), *NOW), 13,
        f"continue from the checkpoint: it belongs to system identifier {ours}, not {theirs}",
        f"{UPGRADED}; otherwise {OTHER_PLACE}",
    )  # fmt: skip
    shown = status(server.uri(), out)
    assert shown.returncode == 13
    assert f"belongs to system identifier {ours}, not {theirs}\nhint: {OTHER_PLACE}\n" in shown.stderr
    with psycopg.connect(server.uri(), autocommit=True) as there:
        there.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        accept = ("--create-slot", "--accept-gap")
        assert stream(server.uri(), slot, "-D", str(out), *NOW, *accept).returncode == 13
        assert there.execute("SELECT FROM pg_replication_slots").rowcount == 0
    # Nor is that one an upgrade of ours: it would have gone on behind our WAL.
    for _ in range(3):
        source.execute("SELECT pg_logical_emit_message(false, '', ''), pg_switch_wal()")
    assert delivers(source.uri, slot, out) == [1, 2]
    make_slot(server.uri("template1"), slot)
    run = stream(server.uri("template1"), slot, "-D", str(out), *NOW, "--accept-upgrade", "--accept-database")
    assert (run.returncode, "the server's WAL ends before that" in run.stderr) == (13, True)
    assert delivers(source.uri, slot, out) == [1, 2]


def test_a_checkpoint_of_another_database(other, shop, tmp_path):
    out = tmp_path / "out"
    assert delivers(shop, "s", out) == [1]
    with psycopg.connect(shop, autocommit=True) as connection:
        insert(connection, 2, 2)
    with psycopg.connect(other.uri(), autocommit=True) as admin:
        admin.execute("ALTER DATABASE shop RENAME TO store")
        run = stream(other.uri("store"), "s", "-D", str(out), *NOW)
        renamed = f"if it was renamed (ALTER DATABASE ... RENAME): --accept-database; otherwise {OTHER_PLACE}"
        refused(run, 13, "continue from the checkpoint: it belongs to database shop, not store", renamed)
        assert delivers(other.uri("store"), "s", out, "--accept-database") == [1, 2]
        assert delivers(other.uri("store"), "s", out) == [1, 2]
        admin.execute("ALTER DATABASE store RENAME TO shop")
        # A slot of that name in another database has another position.
        admin.execute("SELECT pg_drop_replication_slot('s')")
        admin.execute("CREATE PUBLICATION pub FOR ALL TABLES")
        admin.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        assert stream(other.uri(), "s", "-D", str(out), *NOW, "--accept-database").returncode == 6
        admin.execute("DROP PUBLICATION pub")


def test_another_set_of_publications(source, tmp_path):
    source.execute("CREATE PUBLICATION more FOR TABLE other")
    slot, out, more = source.create_slot(), tmp_path / "out", ("--publication", "more")
    insert(source, 1, 1)
    assert delivers(source.uri, slot, out) == [1]
    before = position(source, slot)
    insert(source, 2, 2)
    source.execute("INSERT INTO other VALUES (3)")
    refused(
        stream(source.uri, slot, "-D", str(out), *NOW, *more), 13,
        "continue from the checkpoint: it belongs to publications pub, not more, pub",
        "if that is intended: --accept-publications",
    )  # fmt: skip
    assert position(source, slot) == before
    assert delivers(source.uri, slot, out, *more, "--accept-publications") == [1, 2]
    assert len(contents(out)["public.other"]) == 1
    assert delivers(source.uri, slot, out, *more) == [1, 2]


def test_a_damaged_checkpoint(source, written):
    slot, out = written
    before = position(source, slot)
    checkpoint = out / "checkpoint.json"
    data = checkpoint.read_bytes()
    for content, doing, reason in (
        (b"", "read", "it is not JSON"),
        (b"{}", "read", "it is not a checkpoint"),
        (data[: data.rindex(b",")] + b"}", "read", "it is cut off or damaged"),
        (data.replace(b'"pub"', b'"bup"', 1), "read", "its checksum is wrong"),
        (None, "continue from", 'it is missing, but there is "manifest.jsonl"'),
    ):
        checkpoint.unlink() if content is None else checkpoint.write_bytes(content)
        run = stream(source.uri, slot, "-D", str(out), *NOW)
        refused(run, 10, f'{doing} "{checkpoint}": {reason}', RESTORE)
        assert position(source, slot) == before
    newer = data.replace(b'{"format_version":1', b'{"format_version":2')
    checkpoint.write_bytes(newer)
    reason = "it has format version 2, this pgcdc reads 1"
    run = stream(source.uri, slot, "-D", str(out), *NOW)
    refused(run, 10, f'read "{checkpoint}": {reason}', OTHER_VERSION)
    assert checkpoint.read_bytes() == newer
    checkpoint.write_bytes(data)
    assert delivers(source.uri, slot, out) == [1, 2]


def gap(source, slot: str, out: Path) -> str:
    end = json.loads((out / "checkpoint.json").read_text())["end_lsn"]
    return f'continue with slot "{slot}": it is at {position(source, slot)}, the output ends at {end}'


def test_a_slot_beyond_the_checkpoint_is_a_gap(source, written):
    slot, out = written
    source.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,))
    insert(source, 3, 3)
    expected = gap(source, slot, out)
    refused(stream(source.uri, slot, "-D", str(out), *NOW), 6, expected, ACCEPT_GAP)
    assert gap(source, slot, out) == expected
    assert delivers(source.uri, slot, out, "--accept-gap") == [1, 3]
    insert(source, 4, 4)
    assert delivers(source.uri, slot, out) == [1, 3, 4]
    show = [*PGCDC, "show", "--format", "jsonl", str(out)]
    shown = subprocess.run(show, capture_output=True, text=True, timeout=60, check=False)
    assert (shown.returncode, shown.stderr, numbers(shown.stdout)) == (0, "", [1, 3, 4])


OVERTAKEN = """
import sys
import psycopg
from pgcdc_cli.cli.app import main
from pgcdc_cli.replication.connection import ReplicationConnection

uri = sys.argv.pop(1)

def last_look(connection):
    ReplicationConnection._before_start = look
    found = look(connection)
    with psycopg.connect(uri, autocommit=True) as other:
        other.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (connection._slot,))
    return found

look = ReplicationConnection._before_start
ReplicationConnection._before_start = last_look
sys.argv[0] = "pgcdc"
main()
"""


def test_a_slot_that_another_process_reads_while_the_stream_starts_is_a_gap(source, written):
    """Once the stream has begun, nobody else can; the server itself would begin behind the gap."""
    slot, out = written
    insert(source, 3, 3)
    start = [sys.executable, "-c", OVERTAKEN, source.uri, *stream_command(source.uri, slot, "-D", out)[3:]]
    run = subprocess.run([*start, *NOW], capture_output=True, text=True, timeout=60, check=False)
    moved, error, hint = run.stderr.splitlines()
    assert (run.returncode, hint) == (6, f"hint: {ACCEPT_GAP}")
    assert moved.endswith(f"another process has moved it to {position(source, slot)}; trying again")
    assert error == f"pgcdc: error: could not {gap(source, slot, out)}"
    insert(source, 4, 4)
    assert delivers(source.uri, slot, out, "--accept-gap") == [1, 4]


@pytest.mark.parametrize("slot_is_gone", [False, True])
def test_what_a_file_has_beyond_an_older_checkpoint_is_not_cut_off(source, tmp_path, slot_is_gone):
    """Somebody restored the checkpoint from a backup; the slot no longer has what came since."""
    slot, out = source.create_slot(), tmp_path / "out"
    checkpoint = tmp_path / "out.checkpoint"
    insert(source, 1, 1)
    assert stream(source.uri, slot, "-f", out, *NOW).returncode == 0
    older = checkpoint.read_bytes()
    insert(source, 2, 2)
    assert stream(source.uri, slot, "-f", out, *NOW).returncode == 0
    newer = checkpoint.read_bytes()
    checkpoint.write_bytes(older)
    if slot_is_gone:
        source.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    hint = (
        '"out" has changes beyond its checkpoint, which do not come again: restore the checkpoint from a'
        " newer copy; if there is none, move the file away, remove out.checkpoint, and run again"
    )
    create = ("--create-slot",) if slot_is_gone else ()
    for accept in ((), create, (*create, "--accept-gap")):
        run = stream(source.uri, slot, "-f", out, *NOW, *accept)
        assert (run.returncode, run.stderr.splitlines()[-1]) == (5 if slot_is_gone else 6, f"hint: {hint}")
        assert numbers(out.read_text()) == [1, 2]
    run = status(source.uri, out)
    assert (run.returncode, run.stderr.splitlines()[-1]) == (5 if slot_is_gone else 6, f"hint: {hint}")
    if not slot_is_gone:
        checkpoint.write_bytes(newer)
        assert stream(source.uri, slot, "-f", out, *NOW).returncode == 0
    insert(source, 3, 3)
    out.rename(tmp_path / "before")
    checkpoint.unlink()
    assert stream(source.uri, slot, "-f", out, *NOW, *create).returncode == 0
    insert(source, 4, 4)
    assert stream(source.uri, slot, "-f", out, *NOW).returncode == 0
    assert numbers((tmp_path / "before").read_text()) == [1, 2]
    assert numbers(out.read_text()) == ([4] if slot_is_gone else [3, 4])


@pytest.mark.parametrize("slot_is_gone", [False, True])
def test_what_a_directory_has_beyond_an_older_checkpoint_is_not_cut_off(
    source, tmp_path, follow, slot_is_gone
):
    slot, out = source.create_slot(), tmp_path / "out"
    checkpoint = out / "checkpoint.json"
    following = follow(source.uri, slot, out, "-D", str(out), "-F", "0.1")

    def durable(number: int) -> bytes:
        insert(source, number, number)
        end = end_of_log(source)
        wait_until(lambda: source.confirmed(slot) >= end)
        return checkpoint.read_bytes()

    older, newer = durable(1), durable(2)
    following.stop(signal.SIGKILL)
    wait_until_free(source, slot)
    [partial] = out.glob("public.t/*.partial")
    checkpoint.write_bytes(older)
    if slot_is_gone:
        source.drop_slot(slot)
    hint = (
        f'hint: "public.t/{partial.name}" has changes beyond its checkpoint, which do not come again: restore'
        " the checkpoint from a newer copy; if there is none, write to another directory"
    )
    create = ("--create-slot",) if slot_is_gone else ()
    expected = (5 if slot_is_gone else 6, hint)
    for accept in ((), create, (*create, "--accept-gap")):
        run = stream(source.uri, slot, "-D", str(out), *NOW, *accept)
        assert (run.returncode, run.stderr.splitlines()[-1]) == expected
        assert numbers(partial.read_text()) == [1, 2]
    run = status(source.uri, out)
    assert (run.returncode, run.stderr.splitlines()[-1]) == expected
    assert "\nunfinished    1 file with 1 change in segment 1\n" in run.stdout
    if slot_is_gone:
        return
    checkpoint.write_bytes(newer)
    insert(source, 3, 3)
    assert delivers(source.uri, slot, out) == [1, 2, 3]


def test_a_slot_made_anew_is_a_gap(source, written):
    slot, out = written
    source.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    source.create_slot(slot)
    insert(source, 3, 3)
    expected = gap(source, slot, out)
    refused(stream(source.uri, slot, "-D", str(out), *NOW), 6, expected, ACCEPT_GAP)
    assert gap(source, slot, out) == expected
    assert delivers(source.uri, slot, out, "--accept-gap") == [1, 3]


def test_a_slot_that_is_gone_is_not_made_behind_the_checkpoints_back(source, written):
    slot, out = written
    source.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    end = json.loads((out / "checkpoint.json").read_text())["end_lsn"]
    refused(
        stream(source.uri, slot, "-D", str(out), *NOW, "--create-slot"), 5,
        f'continue from {end}: slot "{slot}" is gone', ACCEPT_GAP,
    )  # fmt: skip
    query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
    assert source.execute(query, (slot,)).fetchone() == (0,)
    refused(
        stream(source.uri, slot, "-D", str(out), *NOW), 5, f'find slot "{slot}"',
        "the changes since then are lost with it: --create-slot --accept-gap continues without them",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("loss", "status", "reason"),
    [
        ("pg_replication_slot_advance(%s, pg_current_wal_lsn())", 6, "could not continue with slot"),
        ("pg_drop_replication_slot(%s)", 5, "could not continue from"),
    ],
)
def test_what_is_lost_between_two_connections_of_a_run_without_a_checkpoint(
    source, tmp_path, follow, loss, status, reason
):
    slot = source.create_slot()
    following = follow(
        source.uri, slot, tmp_path / "raw", "--format", "raw", "--create-slot", "--if-not-exists"
    )
    # The slot is in use a moment before the stream begins.
    wait_until(lambda: taken(source, slot))
    following.process.send_signal(signal.SIGSTOP)
    source.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )
    wait_until_free(source, slot)
    insert(source, 1, 1)
    source.execute(f"SELECT {loss}", (slot,))
    found, errors = following.stop(signal.SIGCONT)
    assert found == status
    lost, error, hint = errors.splitlines()
    assert lost.endswith("; trying again")
    assert error.startswith(f"pgcdc: error: {reason}")
    assert hint == "hint: changes in between are lost: start it again to continue without them"
