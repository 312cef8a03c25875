import json
import re
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sink_tools import SOURCE, error_of

from pgcdc_cli.changes.edge import LastCommit, LastEdge, Prepared, ResnapshotStage, TableRead, TableResnapshot
from pgcdc_cli.directory import manifest
from pgcdc_cli.directory.checkpoint import (
    Checkpoint,
    FileState,
    PartialFile,
    PendingRotation,
    StreamSource,
    allow_mending,
    check_options,
    decode,
    encode,
    read_checkpoint,
    write_checkpoint,
)
from pgcdc_cli.directory.disk import Disk
from pgcdc_cli.directory.manifest import (
    Segment,
    SegmentFile,
    encode_segment,
    last_segment,
    read_manifest,
    read_state,
)
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn

LSNS = st.integers(0, 2**64 - 1).map(Lsn)
COUNTS = st.integers(0, 2**63)
PATHS = st.lists(st.text("ab%é-.", min_size=1).filter(lambda p: p not in {".", ".."}), min_size=1).map(
    "/".join
)
FILES = st.builds(
    PartialFile,
    PATHS,
    st.builds(FileState, COUNTS, COUNTS, COUNTS, LSNS, LSNS),
    COUNTS,
    st.none() | st.text(),
    st.none() | PATHS,
    COUNTS,
)
KEYS = st.lists(st.text(), min_size=1, max_size=3).map(tuple)
RESNAPSHOTS = st.builds(
    TableResnapshot,
    COUNTS,
    st.text(),
    KEYS,
    COUNTS,
    st.none() | KEYS,
    st.lists(KEYS, max_size=2).map(tuple),
    LSNS,
    st.sampled_from(get_args(ResnapshotStage)),
    st.text(),
)
CHECKPOINTS = st.builds(
    Checkpoint,
    source=st.builds(StreamSource, st.text(), COUNTS, st.text(), st.text(), st.lists(st.text()).map(tuple)),
    end_lsn=LSNS,
    options=st.dictionaries(st.text(), st.text()),
    stream_id=st.uuids().map(str),
    segment=COUNTS,
    files=st.lists(FILES, max_size=3).map(tuple),
    pending=st.none()
    | st.builds(PendingRotation, st.text(), st.lists(st.tuples(PATHS, PATHS), max_size=2).map(tuple), COUNTS),
    inode=st.none() | st.tuples(COUNTS, COUNTS),
    resnapshots=st.lists(RESNAPSHOTS, max_size=2).map(tuple),
)
ONE = Checkpoint(
    source=SOURCE,
    end_lsn=Lsn.parse("0/1A2B3C8"),
    options={"format": "jsonl", "suffix": ".jsonl"},
    segment=13,
    files=(
        PartialFile(
            "public.a/000013-0000000000000010-1.jsonl.partial", FileState(10, 20, 1, Lsn(16), Lsn(16))
        ),
    ),
    pending=PendingRotation("{}\n", (("a.partial", "a"),), 7),
)


@settings(deadline=None)
@given(CHECKPOINTS)
def test_what_is_written_is_read(checkpoint):
    assert decode(encode(checkpoint)) == checkpoint


def refused(path) -> str:
    with pytest.raises(PgcdcError) as caught:
        read_checkpoint(Disk(), str(path))
    assert caught.value.kind is ErrorKind.CHECKPOINT
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_checkpoint_keeps_all_that_is_known_of_an_edge():
    edge = LastEdge(
        lsn=Lsn(9),
        last_commit=LastCommit(Lsn(8), 1),
        prepared=(Prepared(7, "gid", Lsn(6)),),
        read=(TableRead(16400, Lsn(9)),),
        resnapshots=(TableResnapshot(16401, "public.t", ("id",)),),
    )
    untouched = LastEdge()
    assert all(getattr(edge, one.name) != getattr(untouched, one.name) for one in fields(edge))
    checkpoint = Checkpoint(SOURCE, Lsn(5), {}, creating=Lsn(5)).at(edge, ())
    assert (checkpoint.edge, checkpoint.creating) == (edge, None)


def test_a_flipped_bit_anywhere_is_found(tmp_path):
    path = tmp_path / "checkpoint.json"
    write_checkpoint(Disk(), str(path), ONE)
    data = path.read_bytes()
    for at in range(len(data)):
        for bit in range(8):
            path.write_bytes(data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :])
            refused(path)


