"""A decoded row as JSON members: `"key":{...},"old":{...},"new":{...},"unchanged":[...]`."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.types.convert import json_kind
from pgcdc_cli.types.registry import builtin

Image: TypeAlias = m.FullTuple | m.KeyTuple

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_LINE_BREAKS = str.maketrans("\n\r", "  ")


def row_members(relation: m.Relation, old: Image | None, new: Image | None) -> str:
    """Give what follows the table's name in a line, each member with a comma before it.

    Values of types that aren't built in are strings; the key is what identifies the row on the wire.
    """
    members = [
        _member("key", _object(_key(relation, new or old))),
        _member("old", _object(_sent(relation, old))),
        _member("new", _object(_sent(relation, new))),
        _member("unchanged", _names(relation, new)),
    ]
    return "".join(members)


def _member(name: str, content: str | None) -> str:
    return "" if content is None else f',"{name}":{content}'


def _object(values: Iterable[tuple[str, str]] | None) -> str | None:
    if values is None:
        return None
    return "{" + ",".join(f"{quote(name)}:{value}" for name, value in values) + "}"


def _key(relation: m.Relation, image: Image | None) -> list[tuple[str, str]] | None:
    """Under REPLICA IDENTITY FULL every column is flagged, and the capture doesn't tell the key."""
    names = {column.name for column in relation.columns if column.key}
    if not names or image is None or relation.replica_identity is m.ReplicaIdentity.FULL:
        return None
    return [(name, value) for name, value in _sent(relation, image) or () if name in names]


def _sent(relation: m.Relation, image: Image | None) -> list[tuple[str, str]] | None:
    return None if image is None else list(_values(relation, image))


def _values(relation: m.Relation, image: Image) -> Iterator[tuple[str, str]]:
    for column, value in zip(relation.columns, image.values, strict=True):
        match value:
            case m.Null() if isinstance(image, m.FullTuple) or column.key:
                yield column.name, "null"
            case m.Text():
                yield column.name, _fragment(column, value.data.decode())
            case m.Binary():
                yield column.name, quote("\\x" + value.data.hex())
            case _:
                pass


def _names(relation: m.Relation, image: Image | None) -> str | None:
    if image is None:
        return None
    columns = zip(relation.columns, image.values, strict=True)
    names = [column.name for column, value in columns if isinstance(value, m.UnchangedToast)]
    return json.dumps(names, ensure_ascii=False, separators=(",", ":")) if names else None


def _fragment(column: m.RelationColumn, text: str) -> str:
    pg_type = builtin(column.type_oid, column.typmod)
    kind = "string" if pg_type is None else json_kind(pg_type)
    if kind == "json":
        return text.translate(_LINE_BREAKS)
    if kind == "bool" and text in ("t", "f"):
        return "true" if text == "t" else "false"
    if kind in ("number", "float") and _NUMBER.fullmatch(text):
        return text
    return quote(text)


def quote(text: str) -> str:
    """Make a JSON string, UTF-8 as it is."""
    return json.dumps(text, ensure_ascii=False)
