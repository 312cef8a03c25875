"""JSON lines, as they stand, and back into changes for a format that makes something else of them."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from pgcdc_cli.changes.slice import (
    Boundaries,
    ChangeBatch,
    FullImage,
    KeyImage,
    MessageChange,
    Operation,
    Slice,
    Stamp,
    Stamps,
    TransactionBoundary,
    TruncateChange,
)
from pgcdc_cli.changes.table import TableColumn, TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.pretty import Change, parse_line
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.reader.stored_file import Record, Stored, lines, undecodable
from pgcdc_cli.types import kernels
from pgcdc_cli.types.to_arrow import json_kind

if TYPE_CHECKING:
    import pyarrow as pa

    from pgcdc_cli.types.kernels import Booleans

# An int refuses thousands of digits.
_DECODER = json.JSONDecoder(parse_int=float)
_BLANKS = re.compile(r"[ \t\n\r]*")


def members(text: str) -> dict[str, str]:
    """Part an object whose members stand close together, as pgcdc writes them; blanks are part of a value.

    Raises ValueError if it is something else, RecursionError where it is nested too deeply.
    """
    return dict(_members(text))


def _members(text: str) -> Iterator[tuple[str, str]]:
    if text == "{}":
        return
    place, mark = 0, "{"
    while mark != "}":
        if text[place : place + 1] != mark:
            raise ValueError(f"no {mark} at character {place}")
        name, colon = _DECODER.raw_decode(text, place + 1)
        if not isinstance(name, str) or text[colon : colon + 1] != ":":
            raise ValueError(f"no member at character {place + 1}")
        place = _value_end(text, colon + 1)
        yield name, text[colon + 1 : place]
        mark = "}" if text[place : place + 1] == "}" else ","
    if place + 1 != len(text):
        raise ValueError(f"more than an object, from character {place + 1} on")


def _value_end(text: str, start: int) -> int:
    _, end = _DECODER.raw_decode(text, _after_blanks(text, start))
    return _after_blanks(text, end)


def _after_blanks(text: str, start: int) -> int:
    blanks = _BLANKS.match(text, start)
    return start if blanks is None else blanks.end()


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


Texts: TypeAlias = dict[str, str | None]
"""PostgreSQL's text of each column that was sent, None for SQL NULL."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_JSON = 114
"""OID of json."""
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_ROWS: dict[str, Operation] = {"I": "I", "U": "U", "D": "D"}


class _Row(NamedTuple):
    stamp: Stamp
    new: Texts | None
    old: Texts | None
    unchanged: frozenset[str]


@dataclass(slots=True)
class Lines:
    """Lines that will be a slice together, in the order in which they are added.

    `includes_column` says of schema, table and column whether its values matter.
    """

    includes_column: Callable[[str, str, str], bool]
    _count: int = 0
    _rows: dict[tuple[str, Operation, tuple[str, ...] | None], list[_Row]] = field(default_factory=dict)
    _tables: dict[str, TableSchema] = field(default_factory=dict)
    _truncates: list[TruncateChange] = field(default_factory=list)
    _messages: list[MessageChange] = field(default_factory=list)
    _marks: list[TransactionBoundary] = field(default_factory=list)

    def add(self, line: dict[str, str], table: TableSchema | None, *, exact: bool) -> None:
        """Add a line's members; `table` is None for what has none. A begin's place is not in its line.

        `exact` says that blanks in json values were no line breaks.

        Raises USAGE where PostgreSQL's text can't be known, and KeyError, TypeError or ValueError where the
        line isn't one of pgcdc, or not one of this table.
        """
        operation = json.loads(line["op"])
        if operation == "C":
            self._marks.append(TransactionBoundary("C", self._stamp(line, json.loads(line["end_lsn"]))))
        elif operation == "M":
            self._messages.append(self._message(line))
        elif operation == "T" and table is not None:
            options = (json.loads(line[name]) for name in ("cascade", "restart_identity"))
            self._truncates.append(TruncateChange(table, self._stamp(line), *options))
        elif table is not None:
            images = [self._texts(table, line, image, exact=exact) for image in ("new", "old")]
            self._add_row(_ROWS[operation], line, table, *images)
        elif operation != "B":
            raise ValueError(f"a table is missing for op {operation!r}")

    def slice(self) -> Slice:
        """Give what was added."""
        changes = tuple(
            _batch(self._tables[table], operation, rows) for (table, operation, _), rows in self._rows.items()
        )
        marks = (Boundaries.of(self._marks),) if self._marks else ()
        return Slice(None, changes, tuple(self._truncates), tuple(self._messages), marks)

    def _add_row(
        self,
        operation: Operation,
        line: dict[str, str],
        table: TableSchema,
        new: Texts | None,
        old: Texts | None,
    ) -> None:
        unchanged = frozenset(json.loads(line.get("unchanged", "[]")))
        if (new is None) != (operation == "D") or (operation == "D" and old is None):
            raise ValueError("its images are not those of its op")
        key = f"{table.oid}-{table.fingerprint}"
        self._tables[key] = table
        shown = None if old is None else tuple(old)
        rows = self._rows.setdefault((key, operation, shown), [])
        rows.append(_Row(self._stamp(line), new, old, unchanged))

    def _texts(self, table: TableSchema, line: dict[str, str], image: str, *, exact: bool) -> Texts | None:
        if image not in line:
            return None
        json_nulls = json.loads(line.get("json_null", "[]"))
        columns = {column.name: column for column in table.columns}
        texts = {}
        for name, value in members(line[image]).items():
            text = _text(columns[name], value, json_null=f"{image}.{name}" in json_nulls)
            lossy = not exact and _may_have_had_line_breaks(columns[name], text)
            if lossy and self._includes(table, name):
                raise _inexact(table, columns[name])
            texts[name] = text
        return texts

    def _includes(self, table: TableSchema, column: str) -> bool:
        return self.includes_column(table.schema, table.name, column)

    def _message(self, line: dict[str, str]) -> MessageChange:
        if "content" in line:
            content = json.loads(line["content"]).encode()
        else:
            content = base64.b64decode(json.loads(line["content_base64"]), validate=True)
        transactional, prefix = json.loads(line["transactional"]), json.loads(line["prefix"])
        return MessageChange(self._stamp(line), transactional, prefix, content)

    def _stamp(self, line: dict[str, str], lsn: str | None = None) -> Stamp:
        place = Lsn.parse(lsn or json.loads(line["lsn"]))
        commit_lsn = Lsn.parse(json.loads(line["commit_lsn"]))
        micros = _micros(line["ts"])
        self._count += 1
        return Stamp(
            self._count, place, commit_lsn, micros, json.loads(line["xid"]), int(line.get("seq", "0"))
        )


