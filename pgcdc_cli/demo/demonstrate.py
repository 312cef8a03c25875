"""Run the demo: a server, a shop under load, files, Spark tables, and a proof that they are equal."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import psycopg

from pgcdc_cli.demo import comparison, shop
from pgcdc_cli.demo.children import Child, Children, uninterruptible
from pgcdc_cli.demo.comparison import compare
from pgcdc_cli.demo.embedded_server import EmbeddedServer
from pgcdc_cli.demo.load import LoadKind, Workload
from pgcdc_cli.demo.report import DemoProgress, DemoResult, DemoSettings, Reporter, TableResult
from pgcdc_cli.directory.file_names import MANIFEST
from pgcdc_cli.errors import ErrorKind, PgcdcError

SLOT = "shop"
PUBLICATION = "shop"
WITNESS = "witness"
"""A slot that nobody reads: at the end, the server counts with it the changes after the snapshot."""

_LOOK = 0.25
"""Seconds between two progress reports."""

_STANDING = """
SELECT (SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::int8
        FROM pg_replication_slots WHERE slot_name = %s),
    (SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::int8 FROM pg_stat_user_tables)
"""

# The first byte is the type of pgoutput's message: in insert, update and delete the relation's OID follows;
# in truncate a count and an option byte precede it ("Logical Replication Message Formats"). The shop
# truncates one table at a time.
_COUNT = """
SELECT c.oid::regclass::text, count(*) FROM (
    SELECT ('x' || encode(substr(data, CASE get_byte(data, 0) WHEN ascii('T') THEN 7 ELSE 2 END, 4), 'hex'))
        ::bit(32)::int8::oid AS relation
    FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)
    WHERE chr(get_byte(data, 0)) IN ('I', 'U', 'D', 'T')
) AS change JOIN pg_class c ON c.oid = change.relation GROUP BY 1
"""


@dataclass(frozen=True)
class DemoRun:
    """A running demo."""

    settings: DemoSettings
    reporter: Reporter
    children: Children
    connection: psycopg.Connection[Any]
    uri: str
    directory: Path

    @property
    def files(self) -> Path:
        return self.directory / "files"

    @property
    def warehouse(self) -> Path:
        return self.directory / "warehouse"

    @property
    def merge_command(self) -> list[str]:
        return ["spark-submit", "--input", str(self.files), "--warehouse", str(self.warehouse)]

    def finish_merge(self, merge: Child) -> None:
        """Wait for a merge's end, and show its last line. Raises the merge's error if it failed."""
        began = time.monotonic()
        while merge.running:
            self.children.drain()
            self.reporter.waiting(time.monotonic() - began)
            time.sleep(_LOOK)
        self.children.wait(merge)
        for line in merge.said:
            if line.startswith("merged "):
                self.reporter.note(line)

    def segments(self) -> list[dict[str, Any]]:
        """Read the finished segments from the manifest, to which a stream may be writing meanwhile."""
        try:
            text = (self.files / MANIFEST).read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def run_demo(settings: DemoSettings, reporter: Reporter) -> DemoResult:
    """Run the demo; its directory stays, its server and all other processes are gone at the end.

    Raises PgcdcError (USAGE) if the directory exists and isn't empty, the error of a failing pgcdc command,
    and KeyboardInterrupt. Tables that differ are in the result, and no error.
    """
    began = time.monotonic()
    directory = new_directory(settings.keep)
    children = Children(reporter.command, reporter.output)
    reporter.step(1, 6, "Start PostgreSQL 18 and build the shop")
    with (
        running_server() as server,
        children,
        psycopg.connect(server.uri(), autocommit=True) as connection,
    ):
        demo = DemoRun(settings, reporter, children, connection, server.uri(), directory)
        shop.create(demo.uri)
        return _steps(demo, began)


def _steps(demo: DemoRun, began: float) -> DemoResult:
    step = demo.reporter.step
    step(2, 6, "Fill its tables and publish them")
    _publish(demo)
    step(3, 6, "Open the shop and stream into files what it has, then what changes")
    streamed = StreamedLoad(demo)
    load = streamed.run()
    step(4, 6, "Close the shop and stream to the end of the log")
    catch_up = streamed.catch_up()
    step(5, 6, "Merge the rest into the Delta tables")
    streamed.finish_merge()
    first = comparison.read_moment(demo.warehouse)
    demo.finish_merge(demo.children.start(*demo.merge_command))
    second = comparison.read_moment(demo.warehouse)
    step(6, 6, "Compare every table with its source, and read the lake as each merge left it")
    tables = _compare(demo)
    return DemoResult(
        directory=demo.directory,
        tables=tables,
        views=[comparison.read_lake(demo.warehouse, moment) for moment in (first, second)],
        orders=comparison.changed_orders(demo.warehouse, first, second),
        transactions=load.counts[LoadKind.TRANSACTION],
        kinds=dict(load.counts),
        segments=len(demo.segments()),
        rate=sum(table.events for table in tables) / load.seconds,
        lag=load.lag,
        catch_up=catch_up,
        elapsed=time.monotonic() - began,
        suggestions=_suggestions(demo),
    )


def _publish(demo: DemoRun) -> None:
    """Fill the shop and publish its tables; no slot has the first rows, so they come with the snapshot."""
    shop.fill(demo.uri, demo.settings.seed)
    demo.children.run("publication", "create", PUBLICATION, "-d", demo.uri, "--schema", shop.SCHEMA)
    create_witness(demo.connection, WITNESS)


def create_witness(connection: psycopg.Connection[Any], slot: str) -> None:
    """Create a slot at the current end of the WAL."""
    connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))


@dataclass(frozen=True)
class LoadResult:
    """What the load did, its duration in seconds, and the largest lag in bytes."""

    counts: Counter[str]
    seconds: float
    lag: int


class StreamedLoad:
    """Load, stream and first merge: from the load's first transaction to the last change in the files."""

    def __init__(self, demo: DemoRun) -> None:
        self._demo = demo
        self._children = demo.children
        self._lag = 0
        self._merge: Child | None = None

    def run(self) -> LoadResult:
        """Run the load for the time in the settings, and until the first merge has started."""
        seconds = self._demo.settings.seconds
        plan = deque([(seconds / 3, self._crash), (seconds / 2, self._merge_early)])
        began = time.monotonic()
        with self._load() as load:
            self._stream = self._start_stream()
            while (elapsed := time.monotonic() - began) < seconds or plan:
                load.check()
                self._look(elapsed, load.counts)
                if plan and elapsed >= plan[0][0] and plan[0][1]():
                    plan.popleft()
                time.sleep(_LOOK)
            counts = load.stop()
        return LoadResult(counts, time.monotonic() - began, self._lag)

    def catch_up(self) -> float:
        """Stop the stream as a service manager does, then catch up as cron would; return the seconds."""
        began = time.monotonic()
        self._await_start()
        self._demo.reporter.note("asking the stream to stop (SIGTERM)")
        self._stream.signal(signal.SIGTERM)
        self._children.wait(self._stream)
        self._children.run(*self._stream_command(), "--endpos", "now")
        return time.monotonic() - began

    def _await_start(self) -> None:
        """Wait until the stream uses the slot, since a program that is starting ends at any signal."""
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
        while self._stream.running and self._demo.connection.execute(active, (SLOT,)).fetchone() != (True,):
            self._children.drain()
            time.sleep(_LOOK)

    def finish_merge(self) -> None:
        """Wait for the merge that was started during the load."""
        assert self._merge is not None
        self._demo.finish_merge(self._merge)

    def _load(self) -> Workload:
        settings = self._demo.settings
        return Workload(self._demo.uri, seed=settings.seed, rate=settings.rate)

    def _stream_command(self) -> list[str]:
        source = ["-d", self._demo.uri, "-S", SLOT, "--publication", PUBLICATION]
        target = ["-D", str(self._demo.files), "--format", self._demo.settings.format]
        # Small and frequent, so that some seconds of load make several segments, and the lag shown is
        # current.
        rhythm = ["--rotate-size", "4MB", "--rotate-interval", "2s", "-s", "1", "-F", "1"]
        return ["stream", *source, "--snapshot", "initial", *target, *rhythm]

    def _start_stream(self) -> Child:
        return self._children.start(*self._stream_command())

    def _crash(self) -> bool:
        """Kill the stream; return False if the snapshot isn't complete yet: it must have one position."""
        if not self._demo.segments():
            return False
        self._demo.reporter.note("killing the stream (SIGKILL) and starting it again")
        self._stream.signal(signal.SIGKILL)
        self._stream.wait()
        self._stream = self._start_stream()
        return True

    def _merge_early(self) -> bool:
        """Merge the finished segments; return False if some table has no rows in them yet."""
        segments = self._demo.segments()
        if len({file["table"] for segment in segments for file in segment["files"]}) < len(shop.TABLES):
            return False
        self._demo.reporter.note("merging what is finished, while the shop is open and the stream continues")
        self._merge = self._children.start(*self._demo.merge_command, "--until", segments[-1]["end_lsn"])
        return True

    def _look(self, elapsed: float, counts: Counter[str]) -> None:
        self._children.drain()
        if not self._stream.running:
            self._stream.check()
            raise PgcdcError(
                ErrorKind.UNEXPECTED, f'could not continue: "{self._stream.command}" ended by itself'
            )
        row = self._demo.connection.execute(_STANDING, (SLOT,)).fetchone()
        assert row is not None
        lag, rows_changed = row
        self._lag = max(self._lag, lag or 0)
        segments = len(self._demo.segments())
        self._demo.reporter.progress(
            DemoProgress(elapsed, counts[LoadKind.TRANSACTION], rows_changed, segments, lag)
        )


