"""What others do to a directory while a run writes it: nothing of that is confirmed or published."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sink_tools import (
    START,
    TXS,
    Feed,
    Lines,
    check_complete,
    error_of,
    go_on,
    make_directory,
    open_sink,
    reader,
    started,
    written,
)

from pgcdc_cli.errors import ErrorKind


def test_the_directory_is_locked_while_it_is_written(tmp_path):
    sink = started(tmp_path / "d")
    other = make_directory(str(tmp_path / "d"), Lines())
    assert error_of(other.open).kind is ErrorKind.LOCKED
    sink.close()
    other.open()
    other.close()


def test_another_process_finds_it_locked_and_a_killed_one_leaves_no_lock(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); import sink_tools as t;"
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
    sink, feed = written(path, *TXS[:2]), Feed(Lines())
    sink.write(feed.whole(*TXS[2:4]))
    sink.outputs.write_all()
    (path / ".lock").unlink()
    go_on(open_sink(path), feed, TXS, TXS[1].end_lsn)
    left = reader(path).files()
    error = error_of(sink.flush)
    assert (error.kind, sink.durable_lsn) == (ErrorKind.OUTPUT, TXS[1].end_lsn)
    reason = f'the lock "{path}/.lock" was removed, or its folder was moved'
    assert error.message == f"could not continue: {reason}"
    sink.close()
    assert reader(path).files() == left
    check_complete(reader(path), Lines(), TXS)


def test_rows_in_a_file_that_was_removed_are_not_confirmed(tmp_path):
    sink = written(tmp_path / "out", TXS[0])
    next((tmp_path / "out").glob("public.a/*.partial")).unlink()
    sink.write(Feed(Lines()).whole(TXS[1]))
    assert error_of(sink.flush).kind is ErrorKind.OUTPUT
    assert sink.durable_lsn == TXS[0].end_lsn
    sink.close()


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def append(path):
    with path.open("a") as file:
        file.write("somebody else's\n")


@pytest.mark.parametrize("change", [cut, append])
def test_rows_in_a_file_that_others_changed_meanwhile_are_not_confirmed(tmp_path, change):
    sink = written(tmp_path / "out", TXS[0])
    change(next((tmp_path / "out").glob("public.a/*.partial")))
    sink.write(Feed(Lines()).whole(TXS[1]))
    error = error_of(sink.flush)
    assert (error.kind, sink.durable_lsn) == (ErrorKind.OUTPUT, TXS[0].end_lsn)
    assert re.fullmatch(r".*\.partial\" was changed: it has \d+ bytes, \d+ were written", error.message)
    sink.close()


@pytest.mark.parametrize("change", [cut, append])
def test_a_segment_with_a_file_that_others_changed_is_not_published(tmp_path, change):
    sink = written(tmp_path / "out", TXS[0])
    change(next((tmp_path / "out").glob("public.a/*.partial")))
    assert error_of(sink.close).kind is ErrorKind.OUTPUT
    assert not (tmp_path / "out/manifest.jsonl").exists()


def test_a_folder_that_was_moved_gets_all_that_is_confirmed(tmp_path):
    """The folder made in its place gets no checkpoint: that would name files elsewhere."""
    path, moved = tmp_path / "d", tmp_path / "moved"
    sink, feed = written(path, *TXS[:2]), Feed(Lines())
    path.rename(moved)
    path.mkdir()
    sink.write(feed.whole(TXS[2]))
    assert error_of(sink.flush).kind is ErrorKind.OUTPUT
    assert sink.durable_lsn == TXS[1].end_lsn
    sink.close()
    assert not any(path.glob("checkpoint*"))
    go_on(open_sink(moved), feed, TXS, TXS[1].end_lsn)
    check_complete(reader(moved), Lines(), TXS)


def test_a_file_that_has_a_finished_file_s_name_is_not_replaced(tmp_path):
    sink = written(tmp_path / "d", TXS[1])
    (partial,) = (tmp_path / "d").glob("public.a/*.partial")
    finished = partial.with_suffix("")
    finished.write_text("mine")
    error = error_of(sink.close)
    assert (error.kind, error.message) == (
        ErrorKind.CHECKPOINT,
        f'could not continue from "{finished}": it already exists',
    )
    assert finished.read_text() == "mine"


def test_other_files_in_the_directory_are_let_be(tmp_path):
    (tmp_path / "d" / "lost+found").mkdir(parents=True)
    (tmp_path / "d" / "README").write_text("mine")
    (tmp_path / "d" / "x.partial").write_text("mine")
    go_on(open_sink(tmp_path / "d"), Feed(Lines()), TXS, START)
    open_sink(tmp_path / "d").close()
    assert (tmp_path / "d" / "README").read_text() == (tmp_path / "d" / "x.partial").read_text() == "mine"
