"""One line for each decoded pgoutput message: what `show` prints of a raw capture."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta

from pgcdc_cli.formats.prettyvalue import NULL, UNCHANGED, shown
from pgcdc_cli.formats.style import ELLIPSIS, Style, shorten
from pgcdc_cli.pgoutput import messages as m

Relations = Mapping[int, m.Relation]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST = 60
"""Bytes of a value that are shown."""

_WORDS = re.compile(r"(?<=[a-z])(?=[A-Z])")


def render_message(message: m.Message, relations: Relations, style: Style) -> str:
    """Render a message as one line, without its end. `relations`, by OID, are those seen before it."""
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
        yield f"{message.namespace}.{message.name} ({', '.join(map(_column, message.columns))})"
        yield f"replica_identity={message.replica_identity.name.lower()}"
        yield from _fields(message, "oid", "xid")
    elif isinstance(message, m.Type):
        yield f"{message.namespace}.{message.name}"
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
    return f"{column.name}*" if column.key else column.name


def _table(oid: int, relations: Relations) -> str:
    relation = relations.get(oid)
    return f"relation {oid}" if relation is None else f"{relation.namespace}.{relation.name}"


def _row(message: m.Insert | m.Update | m.Delete, relations: Relations) -> Iterator[str]:
    relation = relations.get(message.relation_oid)
    yield _table(message.relation_oid, relations)
    old = None if isinstance(message, m.Insert) else message.old
    if old is not None:
        yield "key:" if isinstance(old, m.KeyTuple) else "old:"
        yield from _values(old, relation)
    if not isinstance(message, m.Delete):
        yield from () if old is None else ("new:",)
        yield from _values(message.new, relation)
    yield from _fields(message, "xid")


def _values(image: m.FullTuple | m.KeyTuple, relation: m.Relation | None) -> Iterator[str]:
    names = [column.name for column in relation.columns] if relation else []
    for number, value in enumerate(image.values):
        # In a key image the columns outside of the key are null, which says nothing of them.
        if not (isinstance(image, m.KeyTuple) and isinstance(value, m.Null)):
            name = names[number] if number < len(names) else f"#{number + 1}"
            yield f"{name}={_value(value)}"


def _value(value: m.Value) -> str:
    if isinstance(value, m.Null):
        return NULL
    if isinstance(value, m.UnchangedToast):
        return UNCHANGED
    start = value.data[:_LONGEST]
    text = shown(start.decode(errors="replace")) if isinstance(value, m.Text) else f"\\x{start.hex()}"
    return text if len(value.data) <= _LONGEST else text + ELLIPSIS
