"""Spark's output: the job's result, what to report while it runs, and the cause if there is no result.

Spark writes the job's standard error to its own standard output, together with the job's result
(PythonRunner), so both streams are read in the same way.
"""

import json
import os
import re
import selectors
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import IO, Any, TypeAlias

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.spark.packages import jars_of
from pgcdc_cli.spark.pgcdc_merge.options import MERGE, PROGRESS

OnTable: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Called with each table's result: `table`, `mode`, `done` of `of`, counts and `problem`."""

OnWait: TypeAlias = Callable[[str], None]
"""Called with one line that says what Spark is waiting for."""

OnResult: TypeAlias = Callable[[str], None]
"""Called with each result, a JSON object on one line."""

_RESULT = '{"format_version"'
_WAITING = {
    re.compile("Initial job has not accepted any resources"): (
        "Spark is waiting for executors: check that the cluster has workers with free cores and memory, or"
        " ask for"
        " less (-- --conf spark.executor.memory=... --conf spark.executor.cores=...)"
    ),
    re.compile(r"Failed to connect to master (\S+)"): "Spark can't reach the master {}, and is trying again",
    re.compile(r"Retrying connect to server: (\S+)\. Already"): "Spark can't reach {}, and is trying again",
}
_UNRESOLVED = re.compile(r"unresolved dependency: ([^\s:]+)")
_UNREACHED = re.compile(r"Server access error at url (\S+?//[^/]+)\S* \((.*)\)")
_KILLED = re.compile(r"Application has been killed\. Reason: (.*)")
_NO_MASTER = "All masters are unresponsive"
_SAYS_WHY = re.compile(r"Exception|Error|[Cc]annot|[Ff]ailed")
_FRAME = re.compile(r"\s*at \S+\(.*\)$")


@dataclass(frozen=True)
class TablePlan:
    """What a dry run would merge into a table: segments, files, rows (changes) and bytes."""

    path: str
    first_segment: int
    last_segment: int
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class TableMerge:
    """One table after the run: merged up to `segment` and `lsn`; `version` is the lake table's.

    `mode` tells the table from its changelog. The counts are this run's: rows inserted, updated and deleted,
    and values that became NULL: `unfit` ones that the column's type can't hold, `missing` ones that were
    neither sent nor found. `problem` is why the table was not merged. `plan` is a dry run's.
    """

    table: str
    mode: str
    path: str | None
    segment: int
    lsn: Lsn
    version: int | None
    inserted: int
    updated: int
    deleted: int
    unfit: int
    missing: int
    problem: str | None
    hint: str | None
    plan: TablePlan | None = None

    @property
    def name(self) -> str:
        """The table's name, as shown."""
        return self.table if self.mode == MERGE else f"{self.table} (changelog)"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TableMerge":
        plan = data.get("plan")
        return cls(
            **{**data, "lsn": Lsn.parse(data["lsn"]), "plan": None if plan is None else TablePlan(**plan)}
        )


@dataclass(frozen=True)
class MergeSummary:
    """The result of a run.

    `segment` and `lsn` are the last merged ones; every table without a problem is merged up to them, unless
    the run left it out. `warnings` are lines to show, `unmatched` are patterns of --table that match no
    table. `failure` is set if some tables could not be merged: show the rest, then raise it. `data` is the
    job's JSON object, for --json.
    """

    segment: int
    lsn: Lsn
    tables: Sequence[TableMerge]
    warnings: Sequence[str]
    seconds: float
    failure: PgcdcError | None
    unmatched: Sequence[str]
    data: Mapping[str, Any] = field(repr=False)


def read_result(line: str) -> MergeSummary | None:
    """Parse the job's result; None if there is none. Raises the job's error if nothing was merged."""
    if not line:
        return None
    data = json.loads(line)
    failure = _failure(data["error"])
    if failure is not None and data["segment"] is None:
        raise failure
    return MergeSummary(
        data["segment"],
        Lsn.parse(data["lsn"]),
        tuple(map(TableMerge.from_json, data["tables"])),
        tuple(data["warnings"]),
        data["seconds"],
        failure,
        tuple(data["unmatched"]),
        data,
    )


def _failure(error: Mapping[str, Any] | None) -> PgcdcError | None:
    if error is None:
        return None
    kind = ErrorKind.LOCKED if error["locked"] else ErrorKind.SPARK
    return PgcdcError(kind, error["message"], hint=error["hint"])


