"""Read wal2json's output, pgcdc's or the plugin's: an object per change (version 2) or transaction (1).

LSNs, xids, times and types are known as far as the options asked for them; what B contains holds for the
changes up to C. `identity`, or `oldkeys`, is the old row, as far as it is part of the replica identity. The
key is the primary key if that is written (`include-pk`); else, for an update in version 2, it is the
identity, unless that is the whole row.
"""

import codecs
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from pgcdc_cli.formats.encoded_rows import MESSAGES
from pgcdc_cli.formats.exact_json import Number, parse_line
from pgcdc_cli.reader.restored_change import (
    MISREAD,
    RestoredChange,
    Value,
    Values,
    change_line,
    complaint,
    each_line,
)
from pgcdc_cli.reader.stored_file import Order, StoredFile, undecodable
from pgcdc_cli.types.pg_type import JsonKind

_ROWS = {"I", "U", "D"}
_ACTIONS = {"insert": "I", "update": "U", "delete": "D", "message": "M"}
"""Version 1's names of operations."""
_KINDS: dict[str, JsonKind] = {
    **dict.fromkeys(("smallint", "integer", "bigint", "int2", "int4", "int8"), "number"),
    **dict.fromkeys(("real", "double precision", "float4", "float8"), "float"),
    **dict.fromkeys(("boolean", "bool"), "bool"),
    **dict.fromkeys(("json", "jsonb"), "json"),
}
"""Types that JSON lines don't write as strings."""
_UNORDERED: Order = (0, 0, 0)
"""The order of all lines: they don't say where they belong among those of other files."""
_CHUNK = 1 << 16
_BLANKS = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number)


def read_changes(file: StoredFile, content: io.BufferedReader) -> Iterator[RestoredChange]:
    """Yield every change of version 2's lines. Raises PgcdcError (PROTOCOL) for a line that is no change."""
    return each_line(file.path, content, _Lines().read, "a change of wal2json")


def read_transactions(file: StoredFile, content: io.BufferedReader) -> Iterator[RestoredChange]:
    """Yield every change of version 1's objects, in any layout. Raises PgcdcError (PROTOCOL) for others.

    Memory use is bounded by the longest change and a chunk.
    """
    objects = _Objects(content)
    try:
        yield from objects.changes()
    except MISREAD as error:
        reason = f"no transaction of wal2json at character {objects.position}: {complaint(error)}"
        raise undecodable(file.path, reason) from error


def _restored(
    head: dict[str, object], table: str = "", images: Mapping[str, Values | None] | None = None
) -> RestoredChange:
    return RestoredChange(_UNORDERED, table, change_line(head, images or {}))


class _Lines:
    """Reads version 2; `_begun` is the stamp of the transaction's B."""

    def __init__(self) -> None:
        self._begun: dict[str, object] = {}

    def read(self, line: str) -> Iterator[RestoredChange]:
        """Yield the line's change."""
        change = parse_line(line)
        action = change["action"]
        if action in ("B", "C"):
            yield self._boundary(action, change)
        elif action == "M":
            # A message outside of transactions is its own commit.
            alone = {"commit_lsn": change["lsn"]} if "lsn" in change else {}
            begun = self._begun if change["transactional"] else alone
            yield _message({"op": "M", **_stamp(change, begun)}, change)
        elif action == "T":
            yield _restored({"op": "T", **_stamp(change, self._begun), **_names(change)}, _table(change))
        elif action in _ROWS:
            yield self._row(action, change)
        else:
            raise ValueError(f"unknown action {action!r}")

    def _boundary(self, action: str, change: Mapping[str, Any]) -> RestoredChange:
        stamp = _transaction(change)
        if "lsn" in change:
            stamp = {"commit_lsn": change["lsn"], **stamp}
        self._begun = stamp if action == "B" else {}
        end = {"end_lsn": change["nextlsn"]} if action == "C" and "nextlsn" in change else {}
        return _restored({"op": action, **stamp, **end})

    def _row(self, action: str, change: Mapping[str, Any]) -> RestoredChange:
        new, old = (_columns(change[name]) if name in change else None for name in ("columns", "identity"))
        key = [column["name"] for column in change["pk"]] if "pk" in change else None
        if key is None and old is not None and new is not None and old.keys() != new.keys():
            key = list(old)
        head = {"op": action, **_stamp(change, self._begun), **_names(change)}
        return _restored(head, _table(change), _images(key, old, new))


def _images(key: Sequence[str] | None, old: Values | None, new: Values | None) -> dict[str, Values | None]:
    known = {**(old or {}), **(new or {})}
    whole = bool(key) and known.keys() >= set(key or ())
    return {"key": {name: known[name] for name in key or ()} if whole else None, "old": old, "new": new}


def _columns(columns: Iterable[Mapping[str, Any]]) -> Values:
    return {column["name"]: _value(column.get("type"), column["value"]) for column in columns}


def _value(type_: str | None, token: object) -> Value:
    """Read a value; without its type it stays as it is."""
    if type_ is None or token is None:
        return Value.as_it_stands(token)
    kind = _KINDS.get(type_, "string")
    if isinstance(token, bool):
        return Value(kind, "t" if token else "f")
    if not isinstance(token, str):
        raise TypeError
    return Value(kind, f"\\x{token}" if type_ == "bytea" else str(token))


