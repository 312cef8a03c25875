"""The sink when descriptors, memory or disk space are short."""

import resource
import subprocess
from pathlib import Path

import pytest
import sink_tools
from sink_tools import (
    START,
    Clock,
    Feed,
    Lines,
    check_complete,
    error_of,
    go_on,
    make_table,
    open_sink,
    reader,
    started,
    transactions,
)

from pgcdc_cli.errors import ErrorKind
from pgcdc_cli.sinks import output_file


@pytest.fixture
def few_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir()))
    # Half of them must be free: the sink takes a quarter, and other tests' servers use some in this process.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(64, 2 * used), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
def test_two_thousand_tables_need_few_descriptors(tmp_path, monkeypatch):
    names = [f"t{n}" for n in range(2000)]
    monkeypatch.setattr(sink_tools, "TABLES", {name: make_table(name, oid=n) for n, name in enumerate(names)})
    txs = transactions(tuple(names), tuple(names[::3]), tuple(names))
    monkeypatch.setattr(output_file, "FRAME_SIZE", 1)
    go_on(open_sink(tmp_path / "d"), Feed(Lines()), txs, START)
    check_complete(reader(tmp_path / "d"), Lines(), txs)


def test_held_rows_are_bounded_over_all_tables(tmp_path, monkeypatch):
    monkeypatch.setattr("pgcdc_cli.sinks.checkpointed_sink.HELD_AT_MOST", 2000)
    sink, feed = started(tmp_path / "d"), Feed(Lines())
    txs = transactions(*["abcd"] * 50)
    for tx in txs:
        sink.write(feed.part(tx, 0, 2))
        assert sink.outputs.held == sum(output.held for output in sink.outputs) < 2000
        sink.write(feed.part(tx, 2, edge=True))
    sink.close()
    check_complete(reader(tmp_path / "d"), Lines(), txs)


@pytest.fixture
def small_disk(mount):
    return mount("1m")


def test_a_full_disk_is_exit_9_and_with_room_again_nothing_is_lost(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(600_000))
    txs = transactions(*["a" * 500] * 60)
    clock = Clock()
    sink = started(small_disk / "d", clock=clock, rotate_size=100_000, fsync_interval=1)
    confirmed = START

    def fill():
        nonlocal confirmed
        for tx in txs:
            clock.now += 1
            sink.write(Feed(Lines()).whole(tx))
            confirmed = sink.durable_lsn

    error = error_of(fill)
    assert error.kind is ErrorKind.OUTPUT
    assert "No space left on device" in error.message
    sink.close()
    done = [tx for tx in txs if tx.end_lsn <= confirmed]
    assert 0 < len(done) < len(txs)
    ballast.unlink()
    txs = txs[: len(done) + 2]
    sink = open_sink(small_disk / "d")
    go_on(sink, Feed(Lines()), txs, confirmed)
    check_complete(reader(small_disk / "d"), Lines(), txs)


def test_a_disk_without_inodes_has_room_and_says_what_it_lacks(small_disk):
    """The system's error is the same as on a full disk."""
    txs = transactions("abcd")
    sink = started(small_disk / "d")
    subprocess.run(["mount", "-o", "remount,nr_inodes=5", small_disk], check=True)
    error = error_of(lambda: (sink.write(Feed(Lines()).whole(txs[0])), sink.flush()))
    sink.close()
    assert error.message.endswith(": No space left on device")
    assert "df -i" in error.hint
    subprocess.run(["mount", "-o", "remount,nr_inodes=100", small_disk], check=True)
    go_on(open_sink(small_disk / "d"), Feed(Lines()), txs, START)
    check_complete(reader(small_disk / "d"), Lines(), txs)
