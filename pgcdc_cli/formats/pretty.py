"""Changes for a person at a terminal, made from the objects of JSON lines or from pgoutput's messages.

If an update comes without the old row, its old values are those that earlier changes of the same run left.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from shutil import get_terminal_size
from typing import Any, ClassVar, Literal, TypeAlias

import pyarrow as pa

from pgcdc_cli.changes.slice import Slice
from pgcdc_cli.formats.encoded_rows import join_bytes
from pgcdc_cli.formats.exact_json import Change, Number, compact_json, parse_line
from pgcdc_cli.formats.interface import Capabilities, Data, EncodedSlice, Piece, TableLists
from pgcdc_cli.formats.jsonl import JsonlFormat
from pgcdc_cli.formats.terminal import ELLIPSIS, Style, identifier, pad, safe, shorten, width_of
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m

Row: TypeAlias = dict[str, Any]

_MOST_ROWS = 10_000
_LONGEST_KEPT = 1_000
"""Characters; longer values are not remembered."""


class EarlierChanges:
    """Completes changes (objects of JSON lines) from earlier ones: old values, and the size of a transaction.

    It remembers a limited number of rows.
    """

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[str, ...], tuple[Lsn, Row]] = OrderedDict()
        self._changes = self._bytes = 0

    def complete(self, change: Change, size: int) -> Change:
        """Add the old values that are known to a change of `size` bytes; remember the row that it leaves."""
        if change["op"] == "B":
            self._changes = self._bytes = 0
        elif change["op"] in "CP":
            return {**change, "changes": self._changes, "bytes": self._bytes}
        else:
            self._changes += 1
            self._bytes += size
        return self._with_old_values(change)

    def _with_old_values(self, change: Change) -> Change:
        if change["op"] == "T":
            self._forget(*_table_of(change))
        if change["op"] not in "IRUD" or not change.get("key"):
            return change
        earlier = self._take(change)
        if change["op"] != "D":
            self._keep(change, earlier)
        return {**change, "old": earlier | change.get("old", {})} if change["op"] in "UD" else change

    def _take(self, change: Change) -> Row:
        """Remove and return the row that a change replaces; empty if its LSN is later (a repeated change)."""
        old = change.get("old", {})
        key = {name: old.get(name, value) for name, value in change["key"].items()}
        lsn, row = self._rows.pop(_row_name(change, key), (Lsn(0), {}))
        return row if lsn < _lsn(change) else {}

    def _keep(self, change: Change, earlier: Row) -> None:
        unfit = {name.removeprefix("new.") for name in change.get("json_null", ())}
        sent = {
            name: value
            for name, value in change["new"].items()
            if name not in unfit and not (isinstance(value, str) and len(value) > _LONGEST_KEPT)
        }
        known = sent.keys() | set(change.get("unchanged", ()))
        row = {name: value for name, value in earlier.items() if name in known} | sent
        # A snapshot's row was there before any change that comes after it, even one at the same position.
        lsn = Lsn(0) if change["op"] == "R" else _lsn(change)
        self._rows[_row_name(change, change["key"])] = lsn, row
        if len(self._rows) > _MOST_ROWS:
            self._rows.popitem(last=False)

    def _forget(self, schema: str, table: str) -> None:
        for name in [name for name in self._rows if name[:2] == (schema, table)]:
            del self._rows[name]


def _lsn(change: Change) -> Lsn:
    """Return the change's LSN; 0 if its line has none, so that no change counts as earlier."""
    return Lsn.parse(change["lsn"]) if "lsn" in change else Lsn(0)


def _row_name(change: Change, key: Row) -> tuple[str, ...]:
    return *_table_of(change), json.dumps(key)


def _table_of(change: Change) -> tuple[str, str]:
    return change.get("schema", ""), change["table"]


_JSONL = JsonlFormat(layout="stream", transactions=True)