def test_a_checkpoint_cut_anywhere_or_too_long_is_refused(tmp_path):
    path = tmp_path / "checkpoint.json"
    data = encode(ONE)
    for at in range(len(data)):
        path.write_bytes(data[:at])
        refused(path)
    for more in (b"\n", b" ", data, b"\0"):
        path.write_bytes(data + more)
        refused(path)


def test_another_version_is_named(tmp_path):
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps({"format_version": 2, "whatever": []}))
    assert "format version 2, this pgcdc reads 1" in refused(path)


def sealed(change) -> bytes:
    """A checkpoint with a correct checksum, but changed before that was computed."""
    content = json.loads(encode(ONE))
    del content["crc32"]
    change(content)
    body = json.dumps(content, separators=(",", ":")).encode()
    return body[:-1] + b',"crc32":%d}\n' % zlib.crc32(body)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(segment="13"),
        lambda c: c.update(segment=-1),
        lambda c: c.update(segment=1.0),
        lambda c: c.update(segment=True),
        lambda c: c.update(end_lsn="0x1/0"),
        lambda c: c.update(end_lsn=5),
        lambda c: c.update(source=None),
        lambda c: c["source"].update(publications="p1"),
        lambda c: c["source"].update(timeline=None),
        lambda c: c.update(options=[]),
        lambda c: c.update(options={"format": 1}),
        lambda c: c.update(files={}),
        lambda c: c["files"][0].update(path="../../etc/passwd"),
        lambda c: c["files"][0].update(path="/etc/passwd"),
        lambda c: c["files"][0].update(path="\ud800"),
        lambda c: c["files"][0].pop("crc32"),
        lambda c: c["files"][0].update(more=1),
        lambda c: c["pending"].update(renames=[{"from": "a"}]),
        lambda c: c["pending"].update(renames=[{"from": "a", "to": "/b"}]),
        lambda c: c.update(inode=[1]),
        lambda c: c.pop("stream_id"),
        lambda c: c.update(more=1),
        lambda c: c["source"].update(publications=["z", "a"]),
    ],
)
def test_what_is_sealed_but_not_ours_is_refused(tmp_path, change):
    path = tmp_path / "checkpoint.json"
    path.write_bytes(sealed(lambda _: None))
    assert read_checkpoint(Disk(), str(path)) == ONE
    path.write_bytes(sealed(change))
    refused(path)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b"{", b'{"format_version":true}']
)
def test_what_is_no_checkpoint_is_refused(tmp_path, data):
    path = tmp_path / "checkpoint.json"
    path.write_bytes(data)
    refused(path)


def test_no_checkpoint_is_none(tmp_path):
    assert read_checkpoint(Disk(), str(tmp_path / "checkpoint.json")) is None


# The manifest


def segment(number: int, files: int = 1) -> Segment:
    lsn = Lsn(number * 100)
    listed = tuple(
        SegmentFile("public.a", f"public.a/{n}", "jsonl", 1, 2, 3, None, unchanged=False)
        for n in range(files)
    )
    return Segment(number, "id", lsn, Lsn(lsn + 10), Lsn(lsn + 20), listed)


def test_a_manifest_reads_as_written(tmp_path):
    path = tmp_path / "manifest.jsonl"
    segments = [segment(1), segment(2, 2000), segment(3)]
    assert read_manifest(str(path)) == []
    assert last_segment(Disk(), str(path)) is None
    for count in range(1, 4):
        path.write_text("".join(encode_segment(s) for s in segments[:count]))
        assert read_manifest(str(path)) == segments[:count]
        assert last_segment(Disk(), str(path)) == segments[count - 1]


def test_a_segment_that_is_finished_after_the_checkpoint_was_read_is_no_damage(tmp_path):
    (tmp_path / "manifest.jsonl").write_text(encode_segment(segment(1)) + encode_segment(segment(2)))
    checkpoint = Checkpoint(SOURCE, Lsn(120), {}, segment=2)
    write_checkpoint(Disk(), str(tmp_path / "checkpoint.json"), checkpoint)
    assert read_state(str(tmp_path), Disk()) == (checkpoint, [segment(1), segment(2)])
    write_checkpoint(Disk(), str(tmp_path / "checkpoint.json"), replace(checkpoint, segment=4))
    with pytest.raises(PgcdcError, match="its last segment is 2, the checkpoint's is 3"):
        read_state(str(tmp_path), Disk())


