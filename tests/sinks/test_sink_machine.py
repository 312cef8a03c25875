"""Writes, edges, flushes, rotations, lost connections, crashes and power cuts in any order."""

import random

import hypothesis.strategies as st
import scale
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sink_disks import Crash, PowerDisk
from sink_tools import (
    SOURCE,
    START,
    Clock,
    Feed,
    Framed,
    Lines,
    MemoryOrRealReader,
    Tx,
    expected,
    make_directory,
    tables_of,
)

from pgcdc_cli.directory import disk
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.sinks import output_file

ROOT = "/data/d"
TABLES = st.text("abcd", min_size=0, max_size=8)


class SinkMachine(RuleBasedStateMachine):
    """A server with growing WAL, and a sink that may die at any call of its disk."""

    @initialize(framed=st.booleans(), rotate_size=st.sampled_from([200, 1000, None]))
    def begin(self, framed, rotate_size):
        self.encoding = Framed() if framed else Lines()
        self.settings = {"rotate_size": rotate_size, "rotate_interval": 60.0, "fsync_interval": 5.0}
        self.disk = PowerDisk()
        self.clock = Clock()
        self.feed = Feed(self.encoding)
        self.log: list[Tx] = []
        self.end = START
        self.confirmed = START
        self.open: tuple[Tx, int] | None = None
        self.finished: dict[str, bytes] = {}
        self.frame_size, output_file.FRAME_SIZE = output_file.FRAME_SIZE, 120
        self.behind, disk.BEHIND = disk.BEHIND, 120
        self.connect()

    def teardown(self):
        if not hasattr(self, "disk"):
            return
        if self.sink is not None:
            self.attempt(self.finish)
        self.disk.cut_at = -1
        if self.sink is None:
            self.connect()
            self.finish()
        lines = self.reader.lines(self.encoding)
        wanted = {f"public.{t}": expected(self.log, t) for tx in self.log for t in tables_of(tx)}
        assert lines == wanted
        output_file.FRAME_SIZE = self.frame_size
        disk.BEHIND = self.behind

    @property
    def reader(self):
        return MemoryOrRealReader(self.disk, ROOT)

    def finish(self):
        if self.open is not None:
            tx, done = self.open
            self.sink.write(self.feed.part(tx, done, edge=True))
            self.open = None
        self.sink.close()
        self.note()

    def connect(self):
        self.sink = make_directory(ROOT, self.encoding, self.disk, self.clock, **self.settings)
        self.sink.open()
        self.sink.start(SOURCE, START, self.sink.checkpoint)
        self.redeliver()

    def redeliver(self):
        """Send, after a new connection, everything beyond the confirmed position."""
        assert self.sink.durable_lsn >= self.confirmed
        self.note()
        self.open = None
        for tx in self.log:
            if tx.end_lsn > self.confirmed and tx.commit_lsn >= self.sink.edge.lsn:
                self.sink.write(self.feed.whole(tx))

    def note(self):
        self.confirmed = max(self.confirmed, self.sink.durable_lsn)

    def attempt(self, step):
        try:
            step()
            self.note()
        except Crash:
            self.sink = None

    def new_transaction(self, tables, empty=None):
        rows = tuple((table, f"x{n}") for n, table in enumerate(tables))
        tx = Tx(Lsn(self.end + 5), Lsn(self.end + 9), rows, empty)
        self.log.append(tx)
        self.end = tx.end_lsn
        return tx

    @precondition(lambda self: self.sink and self.open is None)
    @rule(tables=TABLES)
    def transaction(self, tables):
        tx = self.new_transaction(tables)
        self.attempt(lambda: self.sink.write(self.feed.whole(tx)))

    @precondition(lambda self: self.sink and self.open is None)
    @rule(table=st.sampled_from("abcde"))
    def empty_table(self, table):
        tx = self.new_transaction("", table)
        self.attempt(lambda: self.sink.write(self.feed.whole(tx)))

    @precondition(lambda self: self.sink and self.open is None)
    @rule(tables=TABLES.filter(len))
    def begin_transaction(self, tables):
        self.open = (self.new_transaction(tables), 0)

    @precondition(lambda self: self.sink and self.open is not None)
    @rule(count=st.integers(0, 5))
    def go_on_with_transaction(self, count):
        tx, done = self.open
        stop = min(done + count, len(tx.rows))
        self.open = (tx, stop)
        self.attempt(lambda: self.sink.write(self.feed.part(tx, done, stop)))

    @precondition(lambda self: self.sink and self.open is not None)
    @rule()
    def commit(self):
        tx, done = self.open
        self.open = None
        self.attempt(lambda: self.sink.write(self.feed.part(tx, done, edge=True)))

    @precondition(lambda self: self.sink)
    @rule()
    def flush(self):
        self.attempt(self.sink.flush)

    @precondition(lambda self: self.sink)
    @rule(seconds=st.sampled_from([1, 6, 61]))
    def time_passes(self, seconds):
        self.clock.now += seconds
        self.attempt(self.sink.tick)

    @precondition(lambda self: self.sink)
    @rule()
    def hup(self):
        self.sink.reopen()

    @precondition(lambda self: self.sink and self.open is None)
    @rule(distance=st.integers(1, 3))
    def keepalive(self, distance):
        self.end = Lsn(self.end + distance)
        self.attempt(lambda: self.sink.advance(self.end))

    @precondition(lambda self: self.sink)
    @rule()
    def lost_connection(self):
        def again():
            self.sink.rollback()
            self.sink.flush()
            self.sink.start(SOURCE, START, self.sink.checkpoint)
            self.redeliver()

        self.attempt(again)

    @precondition(lambda self: self.sink)
    @rule(calls=st.integers(0, 60))
    def power_will_fail(self, calls):
        self.disk.cut_at = self.disk.calls + calls

    @precondition(lambda self: self.sink is None)
    @rule(seed=st.integers(0, 2**32), power=st.booleans())
    def recover(self, seed, power):
        if power:
            self.disk.power_cut(random.Random(seed))
        self.disk.cut_at = -1
        self.connect()

    @rule()
    def finished_files_never_change(self):
        if self.sink is None or self.disk.cut_at >= 0:
            return
        now = self.reader.finished()
        assert {path: now[path] for path in self.finished} == self.finished
        self.finished = now

    @invariant()
    def never_more_confirmed_than_written(self):
        if getattr(self, "sink", None):
            assert self.confirmed <= self.sink.edge.lsn


SinkMachine.TestCase.settings = settings(max_examples=150 * scale.factor, stateful_step_count=40)
TestSinkMachine = SinkMachine.TestCase
