import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from sink_disks import FailingDisk
from sink_tools import (
    SOURCE,
    START,
    TABLES,
    Clock,
    Feed,
    Framed,
    Lines,
    check_complete,
    error_of,
    expected,
    go_on,
    killed,
    make_directory,
    make_table,
    open_sink,
    reader,
    started,
    transactions,
)

from pgcdc_cli.changes.edge import Edge, TableRead, TableResnapshot
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.directory.checkpoint import check_options
from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.directory.file_names import table_folder
from pgcdc_cli.errors import ErrorKind
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.sinks import directory_sink, output_file
from pgcdc_cli.stream.source_checks import check_source

TXS = transactions("ab", "a", "b", "ac", "b", "a")


def test_a_run_leaves_finished_files_a_manifest_and_a_checkpoint(tmp_path):
    go_on(open_sink(tmp_path / "d"), Feed(Lines()), TXS, START)
    check_complete(reader(tmp_path / "d"), Lines(), TXS)
    names = sorted(path.name for path in (tmp_path / "d").iterdir())
    folders = ["public.a", "public.b", "public.c", "schemas"]
    assert names == sorted([".lock", "checkpoint.json", "manifest.jsonl", *folders])
    schema = json.loads(next((tmp_path / "d/schemas").glob("16400-*.json")).read_text())
    assert schema["format_version"] == 1
    assert schema["fingerprint"] == TABLES["a"].fingerprint
    assert TableSchema.from_json(schema) == TABLES["a"]


def test_nothing_is_durable_before_a_flush_and_all_up_to_the_edge_after(tmp_path):
    sink, feed = started(tmp_path / "d"), Feed(Lines())
    sink.write(feed.whole(TXS[0], TXS[1]))
    assert (sink.edge.lsn, sink.durable_lsn) == (TXS[1].end_lsn, START)
    sink.write(feed.part(TXS[3], 0, 1))
    sink.flush()
    assert (sink.edge.lsn, sink.durable_lsn) == (TXS[1].end_lsn, TXS[1].end_lsn)
    sink.close()
    assert reader(tmp_path / "d").lines(Lines())["public.a"] == expected(TXS[:2], "a")


def test_nothing_counts_as_written_while_rows_are_in_memory(tmp_path):
    """`synchronous_commit = remote_write` waits for the written position."""
    sink, feed = started(tmp_path / "d"), Feed(Lines())
    sink.write(feed.whole(TXS[0], TXS[1]))
    assert sink.written_lsn == START
    sink.flush()
    assert sink.written_lsn == TXS[1].end_lsn
    sink.advance(Lsn(TXS[1].end_lsn + 1))
    assert (sink.written_lsn, sink.durable_lsn) == (TXS[1].end_lsn + 1, TXS[1].end_lsn)
    sink.close()


