"""What a merge says of itself: the job's last line, read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn


@dataclass(frozen=True)
class Plan:
    """What a run would merge into a table: segments, files, rows (changes) and bytes."""

    path: str
    first_segment: int
    last_segment: int
    files: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class TableMerge:
    """One table after the run. `segment` and `lsn` say how far it is merged, `version` is the lake table's.

    `mode` says whether it is the table or its changelog. The counts are those of this run: rows inserted,
    updated and deleted, and of values that are NULL: `unfit` that the table's type can't hold, `missing` that
    were not sent, and nothing has. `problem` says why the table was left where it was. `plan` is a dry run's.
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
    plan: Plan | None = None

    @property
    def name(self) -> str:
        """The table, as it is shown."""
        return self.table if self.mode == "merge" else f"{self.table} (changelog)"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TableMerge":
        plan = data.get("plan")
        return cls(**{**data, "lsn": Lsn.parse(data["lsn"]), "plan": None if plan is None else Plan(**plan)})


@dataclass(frozen=True)
class MergeSummary:
    """What a run did.

    `segment` and `lsn` are the last that is merged; every table without a problem is merged up to it, but for
    those that the run left out. `warnings` are lines to show. `failure` is set if some tables could not be
    merged: show the rest, then raise it. `data` is the job's own JSON object, for --json.
    """

    segment: int
    lsn: Lsn
    tables: Sequence[TableMerge]
    warnings: Sequence[str]
    seconds: float
    failure: PgcdcError | None
    data: Mapping[str, Any] = field(repr=False)


def read_result(output: str) -> MergeSummary | None:
    """Read the job's output; None if it came to no result. Raises the job's error if it merged nothing."""
    data = _last_object(output)
    if data is None:
        return None
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
        data,
    )


def _failure(error: Mapping[str, Any] | None) -> PgcdcError | None:
    if error is None:
        return None
    kind = ErrorKind.LOCKED if error["locked"] else ErrorKind.SPARK
    return PgcdcError(kind, error["message"], hint=error["hint"])


def _last_object(output: str) -> dict[str, Any] | None:
    """Find the job's result: a JSON object that stands on a line of its own."""
    for line in reversed(output.splitlines()):
        if line.startswith('{"format_version"'):
            found: dict[str, Any] = json.loads(line)
            return found
    return None