def _names(change: Mapping[str, Any]) -> dict[str, object]:
    return {name: change[name] for name in ("schema", "table") if name in change}


def _table(change: Mapping[str, Any]) -> str:
    return f"{change['schema']}.{change['table']}" if "schema" in change else str(change["table"])


def _message(head: dict[str, object], change: Mapping[str, Any]) -> RestoredChange:
    said = {name: change[name] for name in ("transactional", "prefix", "content")}
    return _restored({**head, **said}, MESSAGES)


def _stamp(change: Mapping[str, Any], begun: Mapping[str, object]) -> dict[str, object]:
    """Make a change's stamp, in the order of JSON lines."""
    told = {**begun, **_transaction(change), **({"lsn": change["lsn"]} if "lsn" in change else {})}
    return {name: told[name] for name in ("lsn", "commit_lsn", "xid", "ts") if name in told}


def _transaction(content: Mapping[str, Any]) -> dict[str, object]:
    """Read the transaction's xid and time."""
    told: dict[str, object] = {}
    if "xid" in content:
        told["xid"] = None if content["xid"] is None else int(content["xid"])
    if "timestamp" in content:
        told["ts"] = None if content["timestamp"] is None else _moment(content["timestamp"])
    return told


def _moment(text: str) -> str:
    at = datetime.fromisoformat(text).astimezone(UTC).isoformat(timespec="microseconds")
    return at.removesuffix("+00:00") + "Z"


class _Objects:
    """Reads version 1: objects one after the other, on one line each, in chunks, or pretty-printed."""

    def __init__(self, content: io.BufferedReader) -> None:
        self._text = _Text(content)

    @property
    def position(self) -> int:
        return self._text.position

    def changes(self) -> Iterator[RestoredChange]:
        """Yield the changes, and each transaction's begin and end."""
        while self._text.next():
            yield from self._object()

    def _object(self) -> Iterator[RestoredChange]:
        """Read a transaction, or a message outside of transactions, whose object has no other members."""
        text, said, alone = self._text, dict[str, Any](), False
        text.take("{")
        while not text.took("}"):
            text.took(",")
            name = text.value()
            text.take(":")
            if name != "change":
                said[name] = text.value()
                continue
            changes = self._elements()
            first = next(changes, None)
            alone = first is not None and first.get("transactional") is False
            if not alone:
                yield _restored({"op": "B", **_transaction(said)})
            for change in chain([] if first is None else [first], changes):
                yield _object_change(change, _transaction(said))
        if not alone:
            end = {"end_lsn": said["nextlsn"]} if "nextlsn" in said else {}
            yield _restored({"op": "C", **_transaction(said), **end})

    def _elements(self) -> Iterator[dict[str, Any]]:
        """Yield an array's elements; the plugin may write a comma before the first."""
        self._text.take("[")
        while not self._text.took("]"):
            self._text.took(",")
            yield self._text.value()


def _object_change(change: Mapping[str, Any], begun: Mapping[str, object]) -> RestoredChange:
    action = _ACTIONS[change["kind"]]
    head = {"op": action, **begun}
    if action == "M":
        return _message(head, change)
    new = _listed(change, "column") if "columnnames" in change else None
    old = _listed(change["oldkeys"], "key") if "oldkeys" in change else None
    key = change["pk"]["pknames"] if "pk" in change else None
    return _restored({**head, **_names(change)}, _table(change), _images(key, old, new))


def _listed(image: Mapping[str, Any], label: str) -> Values:
    names, values = image[f"{label}names"], image[f"{label}values"]
    types = image.get(f"{label}types", [None] * len(names))
    if not len(names) == len(types) == len(values):
        raise ValueError("there are not as many values as names")
    return {name: _value(*typed) for name, *typed in zip(names, types, values, strict=True)}


class _Text:
    """JSON that is read value by value; `position` is the next character's in the file's text."""

    def __init__(self, content: io.BufferedReader) -> None:
        self._content = content
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._text, self._at, self._before = "", 0, 0
        self._ended = False

    @property
    def position(self) -> int:
        return self._before + self._at

    def next(self) -> str:
        """Return the next character that is not blank; an empty text at the end."""
        while True:
            blanks = _BLANKS.match(self._text, self._at)
            self._at = self._at if blanks is None else blanks.end()
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._extend()

    def took(self, character: str) -> bool:
        """Skip this character if it is the next one; return whether it was."""
        there = self.next() == character
        self._at += there
        return there

    def take(self, character: str) -> None:
        """Skip this character. Raises ValueError if it is not the next one."""
        if not self.took(character):
            raise ValueError(f"there is no {character}")

    def value(self) -> Any:  # noqa: ANN401 - any value of JSON
        """Read a value; read more of the file if the value is incomplete."""
        self.next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._ended:
                    raise ValueError(f"it is not JSON ({error.msg.removesuffix(' starting at')})") from error
            else:
                # A number may have more digits.
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
            self._extend()

    def _extend(self) -> None:
        rest = self._text[self._at :]
        data = self._content.read(max(_CHUNK, len(rest)))
        self._before, self._at, self._ended = self._before + self._at, 0, not data
        self._text = rest + self._decode(data, final=self._ended)
