"""A file that is moved, replaced, or put back, while it is written or between runs; HUP tells a run of it."""

import shutil
from dataclasses import replace

import pytest
from file_sink_tools import TXS, feed, lines, make_sink, opened, started
from sink_tools import START, error_of, expected, go_on, killed

from pgcdc_cli.changes.edge import Edge, TableRead
from pgcdc_cli.directory import disk
from pgcdc_cli.errors import ErrorKind
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.sinks import output_file
from pgcdc_cli.sinks.file_sink import SingleFile


@pytest.fixture(autouse=True)
def small_frames(monkeypatch):
    monkeypatch.setattr(output_file, "FRAME_SIZE", 100)


def check_that_hup_ends_the_moved_file(sink, path, moved):
    """Write a third transaction before HUP, and two behind it."""
    sink.write(feed().whole(TXS[2]))
    sink.reopen()
    sink.tick()
    sink.write(feed().whole(*TXS[3:5]))
    sink.close()
    assert lines(moved) == expected(TXS[:3])
    assert lines(path) == expected(TXS[3:5])


def test_hup_after_a_move_goes_on_in_a_new_file(tmp_path):
    path, moved = tmp_path / "out", tmp_path / "out.1"
    sink = started(path, *TXS[:2])
    path.rename(moved)
    sink.write(feed().part(TXS[2], 0))
    sink.rollback()
    check_that_hup_ends_the_moved_file(sink, path, moved)
    go_on(opened(path), feed(), TXS, TXS[4].end_lsn)
    assert lines(path) == expected(TXS[3:])


@pytest.mark.parametrize("created", [False, True])
def test_a_moved_file_is_written_until_hup_however_many_transactions_are_spooled(
    tmp_path, monkeypatch, created
):
    monkeypatch.setattr(disk, "_descriptor_limit", lambda: 2)
    path, moved = tmp_path / "out", tmp_path / "out.1"
    sink = started(path, *TXS[:2])
    path.rename(moved)
    if created:
        path.touch()
    spools = sink.new_spools()
    for xid in range(1, 4):
        spools.create(xid, START).finish()
    check_that_hup_ends_the_moved_file(sink, path, moved)


def another_folder(folder):
    """Return a place where a moved file isn't found again, so that HUP must have been heeded."""
    (folder / "old").mkdir()
    return folder / "old" / "out.1"


def check_moved_after_two(path, moved):
    """Go on, and check that the first two transactions are in the moved file, and the others here."""
    go_on(opened(path), feed(), TXS, TXS[1].end_lsn)
    assert lines(moved) == expected(TXS[:2])
    assert lines(path) == expected(TXS[2:])


def test_hup_after_a_move_counts_although_the_run_ends_before_another_edge(tmp_path):
    path, moved = tmp_path / "out", another_folder(tmp_path)
    sink = started(path, *TXS[:2])
    path.rename(moved)
    sink.write(feed().part(TXS[2], 0, 1))
    sink.reopen()
    sink.close()
    check_moved_after_two(path, moved)


@pytest.mark.parametrize("created", [False, True])
def test_a_file_that_was_moved_while_no_run_could_be_told_is_found(tmp_path, created):
    """It is cut where the checkpoint is, also if logrotate has created a new one."""
    path, moved = tmp_path / "out", tmp_path / "out.1"
    sink = started(path, *TXS[:2])
    sink.flush()
    sink.write(feed().whole(TXS[2]))
    killed(sink)
    assert lines(path) == expected(TXS[:3])
    path.rename(moved)
    if created:
        path.touch()
    sink = opened(path)
    assert sink.checkpoint.end_lsn == TXS[1].end_lsn
    sink.close()
    check_moved_after_two(path, moved)


def test_hup_after_a_move_counts_although_the_run_ends_before_it_starts(tmp_path):
    path, moved = tmp_path / "out", another_folder(tmp_path)
    sink = started(path, *TXS[:2])
    sink.close()
    sink = opened(path)
    path.rename(moved)
    sink.reopen()
    sink.close()
    check_moved_after_two(path, moved)


@pytest.mark.parametrize("ends", [False, True])
def test_hup_after_a_move_counts_while_a_snapshot_is_read(tmp_path, ends):
    """Then the tables are as of different positions, which a file may contain."""
    path, moved = tmp_path / "out", another_folder(tmp_path)
    sink = started(path)
    read = Edge(Lsn(0), read=TableRead(16400, TXS[-1].end_lsn))
    sink.write(replace(feed().whole(TXS[0]), edge=read))
    path.rename(moved)
    sink.reopen()
    if not ends:
        sink.tick()
        assert path.exists()
    sink.close()
    again = opened(path)
    assert again.checkpoint.read == (read.read,)
    assert lines(moved) == expected(TXS[:1])
    assert path.read_bytes() == b""


