"""Bytes that can't be decoded, or are handled wrongly, are kept for a report, and never confirmed."""

import re
import subprocess
import sys

import pytest
from processes import stream_command
from stream_runs import NOW, in_directory, insert, numbers, position, stream


@pytest.mark.parametrize("where", ["-D", "-f"])
def test_an_undecodable_message_is_kept_and_not_confirmed(source, proxy18, tmp_path, where):
    slot = source.create_slot()
    insert(source, 1, 2)
    source.execute("INSERT INTO t VALUES (3, 'marker')")
    insert(source, 4, 5)
    before, out = position(source, slot), tmp_path / "out"
    # A column kind that does not exist, instead of a text of six bytes.
    proxy18.replace(b"t\0\0\0\6marker", b"?\0\0\0\6marker")
    run = stream(proxy18.uri(source.name), slot, where, str(out), *NOW)
    bad = (out if where == "-D" else tmp_path) / f"{slot}.bad"
    error, hint = run.stderr.splitlines()
    assert run.returncode == 8
    assert re.fullmatch(
        "pgcdc: error: could not decode Insert message: column 2 kind at byte 14 is 0x3F,"
        r" not one of n, u, t, b \(LSN [0-9A-F]+/[0-9A-F]+\)",
        error,
    )
    assert hint == f'hint: none of it was confirmed: report it and attach "{bad}"'
    assert bad.read_bytes().startswith(b"I")
    assert bad.read_bytes().endswith(b"?\0\0\0\6marker")
    assert position(source, slot) == before
    assert stream(source.uri, slot, where, str(out), *NOW).returncode == 0
    assert (in_directory(out) if where == "-D" else numbers(out.read_text())) == [1, 2, 3, 4, 5]


def test_an_undecodable_message_that_cannot_be_kept(source, proxy18, tmp_path):
    slot = source.create_slot()
    source.execute("INSERT INTO t VALUES (1, 'marker')")
    proxy18.replace(b"t\0\0\0\6marker", b"?\0\0\0\6marker")
    out = tmp_path / "out"
    (out / f"{slot}.bad").mkdir(parents=True)
    run = stream(proxy18.uri(source.name), slot, "-D", str(out), *NOW)
    assert run.returncode == 8
    assert run.stderr.splitlines()[1] == (
        f'hint: none of it was confirmed; it could not be kept in "{out}/{slot}.bad": Is a directory'
    )


def test_a_frame_that_is_none_of_the_protocol(source, proxy18, tmp_path):
    slot = source.create_slot()
    source.execute("INSERT INTO t VALUES (1, 'marker')")
    proxy18.replace(b"d\0\0\0\x16k", b"d\0\0\0\x16z")
    run = stream(proxy18.uri(source.name), slot, "-D", str(tmp_path / "out"), "--max-time", "20s")
    assert run.returncode == 8
    assert run.stderr.startswith("pgcdc: error: could not read a frame: unknown type b'z'\nhint: none of it")


BREAKING = """
import sys
from pgcdc_cli.cli.app import main
from pgcdc_cli.formats import jsonl
from pgcdc_cli.pgoutput import spooled_transaction

def broken(encoding, batch, gid):
    if batch.table.name == "other":
        raise RuntimeError("a bug")
    return written(encoding, batch, gid)

def broken_spool(wire):
    raise RuntimeError("a bug")

written = jsonl.JsonlFormat._changes
if sys.argv.pop(1) == "format":
    jsonl.JsonlFormat._changes = broken
else:
    spooled_transaction.chunk_of_block = broken_spool
sys.argv[0] = "pgcdc"
main()
"""


@pytest.mark.parametrize(
    ("bug", "streaming", "place"),
    [
        ("format", "off", 'changes of table "public.other"'),
        ("format", "on", 'changes of table "public.other"'),
        ("spool", "on", "messages"),
    ],
)
def test_a_bug_of_ours_leaves_the_place_and_the_bytes(source, tmp_path, bug, streaming, place):
    """In a format, on rows of a whole or a streamed transaction; or in a spool, before any row is written."""
    source.execute("ALTER PUBLICATION pub ADD TABLE other")
    slot, out = source.create_slot(), tmp_path / "out"
    uri = f"{source.uri}&options=-c%20logical_decoding_work_mem%3D64kB"
    count = 5000 if streaming == "on" else 1
    source.execute("INSERT INTO other SELECT 770 FROM generate_series(1, %s::int)", (count,))
    before = position(source, slot)
    broken = [sys.executable, "-c", BREAKING, bug, *stream_command(uri, slot, "-D", str(out))[3:]]
    run = subprocess.run([*broken, "--streaming", streaming], capture_output=True, text=True, check=False)
    error, hint = run.stderr.splitlines()
    assert run.returncode == 1
    assert re.fullmatch(
        f"pgcdc: error: could not handle {place}: unexpected RuntimeError: a bug"
        r" \(LSN [0-9A-F]+/[0-9A-F]+ to [0-9A-F]+/[0-9A-F]+\)",
        error,
    )
    bad = out / f"{slot}.bad"
    assert hint == (
        f'hint: none of it was confirmed: report it and attach "{bad}" and the traceback that --debug shows'
    )
    assert b"t\0\0\0\x03770" in bad.read_bytes()
    assert position(source, slot) == before