def _compare(demo: DemoRun) -> list[TableResult]:
    position, read = _read_first(demo)
    changed = count_changes(demo.connection, WITNESS, PUBLICATION, since=position)
    names = [(name, f"{shop.SCHEMA}.{name}") for name in shop.TABLES]
    return [_table_result(demo, name, read.get(table, 0), changed.get(table, 0)) for name, table in names]


def _read_first(demo: DemoRun) -> tuple[str, dict[str, int]]:
    """Read the snapshot's position, at which the files begin, and its number of rows by `schema.table`."""
    shown = demo.children.start("show", str(demo.files), "--stat", "--json")
    demo.children.wait(shown)
    found = json.loads(shown.said[-1])
    rows = {item["table"]: item["changes"] for item in found["changes"] if item["op"] == "R"}
    return found["first"]["lsn"], rows


def _table_result(demo: DemoRun, name: str, read: int, changed: int) -> TableResult:
    table = f"{shop.SCHEMA}.{name}"
    files = [file for segment in demo.segments() for file in segment["files"] if file["table"] == table]
    events = sum(file["rows"] for file in files)
    found = compare(demo.connection, table, demo.warehouse / shop.SCHEMA / name)
    lost = [f"{changed} changes on the server, {events - read} in the files"] * (read + changed != events)
    return TableResult(
        table=table,
        source_rows=found.source_rows,
        merged_rows=found.copy_rows,
        read=read,
        changed=changed,
        events=events,
        files=len(files),
        bytes=sum(file["bytes"] for file in files),
        differences=[*lost, *found.differences],
    )