def elsewhere(path):
    """Move a file as to another file system: its content is copied, then it is removed."""
    shutil.copy(path, path.with_name("elsewhere"))
    path.unlink()


def replaced_by_copy(path):
    """Move a file away and back, as a restored backup is: its content is the same, its inode another."""
    elsewhere(path)
    path.with_name("elsewhere").rename(path)


@pytest.mark.parametrize("hup", [False, True])
def test_what_nobody_can_read_any_more_is_not_confirmed(tmp_path, hup):
    path = tmp_path / "out"
    sink = started(path, TXS[0])
    sink.flush()
    elsewhere(path)
    sink.write(feed().whole(TXS[1]))
    if hup:
        sink.reopen()
        error = error_of(sink.tick)
    else:
        error = error_of(sink.flush)
    assert (error.kind, sink.durable_lsn) == (ErrorKind.OUTPUT, TXS[0].end_lsn)
    assert error.message == f'could not continue: "{path}" was removed, or moved to another file system'
    sink.close()


def test_another_file_is_no_copy_only_because_it_is_as_long(tmp_path):
    path = tmp_path / "out"
    sink = started(path, TXS[0])
    sink.close()
    other = path.read_bytes()[::-1]
    (tmp_path / "other").write_bytes(other)
    path.rename(another_folder(tmp_path))
    (tmp_path / "other").rename(path)
    error = error_of(make_sink(path).open)
    assert error.kind is ErrorKind.CHECKPOINT
    assert "it is not the file that was written" in error.message
    assert path.read_bytes() == other


def test_a_file_that_was_put_back_as_a_copy_goes_on(tmp_path):
    path = tmp_path / "out"
    sink = started(path, TXS[0])
    sink.flush()
    sink.write(feed().whole(TXS[1]))
    elsewhere(path)
    assert error_of(sink.flush).kind is ErrorKind.OUTPUT
    sink.close()
    (tmp_path / "elsewhere").rename(path)
    for stop in (3, len(TXS)):
        sink = opened(path)
        go_on(sink, feed(), TXS[:stop], sink.durable_lsn)
    assert lines(path) == expected(TXS)


def test_hup_without_a_move_goes_on_in_a_file_that_was_put_back_as_a_copy(tmp_path):
    path = tmp_path / "out"
    sink = started(path, TXS[0])
    sink.close()
    replaced_by_copy(path)
    sink = started(path)
    sink.reopen()
    sink.write(feed().whole(TXS[1]))
    sink.close()
    assert lines(path) == expected(TXS[:2])


def test_what_was_written_stays_until_the_source_is_known_to_send_it_again(tmp_path):
    """Of backups, the checkpoint may be an older one: the slot is ahead then, and the run is refused."""
    path, checkpoint = tmp_path / "out", tmp_path / "out.checkpoint"
    sink = started(path, TXS[0])
    sink.flush()
    shutil.copy(checkpoint, tmp_path / "older")
    sink.write(feed().whole(TXS[1]))
    sink.close()
    replaced_by_copy(path)
    (tmp_path / "older").rename(checkpoint)
    for _ in range(2):
        again = opened(path)
        assert again.checkpoint.end_lsn == TXS[0].end_lsn
        assert again.gap_remedy == (
            '"out" has changes beyond its checkpoint, which do not come again: restore the checkpoint from a'
            " newer copy; if there is none, move the file away, remove out.checkpoint, and run again"
        )
        again.close()
        assert lines(path) == expected(TXS[:2])
    sink = started(path)
    assert sink.gap_remedy is None
    sink.close()
    assert lines(path) == expected(TXS[:1])


@pytest.mark.parametrize("folder", ["", "old"])
def test_hup_after_a_move_cuts_nothing_off_before_the_source_is_known_to_send_it_again(tmp_path, folder):
    """The run may have waited for its server, or found that the slot is ahead of an older checkpoint."""
    path, moved = tmp_path / "out", tmp_path / folder / "out.1"
    moved.parent.mkdir(exist_ok=True)
    sink = started(path, TXS[0])
    sink.flush()
    sink.write(feed().whole(TXS[1]))
    killed(sink)
    waiting = opened(path)
    path.rename(moved)
    waiting.reopen()
    assert "has changes beyond its checkpoint" in waiting.gap_remedy
    waiting.close()
    assert lines(moved) == expected(TXS[:2])
    moved.rename(path)
    go_on(opened(path), feed(), TXS, TXS[0].end_lsn)
    assert lines(path) == expected(TXS)


def test_what_a_moved_file_has_beyond_its_checkpoint_is_named(tmp_path):
    path = tmp_path / "out"
    sink = started(path, TXS[0])
    sink.flush()
    sink.write(feed().whole(TXS[1]))
    killed(sink)
    path.rename(tmp_path / "out.1")
    again = opened(path)
    assert again.gap_remedy == (
        '"out.1" has changes beyond its checkpoint, which do not come again: restore the checkpoint from a'
        " newer copy; if there is none, remove out.checkpoint, and run again"
    )
    again.close()