class WaitingDisk(Disk):
    """A disk whose writes end only when they are `allowed`."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = Event()
        self.allowed.set()

    def write(self, fd, path, data):
        assert self.allowed.wait(60)
        super().write(fd, path, data)


def test_nothing_counts_as_written_while_a_thread_writes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(output_file, "FRAME_SIZE", 1)
    monkeypatch.setattr("pgcdc_cli.directory.disk.BEHIND", 1)
    disk = WaitingDisk()
    sink = make_directory(str(tmp_path / "d"), Lines(), disk)
    sink.open()
    sink.start(SOURCE, START)
    disk.allowed.clear()
    sink.write(Feed(Lines()).whole(TXS[1]))
    assert sink.written_lsn == START
    disk.allowed.set()
    sink.flush()
    assert sink.written_lsn == TXS[1].end_lsn
    sink.close()


def test_after_an_unexpected_error_nothing_more_becomes_durable(tmp_path, monkeypatch):
    """Rows may be missing in what was taken."""
    sink, feed = started(tmp_path / "d"), Feed(Lines())
    sink.write(feed.whole(TXS[0]))
    sink.flush()
    with monkeypatch.context() as broken:
        broken.setattr(sink.outputs, "append", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sink.write(feed.whole(TXS[1]))
    assert error_of(sink.flush).kind is ErrorKind.UNEXPECTED
    sink.close()
    assert sink.durable_lsn == TXS[0].end_lsn
    assert reader(tmp_path / "d").segments() == []


def test_rows_that_no_interval_makes_durable_are_written_at_each_status_interval(tmp_path):
    clock = Clock()
    sink = started(tmp_path / "d", clock=clock, fsync_interval=0, status_interval=10)
    sink.write(Feed(Lines()).whole(TXS[0], TXS[1]))
    clock.now += 9
    sink.tick()
    assert (sink.written_lsn, sink.durable_lsn) == (START, START)
    clock.now += 1
    sink.tick()
    assert (sink.written_lsn, sink.durable_lsn) == (TXS[1].end_lsn, START)
    sink.write(Feed(Lines()).whole(TXS[2]))
    assert sink.written_lsn == START
    sink.close()
    check_complete(reader(tmp_path / "d"), Lines(), TXS[:3])


def test_what_is_durable_is_not_written_again(tmp_path):
    disk = FailingDisk()
    sink = make_directory(str(tmp_path / "d"), Lines(), disk)
    sink.open()
    sink.start(SOURCE, START, sink.checkpoint)
    sink.write(Feed(Lines()).whole(TXS[0]))
    sink.flush()
    calls = len(disk.calls)
    sink.flush()
    assert len(disk.calls) == calls
    sink.close()


def test_nothing_is_left_of_a_table_of_which_no_transaction_was_written(tmp_path):
    clock = Clock()
    sink = started(tmp_path / "d", clock=clock, status_interval=10)
    feed, (tx,) = Feed(Lines()), transactions("a")
    sink.write(feed.slice([(tx, 0)], None))
    clock.now += 30
    sink.tick()
    sink.rollback()
    sink.close()
    assert not list((tmp_path / "d").glob("schemas/*"))


def test_flush_and_rotation_follow_the_clock(tmp_path):
    clock = Clock()
    sink = started(tmp_path / "d", clock=clock, fsync_interval=10, rotate_interval=60, rotate_size=None)
    feed = Feed(Lines())
    clock.now += 9
    sink.write(feed.whole(TXS[0]))
    assert sink.durable_lsn == START
    clock.now += 1
    sink.tick()
    assert sink.durable_lsn == TXS[0].end_lsn
    clock.now += 58
    sink.tick()
    assert reader(tmp_path / "d").segments() == []
    clock.now += 1
    sink.tick()
    assert len(reader(tmp_path / "d").segments()) == 1
    clock.now += 9.5
    sink.write(feed.whole(TXS[1]))
    assert sink.durable_lsn == TXS[0].end_lsn
    sink.close()


def test_without_fsync_interval_rows_are_durable_at_rotation_only(tmp_path):
    clock = Clock()
    sink = started(tmp_path / "d", clock=clock, fsync_interval=0, rotate_interval=60)
    sink.write(Feed(Lines()).whole(TXS[0]))
    clock.now += 59
    sink.tick()
    sink.advance(Lsn(TXS[0].end_lsn + 1))
    assert sink.durable_lsn == START
    clock.now += 1
    sink.tick()
    assert sink.durable_lsn == TXS[0].end_lsn + 1
    sink.close()


def test_keepalives_move_the_checkpoint_once_per_status_interval_and_make_no_segment(tmp_path):
    clock = Clock()
    sink = started(tmp_path / "d", clock=clock, status_interval=10)
    for _ in range(25):
        clock.now += 1
        sink.advance(Lsn(sink.edge.lsn + 1))
        assert sink.durable_lsn in {START, START + 10, START + 20}
    assert sink.durable_lsn == START + 20
    sink.close()
    assert sink.durable_lsn == START + 25
    assert reader(tmp_path / "d").segments() == []
    assert open_sink(tmp_path / "d").checkpoint.end_lsn == START + 25


@pytest.mark.parametrize("fsync_interval", [10, 0])
def test_without_status_interval_not_every_keepalive_is_a_checkpoint(tmp_path, fsync_interval):
    clock = Clock()
    sink = started(tmp_path / "d", clock=clock, status_interval=0, fsync_interval=fsync_interval)
    for _ in range(25):
        clock.now += 1
        sink.advance(Lsn(sink.edge.lsn + 1))
        assert sink.durable_lsn in {START, START + 10, START + 20}
    assert sink.durable_lsn == START + 20
    sink.close()


def test_positions_never_go_down(tmp_path):
    sink = started(tmp_path / "d")
    sink.advance(Lsn(10_000))
    sink.advance(Lsn(5_000))
    sink.write(Feed(Lines()).whole(TXS[0]))
    assert sink.edge.lsn == 10_000
    sink.close()


def test_rows_that_are_not_written_yet_count_for_the_size_of_a_segment(tmp_path):
    sink, feed = started(tmp_path / "d", rotate_size=100), Feed(Lines())
    for tx in TXS:
        sink.write(feed.whole(tx))
    sink.close()
    segments = reader(tmp_path / "d").segments()
    sizes = [sum(file.bytes for file in segment.files) for segment in segments]
    assert len(sizes) > 1
    assert min(sizes[:-1]) >= 100
    check_complete(reader(tmp_path / "d"), Lines(), TXS)


def test_a_segment_has_its_largest_commit_even_if_smaller_ones_follow(tmp_path):
    """Of an interrupted snapshot, tables that are read later have rows of a later position."""
    sink, feed = started(tmp_path / "d"), Feed(Lines())
    sink.write(feed.slice([(TXS[5], 0)], None))
    sink.write(feed.slice([(TXS[1], 0)], TXS[5]))
    sink.close()
    (segment,) = reader(tmp_path / "d").segments()
    assert segment.last_commit_lsn == TXS[5].commit_lsn


def test_a_segment_has_its_smallest_commit_even_if_larger_ones_come_first(tmp_path):
    """Rows that come at once are written table by table."""
    sink = started(tmp_path / "d")
    sink.write(Feed(Lines()).slice([(TXS[2], 0), (TXS[1], 0)], TXS[2]))
    sink.close()
    (segment,) = reader(tmp_path / "d").segments()
    assert (segment.first_commit_lsn, segment.last_commit_lsn) == (TXS[1].commit_lsn, TXS[2].commit_lsn)


def test_two_segments_may_end_at_the_same_position(tmp_path):
    """Rows that are read again come at an edge that is there already."""
    sink, feed = started(tmp_path / "d", rotate_size=1), Feed(Lines())
    sink.write(feed.whole(TXS[1]))
    again = Edge(TXS[1].end_lsn, resnapshots=())
    sink.write(replace(feed.slice([(TXS[1], 0)], TXS[1]), edge=again))
    sink.close()
    assert [segment.end_lsn for segment in reader(tmp_path / "d").segments()] == [TXS[1].end_lsn] * 2


def test_no_segment_ends_while_one_table_is_ahead_of_the_others(tmp_path):
    """Readers take whole segments, and each must have all tables as of one position."""
    sink, feed = started(tmp_path / "d", rotate_size=1), Feed(Lines())
    ahead = Edge(Lsn(0), read=TableRead(TABLES["a"].oid, TXS[2].end_lsn))
    sink.write(replace(feed.whole(TXS[0]), edge=ahead))
    sink.write(feed.whole(TXS[1]))
    assert reader(tmp_path / "d").segments() == []
    sink.write(feed.whole(TXS[2]))
    assert [segment.end_lsn for segment in reader(tmp_path / "d").segments()] == [TXS[2].end_lsn]
    sink.close()


def test_the_position_of_a_slot_to_come_is_known_until_the_snapshot_is_complete(tmp_path):
    sink, feed = make_directory(str(tmp_path / "d"), Lines()), Feed(Lines())
    sink.open()
    sink.start(SOURCE, Lsn(0), sink.checkpoint)
    sink.creating(TXS[0].end_lsn)
    sink.write(feed.part(TXS[0], 0, 1))
    sink.flush()
    assert sink.checkpoint.creating == TXS[0].end_lsn
    sink.write(feed.part(TXS[0], 1, edge=True))
    sink.flush()
    assert sink.checkpoint.creating is None
    sink.close()


def test_hup_rotates_at_the_next_edge(tmp_path):
    sink, feed = started(tmp_path / "d"), Feed(Lines())
    sink.write(feed.part(TXS[0], 0, 1))
    sink.reopen()
    sink.tick()
    assert reader(tmp_path / "d").segments() == []
    sink.write(feed.part(TXS[0], 1, edge=True))
    assert len(reader(tmp_path / "d").segments()) == 1
    sink.close()
    assert len(reader(tmp_path / "d").segments()) == 1


class RecordingDisk(Disk):
    """Notes the size of a file each time write-back begins."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[int] = []

    def write_back(self, fd: int) -> None:
        self.begun.append(os.fstat(fd).st_size)
        super().write_back(fd)


