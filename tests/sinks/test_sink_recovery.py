"""What an earlier run left in a directory is continued if it is as it was left, and refused otherwise."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from sink_tools import (
    SOURCE,
    START,
    TABLES,
    TXS,
    Feed,
    Framed,
    Lines,
    error_of,
    expected,
    go_on,
    killed,
    make_directory,
    open_sink,
    reader,
    started,
)

from pgcdc_cli.changes.edge import Edge, TableResnapshot
from pgcdc_cli.directory.checkpoint import check_options
from pgcdc_cli.directory.file_names import table_folder
from pgcdc_cli.errors import ErrorKind
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.sinks import directory_sink
from pgcdc_cli.stream.source_checks import check_source

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


@pytest.mark.parametrize("end_lsn", [Lsn(0), START])
def test_only_a_snapshot_that_is_not_finished_must_go_on_with_its_options(tmp_path, end_lsn):
    """A finished one is refused later, for a better reason."""
    sink = open_sink(tmp_path / "d")
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
