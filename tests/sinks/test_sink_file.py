"""One file with a checkpoint beside it."""

import os
from dataclasses import replace

import pytest
from file_sink_tools import TXS, feed, lines, make_sink, opened, started
from sink_tools import SOURCE, START, Framed, error_of, expected, go_on, killed

from pgcdc_cli.changes.edge import Edge, Prepared
from pgcdc_cli.errors import ErrorKind
from pgcdc_cli.sinks import output_file
from pgcdc_cli.sinks.file_sink import file_sink, takes_checkpoint
from pgcdc_cli.sinks.sink import SinkSettings


@pytest.fixture(autouse=True)
def small_frames(monkeypatch):
    monkeypatch.setattr(output_file, "FRAME_SIZE", 100)


def test_runs_one_after_another_leave_one_file(tmp_path):
    path = tmp_path / "out.jsonl"
    for stop in range(1, len(TXS) + 1):
        sink = opened(path)
        go_on(sink, feed(), TXS[:stop], sink.durable_lsn, stop)
    assert lines(path) == expected(TXS)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["out.jsonl", "out.jsonl.checkpoint", "out.jsonl.lock"]


def test_whole_transactions_can_be_seen_at_once_open_ones_not(tmp_path):
    sink = started(tmp_path / "out", TXS[0])
    sink.write(feed().part(TXS[1], 0, 1))
    assert lines(tmp_path / "out") == expected(TXS[:1])
    sink.close()
    assert lines(tmp_path / "out") == expected(TXS[:1])


def test_a_connection_that_is_lost_before_the_first_edge_leaves_the_file_as_it_was(tmp_path):
    sink = started(tmp_path / "out")
    sink.write(feed().part(TXS[0], 0))
    sink.rollback()
    assert (tmp_path / "out").read_bytes() == b""
    for tx in TXS:
        sink.write(feed().whole(tx))
    sink.close()
    assert lines(tmp_path / "out") == expected(TXS)


def test_a_file_that_was_cut_while_it_was_written_ends_the_run(tmp_path):
    """As logrotate does with copytruncate."""
    path = tmp_path / "out"
    sink = started(path, TXS[0])
    sink.flush()
    os.truncate(path, 0)
    sink.write(feed().whole(TXS[1]))
    error = error_of(sink.flush)
    assert (error.kind, sink.durable_lsn) == (ErrorKind.OUTPUT, TXS[0].end_lsn)
    assert "was changed: it has " in error.message
    sink.close()
    assert error_of(make_sink(path).open).hint == (
        "restore the file from a copy, and run again; if there is none, move it away,"
        f" remove out.checkpoint, and run again, with --startpos {TXS[0].end_lsn}"
    )


def test_only_a_newer_checkpoint_helps_where_an_older_one_has_prepared_transactions(tmp_path):
    """Their changes are only in spools, which are removed if there is no checkpoint."""
    path = tmp_path / "out"
    sink = started(path)
    edge = Edge(TXS[0].end_lsn, prepared=(Prepared(7, "gid", START),))
    sink.write(replace(feed().whole(TXS[0]), edge=edge))
    sink.flush()
    sink.write(feed().whole(TXS[1]))
    killed(sink)
    again = opened(path)
    assert again.gap_remedy.endswith(": restore the checkpoint from a newer copy")
    again.close()


def test_a_file_without_rows_that_was_written_to_between_two_runs_is_not_taken(tmp_path):
    path = tmp_path / "out"
    started(path).close()
    path.write_text("mine\n")
    error = error_of(make_sink(path).open)
    assert (error.kind, error.hint) == (ErrorKind.CHECKPOINT, "move it away, and run again")
    assert path.read_text() == "mine\n"
    path.rename(tmp_path / "mine")
    go_on(started(path), feed(), TXS, START)
    assert lines(path) == expected(TXS)


def test_a_file_with_rows_that_was_removed_before_a_run_ended_is_missed(tmp_path):
    path = tmp_path / "out"
    sink = started(path, TXS[0])
    sink.flush()
    path.unlink()
    sink.close()
    error = error_of(make_sink(path).open)
    assert error.message == f'could not continue from "{path}": it is missing; was it moved without HUP?'