def test_the_disk_begins_with_large_files_before_they_are_fsynced(tmp_path, monkeypatch):
    monkeypatch.setattr(output_file, "FRAME_SIZE", 1)
    monkeypatch.setattr(output_file, "WRITE_BACK", 100)
    disk = RecordingDisk()
    sink, feed = make_directory(str(tmp_path / "d"), Lines(), disk), Feed(Lines())
    sink.open()
    sink.start(SOURCE, START, sink.checkpoint)
    for tx in TXS:
        sink.write(feed.whole(tx))
    written = sink.outputs.size
    sink.close()
    assert min(disk.begun) >= 100
    assert 1 <= len(disk.begun) <= written // 100
    check_complete(reader(tmp_path / "d"), Lines(), TXS)


def test_a_lost_connection_takes_the_open_transaction_back(tmp_path, monkeypatch):
    monkeypatch.setattr(output_file, "FRAME_SIZE", 60)
    sink, feed = started(tmp_path / "d", Framed()), Feed(Framed())
    sink.write(feed.whole(TXS[0]))
    sink.write(feed.part(TXS[3], 0))
    sink.rollback()
    sink.flush()
    sink.start(SOURCE, START, check_source(sink.checkpoint, SOURCE, slot_position=START))
    sink.advance(TXS[0].end_lsn)
    for tx in TXS[1:]:
        sink.write(feed.whole(tx))
    sink.close()
    check_complete(reader(tmp_path / "d"), Framed(), TXS)


