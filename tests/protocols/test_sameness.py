"""However transactions arrive, the output equals that of protocol 1 in text format, byte for byte."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
import scale
from hypothesis import HealthCheck, given, settings
from logs import IMMEDIATE, PROTOCOL_1, Log, Running, log_of
from made_up_scripts import Player, scripts
from segments import contents
from servers import VERSIONS
from workloads import PLAYS, ROW_COUNT, TABLES, Stage, message, rows

PUBLICATIONS = ("pub", "special")
PARALLEL = ("--streaming", "parallel")
MODES = {
    "plain": PROTOCOL_1,
    "on": ("--streaming", "on"),
    "protocol 2": ("--streaming", "on", "--proto-version", "2"),
    "parallel": PARALLEL,
    "binary": ("--streaming", "off", "--binary"),
    "binary parallel": (*PARALLEL, "--binary"),
}

DEBEZIUM = {
    "topic.prefix": "srv",
    "snapshot.mode": "never",
    "provide.transaction.metadata": "true",
    "skipped.operations": "none",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
}
HANDLED = re.compile(rb'"op":"(.)","ts_ms":\d+')
"""Debezium's time of processing, the only thing that differs between any two runs."""

FORMATS: dict[str, tuple[str, ...]] = {
    "lines": ("--transactions",),
    "directory": ("-D",),
    "one stream": ("-D", "--layout", "stream", "--transactions"),
    "arrow": ("-D", "--format", "arrow"),
    "debezium": (
        *("--format", "debezium"),
        *(word for name, value in DEBEZIUM.items() for word in ("-c", f"{name}={value}")),
    ),
}

AFTERWARDS = [
    ("lines", "protocol 2"),
    ("lines", "binary"),
    ("lines", "binary parallel"),
    ("directory", "parallel"),
    ("arrow", "on"),
    ("arrow", "binary parallel"),
    ("debezium", "on"),
    ("debezium", "binary parallel"),
]
MEANWHILE = ("on", "parallel", "binary parallel")

Result = list[bytes] | dict[str, list[object]]


@dataclass
class Performed:
    """All plays in the log of one database, and how the readers that ran meanwhile ended."""

    log: Log
    slot: str
    end: str
    folder: Path
    meanwhile: dict[str, tuple[int, bytes]]
    streamed: dict[str, int]
    """The number of transactions that the server streamed, by reader."""
    _expected: dict[str, Result] = field(default_factory=dict)

    def read(self, form: str, mode: str) -> Result:
        folder = self.folder / f"{form}-{mode}"
        arguments = _into(folder, FORMATS[form])
        written = self.lines(*MODES[mode], *arguments, "--messages")
        return (
            contents(folder) if "-D" in arguments else [HANDLED.sub(rb'"op":"\1"', line) for line in written]
        )

    def lines(self, *arguments: str) -> list[bytes]:
        """Read the log from its beginning, with a slot that is dropped afterwards."""
        slot = self.log.copy_slot(self.slot)
        written = self.log.read(slot, *arguments, "--endpos", self.end)
        self.log.drop_slot(slot)
        return written.splitlines()

    def plain(self, form: str) -> Result:
        if form not in self._expected:
            self._expected[form] = self.read(form, "plain")
        return self._expected[form]


def _into(folder: Path, arguments: tuple[str, ...]) -> list[str]:
    return [*arguments[:1], str(folder), *arguments[1:]] if arguments[0] == "-D" else [*arguments]


def same(found: Result, expected: Result) -> None:
    """Compare, and report only the first difference."""
    if isinstance(found, dict) and isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for table, lines in found.items():
            same(lines, expected[table])
        return
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=False)):
        assert ours == theirs, f"line {number}"
    assert len(found) == len(expected)


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda version: f"pg{version}")
def performed(request, small_servers, tmp_path_factory) -> Iterator[Performed]:
    folder = tmp_path_factory.mktemp("performed")
    with log_of(small_servers[request.param], TABLES, PUBLICATIONS) as log:
        slot = log.create_slot()
        slots = {mode: log.copy_slot(slot) for mode in MEANWHILE}
        with ExitStack() as running:
            readers = {}
            for mode, copy in slots.items():
                arguments = (*MODES[mode], *_into(folder / mode, FORMATS["one stream"]), "--messages")
                readers[mode] = running.enter_context(Running(log, copy, *arguments))
                readers[mode].started()
            with Stage(log.uri) as stage:
                for play in PLAYS:
                    play(stage)
            end = log.end()
            ended = {mode: reader.ends(end) for mode, reader in readers.items()}
        streamed = {mode: log.streamed(copy) for mode, copy in slots.items()}
        yield Performed(log, slot, end, folder, ended, streamed)


