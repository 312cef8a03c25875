"""The options of a soak's runs, and the comparison of their output with the log."""

from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from logs import Log
from psycopg.rows import dict_row
from soak_load import FULL, KEYED, MANY
from soak_oracle import Change, Row, fold, read_log
from soak_output import (
    DEBEZIUM,
    Event,
    as_arrow_tells,
    as_debezium_tells,
    read_directory,
    read_events,
    read_lines,
)
from soak_reader import check

KEYS = {f"public.{table}": "id" for table in (*KEYED, *FULL, *MANY, "indexed")}

FORMATS: dict[str, tuple[str, ...]] = {
    "lines": ("-f",),
    "directory": ("-D", "--rotate-interval", "1s"),
    "arrow": ("-D", "--rotate-interval", "1s", "--format", "arrow"),
    "debezium": (
        *("-f", "--format", "debezium"),
        *(word for name, value in DEBEZIUM.items() for word in ("-c", f"{name}={value}")),
    ),
}
"""Without pretty, which is for people, and raw, which doesn't promise exactly once."""


class Combination(NamedTuple):
    version: int
    protocol: str
    """Protocol version and streaming, or `default`."""
    two_phase: bool
    form: str
    messages: bool

    @property
    def arguments(self) -> tuple[str, ...]:
        version, _, streaming = self.protocol.partition(" ")
        protocol = ("--proto-version", version, "--streaming", streaming) if streaming else ()
        return (*protocol, *["--two-phase"] * self.two_phase, *["--messages"] * self.messages)

    @property
    def streams(self) -> bool:
        """Whether large transactions arrive before they commit."""
        return "off" not in self.protocol

    @property
    def early(self) -> bool:
        """Whether some transactions are sent before they commit."""
        return self.streams or self.two_phase

    @property
    def tells_messages(self) -> bool:
        return self.messages or self.form == "debezium"

    def __str__(self) -> str:
        words = [f"pg{self.version}", self.protocol, "two-phase" * self.two_phase, self.form]
        return "-".join(filter(None, [*words, "messages" * self.messages]))


def check_output(log: Log, witness: str, out: Path, combination: Combination) -> int:
    """Compare an output with the log, and the log with the tables; return the number of changes.

    `witness` is a slot that was copied before the first run.
    """
    try:
        said = list(read_log(log.uri, witness, messages=combination.tells_messages))
    except psycopg.errors.InternalError_ as error:
        check(well=False, errors=str(error).encode())
        raise
    compare(combination.form, out, said)
    assert_same(fold(said, KEYS), final_rows(log))
    return len(said)


def compare(form: str, out: Path, said: list[Change]) -> None:
    bare = [change._replace(columns=()) for change in said]
    if form == "lines":
        assert_equal(read_lines(out), bare)
    elif form == "directory":
        assert_equal(read_directory(out), bare)
    elif form == "arrow":
        expected = [as_arrow_tells(change)._replace(columns=()) for change in said]
        assert_equal(read_directory(out), expected)
    else:
        assert_equal(read_events(out), list(as_debezium_tells(said, KEYS)))


def assert_equal(found: list[Change] | list[Event], said: list[Change] | list[Event]) -> None:
    """Compare, and report only the first difference."""
    for number, (ours, theirs) in enumerate(zip_longest(found, said)):
        assert ours == theirs, f"change {number} of {len(said)}"


def final_rows(log: Log) -> dict[str, dict[Any, Row]]:
    with psycopg.connect(log.uri, row_factory=dict_row) as connection:
        tables = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in KEYS}
    return {table: {row["id"]: row for row in rows} for table, rows in tables.items()}


def assert_same(folded: dict[str, dict[Any, Row]], final: dict[str, dict[Any, Row]]) -> None:
    for table, rows in final.items():
        assert folded[table].keys() == rows.keys(), table
        for key, row in rows.items():
            assert _kept(folded[table][key]) == _kept(row), table


def _kept(row: Row) -> list[str]:
    """Leave out columns that come and go: their first values are not sent as changes."""
    label = row.get("label", row.get("title"))
    return [label, *(str(row.get(name)) for name in ("amount", "size", "flag", "body"))]
