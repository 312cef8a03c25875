"""Read JSON lines, as they are, or as changes for conversion to another format."""

import base64
import io
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from pgcdc_cli.changes.slice import (
    Boundaries,
    ChangeBatch,
    FullImage,
    Image,
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
from pgcdc_cli.formats.encoded_rows import MESSAGES
from pgcdc_cli.formats.exact_json import parse_line
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.reader.restored_change import each_line
from pgcdc_cli.reader.stored_file import Order, StoredFile
from pgcdc_cli.types import kernels
from pgcdc_cli.types.pg_type import json_kind

_OPERATIONS = frozenset("BCIUDTMRPKr")
_BOUNDS = frozenset("BCPKr")
_END = 2**63
"""Sorts a transaction's end after its changes."""


class JsonLine(NamedTuple):
    """One change: its line without the line feed, and its file.

    `table` is `schema.table`, `_messages`, or "" for the begin or end of a transaction.
    """

    order: Order
    table: str
    line: str
    file: StoredFile


def read_json_lines(file: StoredFile, content: io.BufferedReader) -> Iterator[JsonLine]:
    """Yield every line. Raises PgcdcError (PROTOCOL) for a line that is no change."""
    return each_line(
        file.path,
        content,
        lambda line: (JsonLine(*_order_and_table(line), line, file),),
        "a change of pgcdc",
    )


def _order_and_table(line: str) -> tuple[Order, str]:
    change = parse_line(line)
    operation = change["op"]
    if operation not in _OPERATIONS:
        raise ValueError(f"unknown op {operation!r}")
    commit_lsn = Lsn.parse(change["commit_lsn"])
    if operation in _BOUNDS:
        return (commit_lsn, 1, -1 if operation == "B" else _END), ""
    table = MESSAGES if operation == "M" else f"{change['schema']}.{change['table']}"
    return (commit_lsn, int(operation != "R"), int(change["seq"])), table


# int() refuses more than some thousand digits.
_DECODER = json.JSONDecoder(parse_int=float)
_BLANKS = re.compile(r"[ \t\n\r]*")


def split_object(text: str) -> dict[str, str]:
    """Split a JSON object into names and their values' texts, including blanks around a value.

    Names have no blanks around them, as pgcdc writes them. Raises ValueError for anything else,
    RecursionError for an object that is nested too deeply.
    """
    return dict(_split(text))


def _split(text: str) -> Iterator[tuple[str, str]]:
    if text == "{}":
        return
    position, separator = 0, "{"
    while separator != "}":
        if text[position : position + 1] != separator:
            raise ValueError(f"no {separator} at character {position}")
        name, colon = _DECODER.raw_decode(text, position + 1)
        if not isinstance(name, str) or text[colon : colon + 1] != ":":
            raise ValueError(f"no member at character {position + 1}")
        position = _value_end(text, colon + 1)
        yield name, text[colon + 1 : position]
        separator = "}" if text[position : position + 1] == "}" else ","
    if position + 1 != len(text):
        raise ValueError(f"more than an object, from character {position + 1} on")


def _value_end(text: str, start: int) -> int:
    _, end = _DECODER.raw_decode(text, _after_blanks(text, start))
    return _after_blanks(text, end)


def _after_blanks(text: str, start: int) -> int:
    blanks = _BLANKS.match(text, start)
    return start if blanks is None else blanks.end()


Texts: TypeAlias = dict[str, str | None]
"""PostgreSQL's text of each column that was sent; None for SQL NULL."""

IncludesColumn: TypeAlias = Callable[[str, str, str], bool]
"""Whether the values of a column (schema, table, column) are used."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_JSON = 114
"""OID of json."""
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_ROW_OPERATIONS: dict[str, Operation] = {"I": "I", "U": "U", "D": "D"}


class _Row(NamedTuple):
    stamp: Stamp
    new: Texts | None
    old: Texts | None
    unchanged: frozenset[str]


class LinesAsChanges:
    """Collects lines, and makes a slice of them."""

    def __init__(self, includes_column: IncludesColumn) -> None:
        self._includes_column = includes_column
        self._rows: dict[tuple[str, Operation, tuple[str, ...] | None], list[_Row]] = {}
        self._tables: dict[str, TableSchema] = {}
        self._truncates: list[TruncateChange] = []
        self._messages: list[MessageChange] = []
        self._commits: list[TransactionBoundary] = []

    def add(self, line: dict[str, str], table: TableSchema | None, index: int) -> None:
        """Add a split line; `table` is None for a line of no table. Begins are ignored: they have no LSN.

        Raises PgcdcError (USAGE) if PostgreSQL's text can't be restored, and KeyError, TypeError or
        ValueError for a line that isn't pgcdc's, or not of this table.
        """
        operation = json.loads(line["op"])
        if operation == "C":
            self._commits.append(TransactionBoundary("C", _stamp(line, index, line["end_lsn"])))
        elif operation == "M":
            self._messages.append(_message(line, index))
        elif operation == "T" and table is not None:
            options = (json.loads(line[name]) for name in ("cascade", "restart_identity"))
            self._truncates.append(TruncateChange(table, _stamp(line, index, line["lsn"]), *options))
        elif table is not None:
            self._add_row(_ROW_OPERATIONS[operation], line, table, index)
        elif operation != "B":
            raise ValueError(f"a table is missing for op {operation!r}")

    def slice(self) -> Slice:
        """Make the slice of all lines added."""
        changes = tuple(
            _batch(self._tables[table], operation, rows) for (table, operation, _), rows in self._rows.items()
        )
        boundaries = (Boundaries.of(self._commits),) if self._commits else ()
        return Slice(None, changes, tuple(self._truncates), tuple(self._messages), boundaries)

    def _add_row(self, operation: Operation, line: dict[str, str], table: TableSchema, index: int) -> None:
        new, old = (self._texts(table, line, image) for image in ("new", "old"))
        if (new is None) != (operation == "D") or (operation == "D" and old is None):
            raise ValueError("its images are not those of its op")
        version = f"{table.oid}-{table.fingerprint}"
        self._tables[version] = table
        unchanged = frozenset(json.loads(line.get("unchanged", "[]")))
        rows = self._rows.setdefault((version, operation, None if old is None else tuple(old)), [])
        rows.append(_Row(_stamp(line, index, line["lsn"]), new, old, unchanged))

    def _texts(self, table: TableSchema, line: dict[str, str], image: str) -> Texts | None:
        if image not in line:
            return None
        json_nulls = json.loads(line.get("json_null", "[]"))
        columns = {column.name: column for column in table.columns}
        texts = {}
        for name, value in split_object(line[image]).items():
            text = _text(columns[name], value, json_null=f"{image}.{name}" in json_nulls)
            _check_blanks(table, columns[name], text, self._includes_column)
            texts[name] = text
        return texts


def _message(line: dict[str, str], index: int) -> MessageChange:
    if "content" in line:
        content = json.loads(line["content"]).encode()
    else:
        content = base64.b64decode(json.loads(line["content_base64"]), validate=True)
    transactional, prefix = json.loads(line["transactional"]), json.loads(line["prefix"])
    return MessageChange(_stamp(line, index, line["lsn"]), transactional, prefix, content)


def _stamp(line: dict[str, str], index: int, lsn: str) -> Stamp:
    return Stamp(
        index,
        Lsn.parse(json.loads(lsn)),
        Lsn.parse(json.loads(line["commit_lsn"])),
        _micros(line["ts"]),
        json.loads(line["xid"]),
        int(line.get("seq", "0")),
    )


@lru_cache(64)
def _micros(ts: str) -> int | None:
    if ts == "null":
        return None
    return (datetime.fromisoformat(json.loads(ts)) - _EPOCH) // _MICROSECOND


def _text(column: TableColumn, value: str, *, json_null: bool) -> str | None:
    """Undo what `formats/json_text.py` did to a value."""
    if json_kind(column.type) == "json":
        return None if value == "null" and not json_null else value
    if value.startswith('"'):
        return str(json.loads(value))
    return {"null": None, "true": "t", "false": "f"}.get(value, value)


def _check_blanks(
    table: TableSchema, column: TableColumn, text: str | None, includes_column: IncludesColumn
) -> None:
    """Refuse a json value with a blank that may have been a line break before it was written as JSON line."""
    if text is None or column.type.oid != _JSON or " " not in _STRING.sub("", text):
        return
    if includes_column(table.schema, table.name, column.name):
        raise PgcdcError(
            ErrorKind.USAGE,
            f'could not restore column "{column.name}" of "{table.display}": a blank in its json may have '
            "been a line break",
            hint="leave it out with -c column.exclude.list=..., or stream with --format debezium",
        )


def _batch(table: TableSchema, operation: Operation, rows: list[_Row]) -> ChangeBatch:
    new = None if operation == "D" else _full(table, [(row.new or {}, row.unchanged) for row in rows])
    old = [row.old for row in rows if row.old is not None]
    stamps = Stamps.of([row.stamp for row in rows])
    return ChangeBatch(table, operation, stamps, new, _old(table, old) if old else None)


def _full(table: TableSchema, rows: list[tuple[Texts, frozenset[str]]]) -> FullImage:
    columns, masks = [], []
    for name in (column.name for column in table.columns):
        unchanged = np.array([name in names for _, names in rows], np.bool_)
        texts = [None if away else texts[name] for (texts, _), away in zip(rows, unchanged, strict=True)]
        columns.append(kernels.binary(texts))
        masks.append(unchanged if unchanged.any() else None)
    return FullImage(tuple(columns), tuple(masks))


def _old(table: TableSchema, rows: list[Texts]) -> Image:
    if all(column.name in rows[0] for column in table.columns):
        return _full(table, [(row, frozenset()) for row in rows])
    return KeyImage(
        tuple(
            kernels.binary([row[column.name] for row in rows]) if column.in_replica_identity else None
            for column in table.columns
        )
    )