def count_changes(
    connection: psycopg.Connection[Any], slot: str, publication: str, *, since: str | None = None
) -> dict[str, int]:
    """Count inserted, updated and deleted rows, and truncates, by `schema.table`.

    They are counted from the slot's position, or from the LSN `since` if that is later.
    """
    if since is not None:
        connection.execute("SELECT pg_replication_slot_advance(%s, %s)", (slot, since))
    return dict(connection.execute(_COUNT, (slot, publication)).fetchall())


def _suggestions(demo: DemoRun) -> Sequence[str]:
    """Suggest commands: show changes, query a merged table, and show how far everything is merged."""
    files, warehouse = str(demo.files), str(demo.warehouse)
    path = json.dumps(str(demo.warehouse / shop.SCHEMA / "orders"))
    orders = f'QueryBuilder().register("orders", DeltaTable({path}))'
    query = json.dumps("SELECT status, count(*) AS orders, sum(total) AS total FROM orders GROUP BY status")
    look = f"{orders}.execute({query}).read_all()"
    commands = [
        [_program("pgcdc"), "show", files, "--table", "shop.orders", "--limit", "10"],
        [_program("python"), "-c", f"from deltalake import DeltaTable, QueryBuilder; print({look})"],
        [_program("pgcdc"), "status", files, "--warehouse", warehouse],
    ]
    return [shlex.join(command) for command in commands]


def _program(name: str) -> str:
    """Name a program so that it can be typed: with its directory if PATH has none, or another one."""
    ours = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    return name if found is not None and Path(found).parent == ours.parent else str(ours)


def new_directory(keep: Path | None) -> Path:
    """Make the directory that the demo leaves, by default `pgcdc-demo`, or `pgcdc-demo-2` and so on.

    Raises PgcdcError: USAGE if it isn't empty, OUTPUT if it can't be made.
    """
    if keep is None:
        numbered = (Path(f"pgcdc-demo-{number}") for number in count(2))
        keep = next(path for path in chain([Path("pgcdc-demo")], numbered) if not path.exists())
    try:
        keep.mkdir(parents=True, exist_ok=True)
        occupied = any(keep.iterdir())
    except OSError as error:
        message = f'could not create directory "{keep}": {error.strerror}'
        raise PgcdcError(ErrorKind.OUTPUT, message, hint="choose another with --keep") from error
    if occupied:
        message = f'could not use directory "{keep}": it is not empty'
        raise PgcdcError(ErrorKind.USAGE, message, hint="choose another with --keep")
    return keep


@contextmanager
def running_server() -> Iterator[EmbeddedServer]:
    """Run a server in a temporary directory. Raises PgcdcError (UNEXPECTED) if it doesn't start."""
    home = Path(tempfile.mkdtemp(prefix="pgcdc-demo-"))
    try:
        server = _start(home / "data")
        try:
            yield server
        finally:
            with uninterruptible():
                server.stop()
    finally:
        with uninterruptible():
            _remove(home)


def _remove(home: Path) -> None:
    """Remove a directory; a server that was interrupted while starting may still write to it for a moment."""
    for _ in range(20):
        shutil.rmtree(home, ignore_errors=True)
        if not home.exists():
            return
        time.sleep(0.1)


def _start(data: Path) -> EmbeddedServer:
    try:
        return EmbeddedServer(data)
    except (OSError, subprocess.SubprocessError) as error:
        message = f"could not start the embedded PostgreSQL: {' '.join(str(error).split())}"
        hint = "check that the temporary directory has room, or set TMPDIR to another"
        raise PgcdcError(ErrorKind.UNEXPECTED, message, hint=hint) from error
