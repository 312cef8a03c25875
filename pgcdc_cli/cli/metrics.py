"""The metrics of a run for Prometheus: served on a port, or written to a file for node_exporter."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pgcdc_cli.cli.command_tree import usage_error
from pgcdc_cli.cli.printing import warn
from pgcdc_cli.errors import ErrorKind, PgcdcError, exit_status

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from pgcdc_cli.catalog import Slot
    from pgcdc_cli.stream.settings import RunTotals

_LOOPBACK = "127.0.0.1"
_INTERVAL = 5.0
"""Seconds between two writes of the file."""
_FILE_MODE = 0o644
_HEALTH = "/healthz"
_SILENCE = 15 * 60.0
"""Seconds without a report until a run counts as hanging: it waits ten minutes for a lost server."""


_SLOT_INTERVAL = 30.0
"""Seconds between two questions for the slot."""
_PATIENCE = 2.0
"""Seconds that the end of a run waits for the last answer."""


class Address(NamedTuple):
    """Where to listen for Prometheus."""

    host: str
    port: int


def address(text: str) -> Address:
    """Parse `HOST:PORT`, or `PORT`, which is on the loopback address."""
    host, _, port = text.rpartition(":")
    if not (port.isdecimal() and port.isascii() and 0 < int(port) < 1 << 16):
        raise usage_error(f'"{text}" is neither a port nor HOST:PORT')
    return Address(host.strip("[]") or _LOOPBACK, int(port))


class SlotWatch:
    """Asks for the slot now and then, in a thread and a connection of its own: the stream waits for neither.

    `found` is the last answer, None if there was none: no slot, or no connection.
    """

    def __init__(self, conninfo: str, slot: str) -> None:
        self._conninfo = conninfo
        self._slot = slot
        self._ends = threading.Event()
        self.found: Slot | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch, and ask once more at the end."""
        from pgcdc_cli.catalog import Catalog  # noqa: F401 - imported before the thread needs it

        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ends.set()
            thread.join(_PATIENCE)

    def _run(self) -> None:
        ends = False
        while not ends:
            self.found = self._ask()
            ends = self._ends.wait(_SLOT_INTERVAL)
        self.found = self._ask()

    def _ask(self) -> "Slot | None":
        from pgcdc_cli.catalog import Catalog

        try:
            with Catalog(self._conninfo) as catalog:
                return catalog.slot(self._slot)
        except PgcdcError:
            return None