def test_a_segment_that_is_finished_before_the_checkpoint_was_read_is_not_missed(tmp_path, monkeypatch):
    """The manifest is read last: it has what the checkpoint says is finished, and may have more."""
    write_checkpoint(Disk(), str(tmp_path / "checkpoint.json"), Checkpoint(SOURCE, Lsn(120), {}, segment=1))

    def finish_behind(path, disk):
        found = read_manifest(path, disk)
        Path(path).write_text(encode_segment(segment(1)))
        after = Checkpoint(SOURCE, Lsn(120), {}, segment=2)
        write_checkpoint(disk, str(tmp_path / "checkpoint.json"), after)
        return found

    monkeypatch.setattr(manifest, "read_manifest", finish_behind)
    checkpoint, segments = read_state(str(tmp_path), Disk())
    assert (checkpoint.segment, segments) == (1, [])


@pytest.mark.parametrize("place", ["/etc/passwd", "../d/public.a/1", "public.a/../../x"])
@pytest.mark.parametrize("name", ["path", "schema"])
def test_a_manifest_names_nothing_outside_of_its_directory(tmp_path, name, place):
    line = json.loads(encode_segment(segment(1)))
    line["files"][0][name] = place
    (tmp_path / "manifest.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(PgcdcError, match=f"line 1: {name} of a file points outside the directory"):
        read_manifest(str(tmp_path / "manifest.jsonl"))


def test_a_manifest_of_another_program_may_not_know_what_was_sent(tmp_path):
    path = tmp_path / "manifest.jsonl"
    path.write_text(encode_segment(segment(1)).replace(',"unchanged":false', ""))
    (found,) = read_manifest(str(path))
    assert found.files[0].unchanged


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([segment(1), segment(3)], "segment 3 follows segment 1"),
        ([segment(2), segment(1)], "segment 1 follows segment 2"),
        ([segment(1), replace(segment(2), end_lsn=Lsn(1))], "ends before"),
    ],
)
def test_segments_that_dont_follow_one_another_are_refused(tmp_path, lines, reason):
    path = tmp_path / "manifest.jsonl"
    path.write_text("".join(encode_segment(line) for line in lines))
    with pytest.raises(PgcdcError, match=reason) as caught:
        read_manifest(str(path))
    assert caught.value.kind is ErrorKind.CHECKPOINT


def test_a_torn_line_is_of_no_finished_segment(tmp_path):
    path = tmp_path / "manifest.jsonl"
    first, second = encode_segment(segment(1)), encode_segment(segment(2))
    for cut in range(1, len(second)):
        path.write_text(first + second[:cut])
        assert read_manifest(str(path)) == [segment(1)]
        with pytest.raises(PgcdcError, match="cut off"):
            last_segment(Disk(), str(path))


def test_a_damaged_line_is_refused_by_number(tmp_path):
    path = tmp_path / "manifest.jsonl"
    first, second = encode_segment(segment(1)), encode_segment(segment(2))
    path.write_text(first + second.replace('"rows":1', '"rows":"1"'))
    with pytest.raises(PgcdcError, match="line 2: rows of a file is not a whole number"):
        read_manifest(str(path))
    path.write_text(first + re.sub('"path":"[^"]*"', r'"path":"\\ud800"', second))
    with pytest.raises(PgcdcError, match="line 2: path of a file is not valid text"):
        read_manifest(str(path))
    path.write_text(first.replace('"format_version":1', '"format_version":2'))
    with pytest.raises(PgcdcError, match="format version 2"):
        read_manifest(str(path))


@pytest.mark.parametrize("prepared", [(), (Prepared(7, "gid", Lsn(1)),)], ids=["none", "some"])
def test_invalid_text_may_be_mended_from_now_on_unless_a_spool_has_text_as_it_came(prepared):
    before = Checkpoint(source=SOURCE, end_lsn=Lsn(1), options={"format": "jsonl"}, prepared=prepared)
    after = allow_mending(before, {"format": "other", "invalid_text": "replace"}, "stop")
    wanted = {"format": "jsonl"} if prepared else {"format": "jsonl", "invalid_text": "replace"}
    assert after == replace(before, options=wanted)


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