def test_values_that_were_no_valid_text_are_counted_over_all_of_a_file(tmp_path):
    sink, feed = started(tmp_path / "d"), Feed(Lines())
    for number, tx in enumerate(transactions("a", "a", "a")):
        slice_ = feed.whole(tx)
        sink.write(replace(slice_, pieces=tuple(replace(p, invalid_text=number) for p in slice_.pieces)))
        sink.flush()
    sink.close()
    (segment,) = reader(tmp_path / "d").segments()
    assert [file.invalid_text for file in segment.files] == [3]


def test_a_transaction_that_begins_a_file_may_come_again(tmp_path, monkeypatch):
    """Its rows had to be written before its end; afterwards it begins a file of the same name."""
    monkeypatch.setattr(output_file, "FRAME_SIZE", 20)
    sink, feed = started(tmp_path / "d", Framed()), Feed(Framed())
    sink.write(feed.part(TXS[0], 0))
    assert list((tmp_path / "d").glob("*/*.partial"))
    sink.rollback()
    assert not list((tmp_path / "d").glob("*/*.partial"))
    for tx in TXS:
        sink.write(feed.whole(tx))
    sink.close()
    check_complete(reader(tmp_path / "d"), Framed(), TXS)


def test_another_head_is_another_part(tmp_path):
    sink, feed = started(tmp_path / "d", Framed()), Feed(Framed())
    sink.write(feed.whole(TXS[0]))
    feed.heads = {"a": b"HEAD2"}
    sink.write(feed.whole(TXS[1]))
    sink.close()
    (segment,) = reader(tmp_path / "d").segments()
    assert [Path(file.path).name for file in segment.files if file.table == "public.a"] == [
        f"000001-{TXS[0].commit_lsn.hex16()}-1.framed",
        f"000001-{TXS[1].commit_lsn.hex16()}-2.framed",
    ]
    assert reader(tmp_path / "d").lines(Framed())["public.a"] == expected(TXS[:2], "a")


def test_a_table_that_was_altered_is_another_part_with_its_own_schema(tmp_path, monkeypatch):
    sink, feed = started(tmp_path / "d"), Feed(Lines())
    sink.write(feed.whole(TXS[0]))
    monkeypatch.setitem(TABLES, "a", make_table("a", columns=("id", "more")))
    sink.write(feed.whole(TXS[1]))
    sink.close()
    (segment,) = reader(tmp_path / "d").segments()
    assert len({file.schema for file in segment.files if file.table == "public.a"}) == 2


@pytest.mark.parametrize("changed", [False, True])
def test_a_recovered_file_goes_on_only_under_its_head(tmp_path, changed):
    sink, feed = started(tmp_path / "d", Framed()), Feed(Framed())
    sink.write(feed.whole(TXS[0]))
    sink.flush()
    killed(sink)
    sink = open_sink(tmp_path / "d", Framed())
    if changed:
        feed.heads = {"a": b"HEAD2"}
    go_on(sink, feed, TXS[:2], TXS[0].end_lsn)
    (segment,) = reader(tmp_path / "d").segments()
    assert len([file for file in segment.files if file.table == "public.a"]) == (2 if changed else 1)
    assert reader(tmp_path / "d").lines(Framed())["public.a"] == expected(TXS[:2], "a")