class RunMetrics:
    """The latest totals of a run as Prometheus metrics, and its slot; docs/metrics.md lists them."""

    def __init__(self, slot: str, watch: SlotWatch) -> None:
        self._slot = slot
        self._watch = watch
        self._began = time.time()
        self._totals: RunTotals | None = None
        self._seen, self._reported = self._began, 0.0
        self._rows = self._transactions = 0
        self._exit_status: int | None = None

    def take(self, totals: "RunTotals") -> None:
        """Take the latest totals; what a lost connection took back, to be sent again, counts once."""
        self._seen, self._reported = time.time(), time.monotonic()
        self._totals = totals
        self._rows = max(self._rows, totals.rows)
        self._transactions = max(self._transactions, totals.transactions)

    @property
    def healthy(self) -> bool:
        """Whether the run goes on; before its first report it may wait for a new slot, however long."""
        # The clock of `_seen` may be set meanwhile: a run would seem to hang, or one that hangs to go on.
        return self._totals is None or time.monotonic() - self._reported < _SILENCE

    def end(self, exit_status: int) -> None:
        """Record the run's exit status."""
        self._exit_status = exit_status

    def collect(self) -> Iterator["Metric"]:
        """Yield all metrics: the interface of `prometheus_client.registry.Collector`."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        from pgcdc_cli.stream.settings import RunTotals

        totals = self._totals or RunTotals()
        counters = (
            ("pgcdc_rows", "Changes written by this run.", self._rows),
            ("pgcdc_transactions", "Transactions written by this run.", self._transactions),
            ("pgcdc_reconnects", "Connections that were lost or left, and made again.", totals.reconnects),
        )
        gauges = (
            (
                "pgcdc_written_lsn",
                "Position up to which everything is written, in bytes.",
                totals.written_lsn,
            ),
            (
                "pgcdc_durable_lsn",
                "Position up to which everything is durable, in bytes.",
                totals.durable_lsn,
            ),
            ("pgcdc_server_lsn", "End of the server's WAL as it last reported it, in bytes.", totals.wal_end),
            (
                "pgcdc_lag_bytes",
                "Bytes of WAL that are not durable here yet.",
                max(totals.wal_end - totals.durable_lsn, 0),
            ),
            ("pgcdc_start_timestamp_seconds", "When the run began.", self._began),
            ("pgcdc_seen_timestamp_seconds", "When the run last reported its position.", self._seen),
        )
        for name, text, value in counters:
            family = CounterMetricFamily(name, text, labels=["slot"])
            family.add_metric([self._slot], value)
            yield family
        ended = () if self._exit_status is None else (("pgcdc_exit_status", _ENDED, self._exit_status),)
        for name, text, value in (*gauges, *_slot_gauges(self._watch.found), *ended):
            gauge = GaugeMetricFamily(name, text, labels=["slot"])
            gauge.add_metric([self._slot], value)
            yield gauge


def _slot_gauges(slot: "Slot | None") -> Iterator[tuple[str, str, int]]:
    if slot is not None and slot.retained_bytes is not None:
        yield "pgcdc_slot_retained_bytes", "Bytes of WAL that the slot retains.", slot.retained_bytes
    if slot is not None and slot.safe_wal_bytes is not None:
        text = "Bytes of WAL that may still be written before the slot is in danger."
        yield "pgcdc_slot_safe_wal_bytes", text, slot.safe_wal_bytes


_HANGS = ("503 Service Unavailable", b"no progress for 15 minutes\n")
_ENDED = "How the run ended; present once it has."


class MetricsOutput:
    """The output of a run's metrics; without port and file there is none."""

    def __init__(self, conninfo: str, slot: str, port: Address | None, file: Path | None) -> None:
        self._watch = SlotWatch(conninfo, slot)
        self._metrics = RunMetrics(slot, self._watch)
        self._port = port
        self._file = file
        self._wanted = port is not None or file is not None
        self._written_at = 0.0

    def __call__(self, totals: "RunTotals") -> None:
        """Take the latest totals."""
        if not self._wanted:
            return
        self._metrics.take(totals)
        if self._file is not None and time.monotonic() - self._written_at >= _INTERVAL:
            self._write_again(self._file)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Serve metrics while the run goes on, and write its exit status at the end.

        Raises USAGE if prometheus_client isn't installed, OUTPUT if the port or the file can't be used.
        """
        if not self._wanted:
            yield
            return
        with ExitStack() as stack:
            _require_client()
            if self._port is not None:
                self._serve(self._port, stack)
            if self._file is not None:
                self._write(self._file)
            status = 0
            try:
                with self._watch.running():
                    yield
            except BaseException as error:
                status = exit_status(error)
                raise
            finally:
                self._metrics.end(status)
                if self._file is not None:
                    self._write_again(self._file)

    def _serve(self, where: Address, stack: ExitStack) -> None:
        from prometheus_client import make_wsgi_app, start_http_server

        registry = self._registry()
        try:
            server, thread = start_http_server(where.port, where.host, registry=registry)
        except OSError as error:
            raise PgcdcError(
                ErrorKind.OUTPUT,
                f'could not listen on "{where.host}:{where.port}": {error.strerror or error}',
                hint="give --metrics-port another port",
            ) from error
        server.set_app(self._with_health(make_wsgi_app(registry)))
        stack.callback(thread.join)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)

    def _with_health(self, metrics: "WSGIApplication") -> "WSGIApplication":
        """Answer also whether the run is healthy, as for the liveness probe of Kubernetes."""

        def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> "Iterable[bytes]":
            if environ["PATH_INFO"] != _HEALTH:
                return metrics(environ, start_response)
            status, text = ("200 OK", b"ok\n") if self._metrics.healthy else _HANGS
            start_response(status, [("Content-Type", "text/plain")])
            return [text]

        return answer

    def _write_again(self, file: Path) -> None:
        """Write the file, and only warn if that fails: a stream doesn't end because of its metrics."""
        try:
            self._write(file)
        except PgcdcError as error:
            self._written_at = time.monotonic()
            warn(error.message)

    def _write(self, file: Path) -> None:
        from prometheus_client import generate_latest

        from pgcdc_cli.directory.disk import hint_for

        new = Path(f"{file}.{os.getpid()}")
        try:
            # The file is replaced by a rename, which would remove a device, even root's /dev/null.
            if file.exists() and not file.is_file():
                raise _cannot_write(file, "it is not a regular file")
            new.write_bytes(generate_latest(self._registry()))
            # The collector runs as another user, and the run's umask is for the rows of tables.
            new.chmod(_FILE_MODE)
            new.replace(file)
        except OSError as error:
            with suppress(OSError):
                new.unlink()
            raise _cannot_write(file, error.strerror or str(error), hint_for(error)) from error
        self._written_at = time.monotonic()

    def _registry(self) -> "CollectorRegistry":
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(self._metrics)
        return registry


_REPLACED = "--metrics-file takes a file that can be replaced, in a folder that exists"


def _cannot_write(file: Path, reason: str, hint: str | None = None) -> PgcdcError:
    return PgcdcError(ErrorKind.OUTPUT, f'could not write "{file}": {reason}', hint=hint or _REPLACED)


def _require_client() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise PgcdcError(
            ErrorKind.USAGE,
            "could not export metrics: prometheus_client isn't installed",
            hint="pip install 'pgcdc-cli[metrics]'",
        ) from error