@pytest.mark.parametrize(("form", "mode"), AFTERWARDS)
def test_read_afterwards(performed, form, mode):
    same(performed.read(form, mode), performed.plain(form))


def test_without_an_option(performed):
    """By default the server streams as it can, and the output is the same as with protocol 1."""
    same(performed.lines("--transactions"), performed.lines("--transactions", *PROTOCOL_1))


@pytest.mark.parametrize("mode", MEANWHILE)
def test_read_meanwhile(performed, mode):
    """Only then do parts arrive that are rolled back later; afterwards the server would skip them."""
    assert performed.meanwhile[mode] == (0, b"")
    assert performed.streamed[mode] > len(PLAYS)
    same(contents(performed.folder / mode), performed.plain("one stream"))


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda version: f"pg{version}")
def scripted(request, small_servers) -> Iterator[Log]:
    with log_of(small_servers[request.param], TABLES, PUBLICATIONS) as log:
        yield log


@settings(
    max_examples=4 * scale.factor,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(script=scripts)
def test_any_script_with_every_change_streamed(scripted, script):
    slot = scripted.create_slot()
    copy = scripted.copy_slot(slot)
    with Stage(scripted.uri) as stage:
        Player(stage).play(script)
    options = ("--transactions", "--messages", "--endpos", scripted.end())
    plain = scripted.read(slot, *PROTOCOL_1, *options)
    binary = ("--binary",) if len(script) % 2 else ()
    streamed = scripted.read(copy, *PARALLEL, *binary, *options, environment=IMMEDIATE)
    scripted.drop_slot(slot)
    scripted.drop_slot(copy)
    same(streamed.splitlines(), plain.splitlines())


def test_messages_of_what_was_rolled_back(server, tmp_path):
    """A streamed message may belong to any subtransaction: after a rollback all is read again, whole."""
    options = ("-f", str(tmp_path / "out"), "--messages", "--no-loop")
    with log_of(server, TABLES) as log:
        slot = log.create_slot()
        with (
            Running(log, slot, *options) as reader,
            Stage(log.uri) as do,
        ):
            reader.started()
            do(0, "BEGIN", rows("accounts", 1), "SAVEPOINT a", message("undone", transactional=True))
            do(0, rows("accounts", 1000))
            do.catch_up()
            assert log.streamed(slot)
            do(0, message("undone, too", transactional=True), "ROLLBACK TO a")
            do(0, message("done", transactional=True), "COMMIT")
            assert reader.ends(log.end()) == (0, b"")
        lines = (tmp_path / "out").read_bytes().splitlines()
        assert len(lines) == ROW_COUNT + 1
        assert b'"content":"done"' in lines[-1]


def test_what_is_written_is_confirmed_before_the_transaction_is_read_again(server):
    """Standard output has no checkpoint: if the slot can't be had again, the next run must not repeat it."""
    with log_of(server, TABLES) as log:
        slot = log.create_slot()
        line = log.command(slot, "-f", "-", "--messages", "--no-loop")
        with (
            subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader,
            Stage(log.uri) as do,
            psycopg.connect(server.uri(), autocommit=True) as admin,
        ):
            do(0, rows("shapes", 1, 1))
            assert b'"op":"I"' in reader.stdout.readline()
            do(0, "BEGIN", message("done", transactional=True), "SAVEPOINT a", rows("accounts", 1, 1000))
            do.catch_up()
            admin.execute(f"ALTER DATABASE {log.name} ALLOW_CONNECTIONS false")
            do(0, "ROLLBACK TO a", "COMMIT")
            assert (reader.wait(60), reader.stdout.read()) == (3, b"")
            admin.execute(f"ALTER DATABASE {log.name} ALLOW_CONNECTIONS true")
        [line] = log.read(slot, "--messages", "--endpos", log.end()).splitlines()
        assert b'"content":"done"' in line
