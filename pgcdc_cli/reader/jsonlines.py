"""JSON lines, as they stand."""

from collections.abc import Iterator

from pgcdc_cli.formats.prettyvalue import Change, parse_line
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.reader.record import Record, undecodable
from pgcdc_cli.reader.stored import Stored, lines

_OPERATIONS = frozenset("BCIUDTMRPKr")
_BOUNDS = frozenset("BCPKr")
_LAST = 2**63
"""Where a transaction's end stands among its changes."""


def read_json_lines(path: str, file: Stored) -> Iterator[Record]:
    """One record a line; PROTOCOL error for a line that is no change."""
    for number, line in enumerate(lines(file), 1):
        try:
            text = line.decode()
            yield _record(parse_line(text), text)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"line {number} is no change of pgcdc: {error!r}"
            raise undecodable(path, reason) from error


def _record(change: Change, line: str) -> Record:
    operation = change["op"]
    if operation not in _OPERATIONS:
        raise ValueError(f"unknown op {operation!r}")
    commit_lsn = Lsn.parse(change["commit_lsn"])
    if operation in _BOUNDS:
        return Record((commit_lsn, 1, -1 if operation == "B" else _LAST), "", line)
    table = "_messages" if operation == "M" else f"{change['schema']}.{change['table']}"
    return Record((commit_lsn, int(operation != "R"), int(change["seq"])), table, line)
