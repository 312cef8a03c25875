"""Which files, segments, and positions a directory has after a run."""

import json
from dataclasses import replace
from pathlib import Path

from sink_tools import (
    SOURCE,
    START,
    TABLES,
    TXS,
    Clock,
    Feed,
    Framed,
    Lines,
    check_complete,
    error_of,
    expected,
    go_on,
    make_table,
    open_sink,
    reader,
    started,
    transactions,
)

from pgcdc_cli.changes.edge import Edge, TableRead
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.errors import ErrorKind
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.sinks import output_file
from pgcdc_cli.stream.source_checks import check_source


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
    sink, feed = open_sink(tmp_path / "d"), Feed(Lines())
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


def test_a_place_that_is_no_directory_or_has_no_parent_is_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "missing" / "d"):
        error = error_of(lambda path=path: open_sink(path))
        assert error.kind is ErrorKind.OUTPUT
        assert str(path) in error.message