def test_hup_lets_go_of_a_file_of_which_nothing_is_lost_by_that(tmp_path):
    """As when logrotate compresses it at once."""
    path = tmp_path / "out"
    sink = started(path, TXS[0])
    sink.flush()
    elsewhere(path)
    sink.reopen()
    sink.tick()
    sink.write(feed().whole(TXS[1]))
    sink.close()
    assert lines(tmp_path / "elsewhere") == expected(TXS[:1])
    assert lines(path) == expected(TXS[1:2])


def test_a_folder_that_was_moved_ends_the_run(tmp_path):
    """The open file is in the moved folder; the folder in its place gets no checkpoint of it."""
    folder, moved = tmp_path / "d", tmp_path / "moved"
    folder.mkdir()
    sink = started(folder / "out", TXS[0])
    sink.flush()
    folder.rename(moved)
    folder.mkdir()
    sink.write(feed().whole(TXS[1]))
    assert error_of(sink.flush).kind is ErrorKind.OUTPUT
    assert sink.durable_lsn == TXS[0].end_lsn
    sink.close()
    assert not list(folder.iterdir())
    go_on(opened(moved / "out"), feed(), TXS, TXS[0].end_lsn)
    assert lines(moved / "out") == expected(TXS)


def test_hup_without_a_move_goes_on_in_the_same_file(tmp_path):
    sink = started(tmp_path / "out", *TXS[:2])
    sink.reopen()
    sink.tick()
    assert sink.durable_lsn == TXS[1].end_lsn
    sink.write(feed().whole(*TXS[2:]))
    sink.close()
    assert lines(tmp_path / "out") == expected(TXS)


def test_hup_takes_the_empty_file_that_was_put_in_place(tmp_path):
    sink = started(tmp_path / "out", TXS[0])
    (tmp_path / "out").rename(tmp_path / "out.1")
    (tmp_path / "out").touch()
    sink.reopen()
    sink.write(feed().whole(TXS[1]))
    sink.write(feed().whole(TXS[2]))
    sink.close()
    assert lines(tmp_path / "out") == expected(TXS[2:3])


def test_hup_lets_go_of_a_moved_file_before_there_is_a_new_one(tmp_path, monkeypatch):
    """The run may end in between, and by then the moved file may be anywhere."""
    path = tmp_path / "out"
    sink = started(path, TXS[0])
    path.rename(another_folder(tmp_path))
    sink.reopen()
    with monkeypatch.context() as killed:
        killed.setattr(SingleFile, "_make", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            sink.write(feed().whole(TXS[1]))
    sink.close()
    go_on(started(path), feed(), TXS, TXS[1].end_lsn)
    assert lines(path) == expected(TXS[2:])


def test_hup_leaves_a_file_with_content_that_was_put_in_place_alone(tmp_path):
    path = tmp_path / "out"
    sink = started(path, TXS[0])
    path.rename(tmp_path / "out.1")
    path.write_text("mine\n")
    sink.reopen()
    error = error_of(lambda: sink.write(feed().whole(TXS[1])))
    assert error.message == f'could not continue from "{path}": it has 5 bytes, and they aren\'t ours'
    sink.close()
    assert path.read_text() == "mine\n"
    assert lines(tmp_path / "out.1") == expected(TXS[:2])


def archived(path) -> None:
    """Move a file into another folder, as a script for rotation does. Its inode stays in use."""
    (path.parent / "archive").mkdir()
    path.rename(path.parent / "archive" / path.name)


@pytest.mark.parametrize(
    "change",
    [archived, lambda path: (archived(path), path.touch()), lambda path: (path.unlink(), path.touch())],
    ids=["moved", "replaced", "created again"],
)
def test_a_file_without_rows_may_go_between_two_runs(tmp_path, change):
    path = tmp_path / "out"
    sink = started(path)
    sink.advance(TXS[0].end_lsn)
    sink.write(feed().part(TXS[4], 0, 6))
    sink.close()
    change(path)
    sink = opened(path)
    assert sink.checkpoint.end_lsn == TXS[0].end_lsn
    go_on(sink, feed(), TXS, sink.durable_lsn)
    assert lines(path) == expected(TXS[1:])


def test_a_file_that_a_killed_run_left_is_missed_though_none_of_its_rows_were_durable(tmp_path):
    """They will come again, and may be in the file, wherever that is."""
    path = tmp_path / "out"
    sink = started(path, TXS[0])
    killed(sink)
    archived(path)
    assert lines(tmp_path / "archive/out") == expected(TXS[:1])
    assert error_of(make_sink(path).open).kind is ErrorKind.CHECKPOINT
    path.touch()
    assert error_of(make_sink(path).open).kind is ErrorKind.CHECKPOINT