def test_one_file_for_all_tables_stands_in_the_directory_itself(tmp_path):
    sink = open_sink(tmp_path / "d")
    go_on(sink, Feed(Lines(), layout="stream"), TXS, START)
    (segment,) = reader(tmp_path / "d").segments()
    (file,) = segment.files
    assert file.table is None
    assert "/" not in file.path
    assert file.schema is None
    assert (tmp_path / "d" / file.path).read_bytes().splitlines(keepends=True) == expected(TXS)


def test_messages_have_their_folder(tmp_path):
    txs = transactions(("_messages",), ("_messages", "a"))
    go_on(open_sink(tmp_path / "d"), Feed(Lines()), txs, START)
    assert reader(tmp_path / "d").lines(Lines())["_messages"] == expected(txs, "_messages")


# What is refused


def test_the_directory_is_locked_while_it_is_written(tmp_path):
    sink = started(tmp_path / "d")
    other = make_directory(str(tmp_path / "d"), Lines())
    assert error_of(other.open).kind is ErrorKind.LOCKED
    sink.close()
    other.open()
    other.close()


def test_another_process_finds_it_locked_and_a_killed_one_leaves_no_lock(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); import test_sink_directory as t;"
        "sink = t.started(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "d"), str(Path(__file__).parent)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert error_of(lambda: open_sink(tmp_path / "d")).kind is ErrorKind.LOCKED
        process.kill()
        process.wait()
    open_sink(tmp_path / "d").close()


def test_a_lock_that_was_removed_keeps_nobody_away_and_ends_the_run(tmp_path):
    """The run leaves alone what another run wrote meanwhile, and nothing is lost or doubled."""
    path = tmp_path / "d"
    sink, feed = started(path), Feed(Lines())
    sink.write(feed.whole(*TXS[:2]))
    sink.flush()
    sink.write(feed.whole(*TXS[2:4]))
    sink.outputs.write_all()
    (path / ".lock").unlink()
    go_on(open_sink(path), feed, TXS, TXS[1].end_lsn)
    left = reader(path).files()
    error = error_of(sink.flush)
    assert (error.kind, sink.durable_lsn) == (ErrorKind.OUTPUT, TXS[1].end_lsn)
    assert (
        error.message == f'could not continue: the lock "{path}/.lock" was removed, or its folder was moved'
    )
    sink.close()
    assert reader(path).files() == left
    check_complete(reader(path), Lines(), TXS)


def test_rows_in_a_file_that_was_removed_are_not_confirmed(tmp_path):
    sink = started(tmp_path / "out")
    txs = transactions("ab", "a")
    sink.write(Feed(Lines()).whole(txs[0]))
    sink.flush()
    next((tmp_path / "out").glob("public.a/*.partial")).unlink()
    sink.write(Feed(Lines()).whole(txs[1]))
    assert error_of(sink.flush).kind is ErrorKind.OUTPUT
    assert sink.durable_lsn == txs[0].end_lsn
    sink.close()


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def append(path):
    with path.open("a") as file:
        file.write("somebody else's\n")


@pytest.mark.parametrize("change", [cut, append])
def test_rows_in_a_file_that_others_changed_meanwhile_are_not_confirmed(tmp_path, change):
    sink = started(tmp_path / "out")
    txs = transactions("ab", "a")
    sink.write(Feed(Lines()).whole(txs[0]))
    sink.flush()
    change(next((tmp_path / "out").glob("public.a/*.partial")))
    sink.write(Feed(Lines()).whole(txs[1]))
    error = error_of(sink.flush)
    assert (error.kind, sink.durable_lsn) == (ErrorKind.OUTPUT, txs[0].end_lsn)
    assert re.fullmatch(r".*\.partial\" was changed: it has \d+ bytes, \d+ were written", error.message)
    sink.close()


@pytest.mark.parametrize("change", [cut, append])
def test_a_segment_with_a_file_that_others_changed_is_not_published(tmp_path, change):
    sink = started(tmp_path / "out")
    sink.write(Feed(Lines()).whole(TXS[0]))
    sink.flush()
    change(next((tmp_path / "out").glob("public.a/*.partial")))
    assert error_of(sink.close).kind is ErrorKind.OUTPUT
    assert not (tmp_path / "out/manifest.jsonl").exists()


def test_a_folder_that_was_moved_gets_all_that_is_confirmed(tmp_path):
    """The folder made in its place gets no checkpoint: that would name files elsewhere."""
    path, moved = tmp_path / "d", tmp_path / "moved"
    sink, feed = started(path), Feed(Lines())
    sink.write(feed.whole(*TXS[:2]))
    sink.flush()
    path.rename(moved)
    path.mkdir()
    sink.write(feed.whole(TXS[2]))
    assert error_of(sink.flush).kind is ErrorKind.OUTPUT
    assert sink.durable_lsn == TXS[1].end_lsn
    sink.close()
    assert not any(path.glob("checkpoint*"))
    go_on(open_sink(moved), feed, TXS, TXS[1].end_lsn)
    check_complete(reader(moved), Lines(), TXS)