@dataclass(frozen=True, slots=True)
class PrettyFormat:
    """Writes everything into one stream, with BEGIN and COMMIT; values are cut so that lines fit `width`.

    Updates show old values as far as they, or earlier changes, contain them.
    """

    name: ClassVar[str] = "pretty"
    suffix: ClassVar[str] = ".txt"
    tail: ClassVar[None] = None
    capabilities: ClassVar[Capabilities] = Capabilities(("stream",), transactions=True)
    decodes: ClassVar[Literal[True]] = True
    wants_boundaries: ClassVar[bool] = True
    restartable: ClassVar[None] = None
    table_lists: ClassVar[TableLists] = {}

    colour: bool = False
    width: int = field(default_factory=lambda: get_terminal_size().columns)
    _earlier: EarlierChanges = field(default_factory=EarlierChanges, init=False, compare=False)

    def encode(self, slice_: Slice) -> EncodedSlice:
        """Encode the rows of a slice. Raises PgcdcError (PROTOCOL) for invalid UTF-8."""
        encoded = _JSONL.encode(slice_)
        return EncodedSlice(tuple(map(self._rendered, encoded.pieces)), encoded.edge, encoded.tables)

    def frame(self, data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
        """Join the text."""
        return join_bytes(data)

    def _rendered(self, piece: Piece) -> Piece:
        style = Style(self.colour, self.width)
        lines = bytes(_JSONL.frame([piece.data])).removesuffix(b"\n").split(b"\n")
        text = "".join(render_line(line, style, self._earlier) for line in lines).encode()
        return Piece(piece.target, piece.rows, piece.first_commit_lsn, piece.last_commit_lsn, text)


_ARROW = " -> "
_INDENT = 4
_WIDEST_NAME = 24

Paint = Callable[[str], str]


def render_line(line: str | bytes, style: Style, earlier: EarlierChanges | None = None) -> str:
    """Render a JSON line; one that is nested too deeply to be parsed is shown as it is, shortened.

    `earlier` has the changes before this one, and remembers this one, too.
    """
    try:
        change = parse_line(line)
        if earlier is not None:
            change = earlier.complete(change, len(line.encode() if isinstance(line, str) else line))
        return render_change(change, style)
    except RecursionError:
        text = line if isinstance(line, str) else line.decode()
        return f"  {shorten(text, style.room(2))}\n"


def render_change(change: Change, style: Style) -> str:
    """Render the object of a JSON line as one or several lines, each with a line feed."""
    return "".join(f"{line}\n" for line in _RENDERERS[change["op"]](change, style))


def _begin(change: Change, style: Style) -> Iterator[str]:
    told = [change.get("commit_lsn"), (change.get("ts") or "").replace("T", " ")]
    moment = "  ".join(style.dim(safe(one)) for one in told if one)
    yield f"{_boundary('BEGIN', change, style)}{moment and '  '}{moment}{_source(change, style)}"


def _commit(change: Change, style: Style) -> Iterator[str]:
    verb = _ENDS.get(change["op"], "COMMIT PREPARED" if "gid" in change else "COMMIT")
    gid = f"  {style.special(shorten(change['gid'], style.room(40)))}" if "gid" in change else ""
    yield f"{_boundary(verb, change, style)}{gid}{_extent(change, style)}"


def _boundary(verb: str, change: Change, style: Style) -> str:
    xid = change.get("xid")
    return style.bold(verb) if xid is None else f"{style.bold(verb)} {xid}"


def _extent(change: Change, style: Style) -> str:
    """Describe a transaction's size, if it was counted."""
    if "changes" not in change:
        return ""
    changes = "1 change" if change["changes"] == 1 else f"{change['changes']:,} changes"
    extent = f"{changes}, {change['bytes']:,} bytes of JSON"
    return f"  {style.dim(extent)}"


def _source(change: Change, style: Style) -> str:
    """Name the transaction's origin, if it has one."""
    if "origin" not in change:
        return ""
    name = style.special(shorten(change["origin"], style.room(60)))
    lsn = f" {style.dim(safe(change['origin_lsn']))}" if "origin_lsn" in change else ""
    return f"  from {name}{lsn}"


def _head(verb: str, change: Change, style: Style, rest: str = "") -> str:
    table = style.bold(safe(_table_name(change.get("schema"), change["table"])))
    return f"  {verb} {table}{rest}{_position(change, style)}"


def _position(change: Change, style: Style) -> str:
    return f"  {style.dim(safe(change['lsn']))}" if "lsn" in change else ""


def _table_name(schema: str | None, name: str) -> str:
    return identifier(name) if schema is None else f"{identifier(schema)}.{identifier(name)}"


def _insert(change: Change, style: Style) -> Iterator[str]:
    verb = style.added("ROW" if change["op"] == "R" else "INSERT")
    cells = [_Cell(name, value, style.added) for name, value in image(change, "new").items()]
    return _changed(verb, change, [*cells, *_unchanged(change, style)], style)


def _delete(change: Change, style: Style) -> Iterator[str]:
    cells = [_Cell(name, value, style.removed) for name, value in image(change, "old").items()]
    return _changed(style.removed("DELETE"), change, cells, style)


def _update(change: Change, style: Style) -> Iterator[str]:
    old, new = image(change, "old"), image(change, "new")
    cells = [
        _Cell(name, value, style.added, old.get(name, _NOT_KNOWN))
        for name, value in new.items()
        if old.get(name) != value and not (name in change.get("key", {}) and name not in old)
    ]
    cells += _unchanged(change, style)
    return _changed(style.changed("UPDATE"), change, cells or [_NO_DIFFERENCE], style)


@dataclass(frozen=True, slots=True)
class _Cell:
    """A column's value, and the old value if it replaced one; an empty name is no column."""

    name: str
    value: str
    paint: Paint
    old: str | None = None

    @property
    def size(self) -> int:
        """Characters that it takes at least."""
        return len(self.name) + len(self.value) + len(self.old or "")

    def brief(self, style: Style) -> str:
        """Write it as one word in a line."""
        name = f"{safe(identifier(self.name))}=" if self.name else ""
        before = "" if self.old is None else style.removed(_word(self.old)) + style.dim(_ARROW)
        return name + before + self.paint(_word(self.value))


_NO_DIFFERENCE = _Cell("", "(no difference)", str)
_NOT_KNOWN = "?"


def _word(text: str) -> str:
    """Quote, as SQL does, text that would not read as one word."""
    plain = text in _SAID or not (set(text) & set(" '=")) or text[:1] in {'"', "{", "["}
    return safe(text if plain else "'" + text.replace("'", "''") + "'")


def _changed(verb: str, change: Change, cells: Sequence[_Cell], style: Style) -> Iterator[str]:
    """Write a change on one line if it fits the terminal, else as a block."""
    key = _key(change, style)
    # Values that are too large for one line anyway are not rendered for it.
    if sum(cell.size for cell in cells) <= style.width:
        words = " ".join(cell.brief(style) for cell in cells)
        line = _head(verb, change, style, f"{key if change['op'] == 'U' else ''}  {words}")
        if width_of(_COLOURS.sub("", line)) <= style.width:
            yield line
            return
    yield _head(verb, change, style, key)
    names = _Names([identifier(cell.name) for cell in cells], style)
    for cell in cells:
        yield names.label(identifier(cell.name)) + _difference(cell, names.room, style)


def _key(change: Change, style: Style) -> str:
    pairs = " ".join(
        f"{identifier(name)}={_word(shown(value))}" for name, value in change.get("key", {}).items()
    )
    return f" {shorten(pairs, style.room(40))}" if pairs else ""


def _difference(cell: _Cell, room: int, style: Style) -> str:
    old, new = cell.old, cell.value
    if old is None:
        return cell.paint(shorten(new, room))
    half = max((room - len(_ARROW)) // 2, 1)
    # Each side may use the room that the other one doesn't need.
    old_room = max(half, room - len(_ARROW) - width_of(new))
    before = shorten(old, old_room)
    after = shorten(new, max(half, room - len(_ARROW) - width_of(before)))
    return style.removed(before) + style.dim(_ARROW) + style.added(after)


def _truncate(change: Change, style: Style) -> Iterator[str]:
    options = [("cascade", " CASCADE"), ("restart_identity", " RESTART IDENTITY")]
    given = "".join(text for name, text in options if change.get(name))
    yield _head(style.removed("TRUNCATE"), change, style, given)


def _message(change: Change, style: Style) -> Iterator[str]:
    kind = "MESSAGE" if change["transactional"] else "MESSAGE (not transactional)"
    content = change.get("content", "base64 " + change.get("content_base64", ""))
    prefix = shorten(change["prefix"], style.room(40))
    yield f"  {style.special(kind)} {style.bold(prefix)}{_position(change, style)}"
    yield " " * _INDENT + shorten(content, style.room(_INDENT))


_ENDS = {"P": "PREPARE", "K": "COMMIT PREPARED", "r": "ROLLBACK PREPARED"}
_RENDERERS: Mapping[str, Callable[[Change, Style], Iterator[str]]] = {
    "B": _begin,
    "C": _commit,
    "P": _commit,
    "K": _commit,
    "r": _commit,
    "I": _insert,
    "R": _insert,
    "U": _update,
    "D": _delete,
    "T": _truncate,
    "M": _message,
}


def _unchanged(change: Change, style: Style) -> list[_Cell]:
    return [_Cell(name, UNCHANGED, style.dim) for name in change.get("unchanged", [])]


class _Names:
    """Aligned column names; `room` is the rest of the line's width."""

    def __init__(self, names: Sequence[str], style: Style) -> None:
        self._width = min(max(map(width_of, map(safe, names)), default=0), _WIDEST_NAME)
        self.room = style.room(_INDENT + self._width + 2)

    def label(self, name: str) -> str:
        return " " * _INDENT + pad(shorten(name, self._width), self._width) + "  "


NULL = "NULL"
UNCHANGED = "(unchanged)"
_QUOTED = frozenset(["", UNCHANGED])
_SAID = frozenset([UNCHANGED, "(no difference)"])
_COLOURS = re.compile(r"\x1b\[\d*m")


def image(change: Change, label: str) -> dict[str, str]:
    """Show the values of the `old` or `new` image, by column.

    NULL is SQL's, null is JSON's; a text that could be taken for another value is quoted.
    """
    json_null = change.get("json_null", [])
    values = change.get(label, {})
    return {
        name: "null" if value is None and f"{label}.{name}" in json_null else shown(value)
        for name, value in values.items()
    }


def shown(value: object) -> str:
    """Show one value."""
    if value is None:
        return NULL
    if isinstance(value, str) and not isinstance(value, Number):
        return f'"{value}"' if _is_ambiguous(value) else value
    return compact_json(value, " ")


def _is_ambiguous(text: str) -> bool:
    return text in _QUOTED or text[0] == " " or text[-1] == " " or text.upper() == NULL


Relations = Mapping[int, m.Relation]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST = 60
"""Most bytes of a value that are shown."""

_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


def render_message(message: m.Message, relations: Relations, style: Style) -> str:
    """Render a message as one line, without a line feed; `relations` are those before it, by OID."""
    name = "Message" if isinstance(message, m.LogicalMessage) else _WORDS.sub(" ", type(message).__name__)
    text = " ".join(_details(message, relations))
    return f"{style.bold(name)} {shorten(text, style.room(len(name) + 1))}" if text else style.bold(name)


def _details(message: m.Message, relations: Relations) -> Iterator[str]:
    if isinstance(message, m.Insert | m.Update | m.Delete):
        yield from _row(message, relations)
    elif isinstance(message, m.Truncate):
        yield " ".join(_table(oid, relations) for oid in message.relation_oids)
        yield from _fields(message, "cascade", "restart_identity", "xid")
    elif isinstance(message, m.Relation):
        yield f"{_table_name(message.namespace, message.name)} ({', '.join(map(_column, message.columns))})"
        yield f"replica_identity={message.replica_identity.name.lower()}"
        yield from _fields(message, "oid", "xid")
    elif isinstance(message, m.Type):
        yield _table_name(message.namespace, message.name)
        yield from _fields(message, "oid", "xid")
    else:
        yield from _fields(message, *(entry.name for entry in fields(message)))


def _fields(message: m.Message, *names: str) -> Iterator[str]:
    for name in names:
        value = getattr(message, name)
        if value is not None:
            yield f"{name}={_time(value) if name.endswith('_time') else _plain(value)}"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return shown(value.decode(errors="backslashreplace"))
    return shown(value) if isinstance(value, str) else str(value)


def _time(micros: int) -> str:
    try:
        return (_EPOCH + timedelta(microseconds=micros)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except OverflowError:
        return f"{micros} us"


def _column(column: m.RelationColumn) -> str:
    return f"{identifier(column.name)}*" if column.key else identifier(column.name)


def _table(oid: int, relations: Relations) -> str:
    relation = relations.get(oid)
    return f"relation {oid}" if relation is None else _table_name(relation.namespace, relation.name)


def _row(message: m.Insert | m.Update | m.Delete, relations: Relations) -> Iterator[str]:
    relation = relations.get(message.relation_oid)
    yield _table(message.relation_oid, relations)
    old = None if isinstance(message, m.Insert) else message.old
    if old is not None:
        yield "key:" if isinstance(old, m.KeyTuple) else "old:"
        yield from _tuple_values(old, relation)
    if not isinstance(message, m.Delete):
        yield from () if old is None else ("new:",)
        yield from _tuple_values(message.new, relation)
    yield from _fields(message, "xid")


def _tuple_values(image: m.FullTuple | m.KeyTuple, relation: m.Relation | None) -> Iterator[str]:
    names = [identifier(column.name) for column in relation.columns] if relation else []
    for number, value in enumerate(image.values):
        # In a key image, null in a column outside the key means that the value wasn't sent.
        if not (isinstance(image, m.KeyTuple) and isinstance(value, m.Null)):
            name = names[number] if number < len(names) else f"#{number + 1}"
            yield f"{name}={_value(value)}"


def _value(value: m.TupleValue) -> str:
    if isinstance(value, m.Null):
        return NULL
    if isinstance(value, m.UnchangedToast):
        return UNCHANGED
    start = value.data[:_LONGEST]
    text = shown(start.decode(errors="replace")) if isinstance(value, m.Text) else f"\\x{start.hex()}"
    return text if len(value.data) <= _LONGEST else text + ELLIPSIS