@lru_cache(64)
def _micros(ts: str) -> int | None:
    if ts == "null":
        return None
    return (datetime.fromisoformat(json.loads(ts)) - _EPOCH) // _MICROSECOND


def _text(column: TableColumn, value: str, *, json_null: bool) -> str | None:
    """Undo `formats.jsonvalue`."""
    if json_kind(column.type) == "json":
        return None if value.strip() == "null" and not json_null else value
    if value.startswith('"'):
        return str(json.loads(value))
    return {"null": None, "true": "t", "false": "f"}.get(value, value)


def _may_have_had_line_breaks(column: TableColumn, value: str | None) -> bool:
    return value is not None and column.type.oid == _JSON and " " in _STRING.sub("", value)


def _inexact(table: TableSchema, column: TableColumn) -> PgcdcError:
    return PgcdcError(
        ErrorKind.USAGE,
        f'could not restore column "{column.name}" of "{table.display}": a blank in its json may have been '
        "a line break",
        hint="leave it out with -c column.exclude.list=..., or stream with --format debezium",
    )


def _batch(table: TableSchema, operation: Operation, rows: list[_Row]) -> ChangeBatch:
    new = None if operation == "D" else _full(table, [(row.new or {}, row.unchanged) for row in rows])
    old = [row.old for row in rows if row.old is not None]
    return ChangeBatch(table, operation, _stamps(rows), new, _old(table, old) if old else None)


def _full(table: TableSchema, rows: list[tuple[Texts, frozenset[str]]]) -> FullImage:
    columns, masks = [], []
    for name in (column.name for column in table.columns):
        unchanged: Booleans = np.array([name in names for _, names in rows], np.bool_)
        texts = [None if away else texts[name] for (texts, _), away in zip(rows, unchanged, strict=True)]
        columns.append(kernels.binary(texts))
        masks.append(unchanged if unchanged.any() else None)
    return FullImage(tuple(columns), tuple(masks))


def _old(table: TableSchema, rows: list[Texts]) -> FullImage | KeyImage:
    if all(column.name in rows[0] for column in table.columns):
        return _full(table, [(row, frozenset()) for row in rows])
    columns: list[pa.BinaryArray | None] = [
        kernels.binary([row[column.name] for row in rows]) if column.replica_identity else None
        for column in table.columns
    ]
    return KeyImage(tuple(columns))


def _stamps(rows: list[_Row]) -> Stamps:
    stamps = [row.stamp for row in rows]
    values = [(s.index, s.lsn, s.commit_lsn, s.commit_ts or 0, s.xid or 0, s.seq) for s in stamps]
    return Stamps(*np.array(values, np.int64).T.copy())