FOLDERS = ("public.a", table_folder("p" * 200, "a" * 200), "_messages", "_transaction")


@pytest.mark.parametrize(
    "data",
    ["manifest.jsonl", *(f"{folder}/000001-0000000000000010-1.jsonl.partial" for folder in FOLDERS)],
)
def test_data_without_a_checkpoint_is_never_started_over(tmp_path, data):
    path = tmp_path / "d" / data
    path.parent.mkdir(parents=True)
    path.write_text("x")
    error = error_of(lambda: open_sink(tmp_path / "d"))
    assert error.kind is ErrorKind.CHECKPOINT
    assert data in error.message
    assert path.read_text() == "x"


def test_other_files_in_the_directory_are_let_be(tmp_path):
    (tmp_path / "d" / "lost+found").mkdir(parents=True)
    (tmp_path / "d" / "README").write_text("mine")
    (tmp_path / "d" / "x.partial").write_text("mine")
    go_on(open_sink(tmp_path / "d"), Feed(Lines()), TXS, START)
    open_sink(tmp_path / "d").close()
    assert (tmp_path / "d" / "README").read_text() == (tmp_path / "d" / "x.partial").read_text() == "mine"


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def line_of_another_segment(partial: Path) -> str:
    """Make the next line of a manifest, as it is there if the checkpoint is an older one of a backup."""
    line = (partial.parent.parent / "manifest.jsonl").read_text()
    return line.replace('"segment":1', '"segment":2')