def lines_of(*pipes: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of several pipes as they arrive, until all pipes are closed."""
    rest = dict.fromkeys(pipes, b"")
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe, selectors.EVENT_READ, pipe)
        while rest:
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                *lines, tail = (rest[key.data] + (data or b"\n")).split(b"\n")
                yield from (line + b"\n" for line in lines if data or line)
                rest[key.data] = tail
                if not data:
                    selector.unregister(key.data)
                    del rest[key.data]


class Listener:
    """Reads Spark's output line by line; `verbose` copies it to standard error.

    `result` is the job's last result, a JSON object on one line; empty if there is none.
    """

    def __init__(
        self, on_table: OnTable | None, on_wait: OnWait, *, verbose: bool, on_result: OnResult | None = None
    ) -> None:
        self.result = ""
        self._on_result = on_result
        self._on_table = on_table
        self._on_wait = on_wait
        self._verbose = verbose
        self._said: set[str] = set()

    def copy(self, lines: Iterable[bytes], log: Path) -> None:
        """Write Spark's own output to the log; report, once each, what Spark is waiting for.

        Raises OUTPUT if the log can't be written: its folder may be full.
        """
        with log.open("wb", buffering=0) as copy:
            for line in lines:
                text = line.decode(errors="replace")
                if text.startswith(_RESULT):
                    self.result = text
                    if self._on_result is not None:
                        self._on_result(text)
                elif text.startswith(PROGRESS):
                    if self._on_table is not None:
                        self._on_table(json.loads(text.removeprefix(PROGRESS)))
                else:
                    _append(copy, log, line)
                    if self._verbose:
                        sys.stderr.write(text)
                    self._look_for_waiting(text)

    def _look_for_waiting(self, text: str) -> None:
        for sign, sentence in _WAITING.items():
            found = sign.search(text)
            if found is not None and sentence not in self._said:
                self._said.add(sentence)
                self._on_wait(sentence.format(*found.groups()))


def failure(status: int, log: Path, kept: Path | None) -> PgcdcError:
    """Explain why there is no result, by the log's line that names the cause; the log is kept."""
    where = _where(log, kept)
    lines = log.read_text(errors="replace").splitlines()
    missing = next(_found(_UNRESOLVED, lines), None)
    if missing is not None:
        return _missing_package(missing[1], lines, where)
    killed = next(_found(_KILLED, lines), None)
    if killed is not None:
        return _killed(killed[1], where)
    causes = [line.strip() for line in lines if _SAYS_WHY.search(line) and not _FRAME.match(line)]
    cause = (causes or [line.strip() for line in lines if line.strip()] or ["it printed nothing"])[-1]
    return PgcdcError(
        ErrorKind.SPARK,
        f"could not merge: spark-submit ended with status {status}: {cause[:300]}",
        hint=where,
    )


def _found(sign: re.Pattern[str], lines: Sequence[str]) -> Iterator[re.Match[str]]:
    return filter(None, map(sign.search, lines))


def _missing_package(ivy_name: str, lines: Sequence[str], where: str) -> PgcdcError:
    """Name the package as Maven does, and the repository if it could not be reached."""
    package = ivy_name.replace("#", ":").replace(";", ":")
    unreached = next(_found(_UNREACHED, lines), None)
    why = "Spark found it in no repository"
    if unreached is not None:
        why = f"Spark could not reach {unreached[1]} ({unreached[2]})"
    jars = jars_of(package) or "FILE,..."
    return PgcdcError(
        ErrorKind.SPARK,
        f"could not fetch the package {package}: {why}",
        hint=f"give the jars yourself: -- --jars {jars}; {where}",
    )


def _killed(why: str, where: str) -> PgcdcError:
    """Report the reason that the cluster gave for ending the application."""
    if why.startswith(_NO_MASTER):
        return PgcdcError(
            ErrorKind.SPARK,
            "could not merge: the Spark master doesn't answer",
            hint="check that --master names one that is running, and that its Spark has the same version;"
            f" {where}",
        )
    return PgcdcError(
        ErrorKind.SPARK,
        f"could not merge: the cluster ended it: {why}",
        hint=f"the executors' own logs say why, on the workers; {where}",
    )


def _append(copy: FileIO, log: Path, line: bytes) -> None:
    try:
        copy.write(line)
    except OSError as error:
        message = f'could not write "{log}": {error.strerror}'
        hint = "make room there, or set TMPDIR to another folder; nothing is lost: run again"
        raise PgcdcError(ErrorKind.OUTPUT, message, hint=hint) from error


def _where(log: Path, kept: Path | None) -> str:
    """Say where Spark's output is kept: in a temporary copy, if not elsewhere and if there is room."""
    if kept is None:
        try:
            descriptor, copy = tempfile.mkstemp(prefix="pgcdc-spark-", suffix=".log")
            os.close(descriptor)
            kept = Path(copy)
            shutil.copyfile(log, kept)
        except OSError as error:
            return f"Spark's whole output could not be kept: {error.strerror}"
    return f"Spark's whole output is in {kept}"