def test_a_file_that_has_data_already_is_not_taken(tmp_path):
    (tmp_path / "out").write_text("mine\n")
    error = error_of(make_sink(tmp_path / "out").open)
    assert error.kind is ErrorKind.CHECKPOINT
    assert (tmp_path / "out").read_text() == "mine\n"


def test_an_empty_file_is_taken(tmp_path):
    (tmp_path / "out").touch()
    sink = started(tmp_path / "out", TXS[0])
    sink.close()
    assert lines(tmp_path / "out") == expected(TXS[:1])


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path.with_name("moved").write_bytes(path.read_bytes()), path.unlink()),
        lambda path: (path.rename(path.with_name("moved")), path.write_bytes(b"x" * 10_000)),
        lambda path: (path.rename(path.with_name("moved")), os.truncate(path.with_name("moved"), 10)),
        lambda path: os.truncate(path, path.stat().st_size - 1),
        lambda path: os.truncate(path, 0),
        lambda path: path.write_bytes(b"x" * 10_000),
    ],
    ids=["moved and copied", "replaced", "moved and shortened", "shortened", "emptied", "written over"],
)
def test_a_file_that_isnt_as_it_was_left_is_exit_10_and_left_alone(tmp_path, change):
    path = tmp_path / "out"
    sink = started(path, *TXS)
    sink.close()
    change(path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    moved = "moved" in before
    error = error_of(make_sink(path).open)
    assert error.kind is ErrorKind.CHECKPOINT
    assert str(path) in error.message
    assert error.hint.startswith("move the file that was written back" if moved else "restore the file")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (lambda path: path.unlink(), "move the file that was written back under this name, and run again"),
        (lambda path: os.truncate(path, 0), "restore the file from a copy, and run again"),
    ],
    ids=["gone", "emptied"],
)
def test_nobody_is_told_to_start_anew_without_what_is_prepared(tmp_path, change, hint):
    """The server sends the changes of a prepared transaction only once: they are in the spool."""
    path = tmp_path / "out"
    sink = started(path)
    spool = sink.new_spools().create(7, START)
    prepared = Prepared(7, "g", START, *spool.finish())
    sink.write(replace(feed().whole(TXS[0]), edge=Edge(TXS[0].end_lsn, transactions=1, prepared=(prepared,))))
    sink.close()
    change(path)
    assert error_of(make_sink(path).open).hint == hint


def test_a_finished_snapshot_whose_file_is_gone_has_no_position_to_go_on_from(tmp_path):
    path = tmp_path / "out"
    sink = opened(path)
    sink.start(replace(SOURCE, slot=""), START)
    sink.write(feed().whole(TXS[0]))
    sink.close()
    path.unlink()
    hint = error_of(make_sink(path).open).hint
    assert hint.endswith("and run again from the start")


def test_rows_appended_by_an_unfinished_run_are_cut(tmp_path):
    path = tmp_path / "out"
    sink = started(path, *TXS[:2])
    sink.flush()
    sink.write(feed().whole(TXS[2]))
    killed(sink)
    sink = opened(path)
    assert sink.checkpoint.end_lsn == TXS[1].end_lsn
    go_on(sink, feed(), TXS, TXS[1].end_lsn)
    assert lines(path) == expected(TXS)


def test_a_format_with_one_table_a_file_needs_a_directory(tmp_path):
    error = error_of(lambda: file_sink(str(tmp_path / "out"), Framed(), SinkSettings()))
    assert error.kind is ErrorKind.USAGE
    assert "-D" in error.hint


def test_one_writer_at_a_time(tmp_path):
    sink = started(tmp_path / "out")
    assert error_of(make_sink(tmp_path / "out").open).kind is ErrorKind.LOCKED
    sink.close()


def test_only_a_regular_file_takes_a_checkpoint(tmp_path):
    assert takes_checkpoint(str(tmp_path / "new"))
    (tmp_path / "old").touch()
    assert takes_checkpoint(str(tmp_path / "old"))
    assert not takes_checkpoint("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    assert not takes_checkpoint(str(tmp_path / "pipe"))