def crashed(path) -> Path:
    """Leave a directory as a crash does; return the path of the `.partial` that its checkpoint names."""
    sink, feed = started(path), Feed(Lines())
    sink.write(feed.whole(TXS[0]))
    sink.reopen()
    sink.tick()
    sink.write(feed.whole(TXS[1]))
    sink.flush()
    killed(sink)
    (partial,) = path.glob("public.a/*.partial")
    return partial


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: os.truncate(path, path.stat().st_size - 1),
        lambda path: path.write_bytes(path.read_bytes().replace(b"v0", b"v1")),
        lambda path: (path.parent.parent / "manifest.jsonl").unlink(),
        lambda path: (path.parent.parent / "manifest.jsonl").write_bytes(b""),
        lambda path: append(path.parent.parent / "manifest.jsonl", "{}\n"),
        lambda path: append(path.parent.parent / "manifest.jsonl", line_of_another_segment(path)),
        lambda path: (path.parent.parent / "checkpoint.json").unlink(),
        lambda path: (path.parent.parent / "checkpoint.json").write_bytes(b""),
    ],
)
def test_files_that_arent_as_they_were_left_are_exit_10_and_left_alone(tmp_path, damage):
    partial = crashed(tmp_path / "d")
    damage(partial)
    before = reader(tmp_path / "d").files()
    for _ in range(2):
        error = error_of(lambda: open_sink(tmp_path / "d"))
        assert error.kind is ErrorKind.CHECKPOINT
        assert error.kind.rule.exit_status == 10
        assert str(tmp_path) in error.message
    assert reader(tmp_path / "d").files() == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: path.unlink(), "it is missing"),
        (lambda path: path.write_bytes(b""), "it is shorter than it was"),
        (lambda path: path.write_bytes(path.read_bytes() * 3), "something else was appended to it"),
    ],
    ids=["removed", "cut", "longer"],
)
def test_recovery_finishes_no_segment_in_a_manifest_that_others_changed(
    tmp_path, monkeypatch, change, reason
):
    sink, feed, path = started(tmp_path / "d"), Feed(Lines()), tmp_path / "d" / "manifest.jsonl"
    sink.write(feed.whole(TXS[0]))
    sink.reopen()
    sink.tick()
    sink.write(feed.whole(TXS[1]))
    with monkeypatch.context() as killed:
        killed.setattr(directory_sink, "_finish_segment", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sink.close()
    change(path)
    left = path.read_bytes() if path.exists() else None
    error = error_of(lambda: open_sink(tmp_path / "d"))
    assert error.message == f'could not continue from "{path}": {reason}'
    assert (path.read_bytes() if path.exists() else None) == left


def test_a_file_that_has_a_finished_file_s_name_is_not_replaced(tmp_path):
    sink = started(tmp_path / "d")
    sink.write(Feed(Lines()).whole(TXS[1]))
    sink.flush()
    (partial,) = (tmp_path / "d").glob("public.a/*.partial")
    finished = partial.with_suffix("")
    finished.write_text("mine")
    error = error_of(sink.close)
    assert (error.kind, error.message) == (
        ErrorKind.CHECKPOINT,
        f'could not continue from "{finished}": it already exists',
    )
    assert finished.read_text() == "mine"


@pytest.mark.parametrize("change", [lambda data: data[::-1], lambda data: data + b"\n"])
def test_a_segment_is_not_published_by_recovery_with_a_file_that_was_changed(tmp_path, monkeypatch, change):
    sink = started(tmp_path / "d")
    sink.write(Feed(Lines()).whole(TXS[1]))
    with monkeypatch.context() as killed:
        killed.setattr(directory_sink, "_finish_segment", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sink.close()
    (partial,) = (tmp_path / "d").glob("public.a/*.partial")
    partial.write_bytes(change(partial.read_bytes()))
    error = error_of(lambda: open_sink(tmp_path / "d"))
    assert (error.kind, error.message) == (
        ErrorKind.CHECKPOINT,
        f'could not continue from "{partial}": it was changed',
    )
    assert partial.exists()
    assert reader(tmp_path / "d").segments() == []


def test_unnamed_partials_of_this_segment_or_later_are_deleted_once_the_source_is_known(tmp_path):
    folder = crashed(tmp_path / "d").parent
    gone = [
        folder / "000002-0000000000000010-7.jsonl.partial",
        folder / "000009-0000000000000010-1.x.partial",
        *(tmp_path / "d" / other / "000002-0000000000000010-1.x.partial" for other in FOLDERS),
    ]
    kept = [
        folder / "000001-0000000000000010-7.jsonl.partial",
        folder / "000009-0000000000000010-1.jsonl",
        folder / "notes.partial",
        tmp_path / "d" / "schemas" / "x.partial",
    ]
    for path in gone + kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    open_sink(tmp_path / "d").close()
    assert all(path.exists() for path in gone + kept)
    started(tmp_path / "d").close()
    assert not any(path.exists() for path in gone)
    assert all(path.read_text() == "x" for path in kept)


@pytest.mark.parametrize("named", [True, False])
def test_what_is_beyond_the_checkpoint_stays_until_the_source_is_known_to_send_it_again(tmp_path, named):
    """Of backups, the checkpoint may be an older one: the slot is ahead then, and the run is refused."""
    partial = crashed(tmp_path / "d")
    longer = partial if named else partial.with_name("000002-0000000000000010-7.jsonl.partial")
    durable = longer.read_bytes() if named else b""
    assert open_sink(tmp_path / "d").gap_remedy is None
    longer.write_bytes(durable + b"more")
    for _ in range(2):
        again = open_sink(tmp_path / "d")
        assert again.gap_remedy == (
            f'"public.a/{longer.name}" has changes beyond its checkpoint, which do not come again:'
            " restore the checkpoint from a newer copy; if there is none, write to another directory"
        )
        again.close()
        assert longer.read_bytes() == durable + b"more"
    again.open()
    again.start(SOURCE, START, again.checkpoint)
    assert again.gap_remedy is None
    assert (longer.read_bytes() if longer.exists() else b"") == durable
    again.close()


def test_other_options_are_a_usage_error_that_says_so(tmp_path):
    crashed(tmp_path / "d")
    error = error_of(lambda: open_sink(tmp_path / "d", Framed()))
    assert error.kind is ErrorKind.USAGE
    assert "its format is jsonl, not framed" in error.message
    sink = make_directory(str(tmp_path / "d"), Lines(), options={"numeric": "number"})
    assert "its numeric is not set, and now it is number" in error_of(sink.open).message
    error = error_of(lambda: check_options("c", {}, {"numeric": "number"}))
    assert "its numeric is number, and now it is not set" in error.message
    open_sink(tmp_path / "d").close()


def test_what_differs_in_many_or_long_options_is_named():
    tables = [f"public.table{number}" for number in range(50)]
    old = {"connector": "a1", "connector.tables": ",".join(tables), "connector.prefix": "shop"}

    def reason(**changes: str) -> str:
        return error_of(lambda: check_options("c", {**old, **changes}, old)).message.partition(": ")[2]

    assert reason(connector="b2", **{"connector.prefix": "x"}) == "its connector.prefix is shop, not x"
    assert reason(connector="b2") == "its connector is a1, not b2"
    more = ",".join([*tables[:30], "public.orders", *tables[30:]])
    assert reason(connector="b2", **{"connector.tables": more}) == (
        "its connector.tables is ...table28,public.table29,public.table30,public.table31,public....,"
        " not ...table28,public.table29,public.orders,public.table30,public.t..."
    )
    # A list of tables may change; it is not what is refused.
    others = {"connector.table.include.list": "public.a", "connector.topic.prefix": "x"}
    assert reason(connector="b2", **others) == "its connector.topic.prefix is not set, and now it is x"
    # The same in other words, and a directory of an older version.
    check_options("c", {**old, "connector.flag": "TRUE"}, {**old, "connector.flag": "true"})
    check_options("c", old, {"connector": "a1"})
    error = error_of(lambda: check_options("c", {**old, "connector": "b2"}, {"connector": "a1"}))
    assert "its connector is a1, not b2" in error.message


@pytest.mark.parametrize("end_lsn", [Lsn(0), START])
def test_only_a_snapshot_that_is_not_finished_must_go_on_with_its_options(tmp_path, end_lsn):
    """A finished one is refused later, for a better reason."""
    sink = make_directory(str(tmp_path / "d"), Lines())
    sink.open()
    sink.start(replace(SOURCE, slot=""), end_lsn, sink.checkpoint)
    sink.close()
    again = make_directory(str(tmp_path / "d"), Lines(), options={"numeric": "number"})
    if end_lsn:
        again.open()
        assert again.checkpoint.end_lsn == end_lsn
        again.close()
    else:
        assert "its numeric is not set, and now it is number" in error_of(again.open).message


def test_a_gap_that_is_accepted_ends_the_stream_and_begins_another(tmp_path):
    crashed(tmp_path / "d")
    sink = open_sink(tmp_path / "d")
    old = sink.checkpoint
    checked = check_source(old, SOURCE, slot_position=TXS[3].end_lsn, accept_gap=True)
    sink.start(SOURCE, START, checked)
    assert sink.edge.lsn == sink.durable_lsn == TXS[3].end_lsn
    sink.write(Feed(Lines()).whole(TXS[4]))
    sink.close()
    first, second, third = reader(tmp_path / "d").segments()
    assert first.stream_id == second.stream_id == old.stream_id
    assert second.end_lsn == old.end_lsn
    assert third.stream_id == checked.stream_id != old.stream_id


def test_tables_that_are_read_again_do_not_go_on_over_a_gap(tmp_path):
    """The changes that their rows need are lost, so nothing holds the segment back any more, either."""
    sink, one = started(tmp_path / "d"), TableResnapshot(TABLES["a"].oid, "public.a", ("id",))
    ahead = Edge(START, resnapshots=(replace(one, caught_up_at=TXS[1].end_lsn),))
    sink.write(replace(Feed(Lines()).whole(TXS[0]), edge=ahead))
    sink.close()
    sink = open_sink(tmp_path / "d")
    assert sink.checkpoint.resnapshots == ahead.resnapshots
    checked = check_source(sink.checkpoint, SOURCE, slot_position=TXS[3].end_lsn, accept_gap=True)
    sink.start(SOURCE, START, checked)
    assert len(reader(tmp_path / "d").segments()) == 1
    assert sink.edge.resnapshots == sink.checkpoint.resnapshots == ()
    sink.close()


def test_close_before_start_changes_nothing(tmp_path):
    crashed(tmp_path / "d")
    before = reader(tmp_path / "d").files()
    sink = open_sink(tmp_path / "d")
    sink.rollback()
    sink.flush()
    sink.close()
    sink.close()
    assert reader(tmp_path / "d").files() == before


def test_an_accepted_set_of_publications_is_in_the_checkpoint(tmp_path):
    crashed(tmp_path / "d")
    sink = open_sink(tmp_path / "d")
    source = replace(SOURCE, publications=("p1", "p2"))
    sink.start(
        source, START, check_source(sink.checkpoint, source, slot_position=START, accept_publications=True)
    )
    sink.close()
    assert open_sink(tmp_path / "d").checkpoint.source == source


def test_a_place_that_is_no_directory_or_has_no_parent_is_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "missing" / "d"):
        error = error_of(lambda path=path: open_sink(path))
        assert error.kind is ErrorKind.OUTPUT
        assert str(path) in error.message
