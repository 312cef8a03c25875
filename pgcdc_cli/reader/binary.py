"""Binary values in a capture: those of built-in types become the text that they stand for."""

from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.types.registry import builtin
from pgcdc_cli.types.send import MalformedError, has_reader, text_of

_Value = TypeVar("_Value", bound=m.Value)


def in_text(message: m.Insert | m.Update | m.Delete, relation: m.Relation) -> m.Insert | m.Update | m.Delete:
    """Replace the values that can be read; those of other types stay binary.

    UndecodableError for a value that is not its type's send format.
    """
    match message:
        case m.Insert(new=new):
            return replace(message, new=_full(new, relation))
        case m.Update(old=old, new=new):
            return replace(message, old=old and _old(old, relation), new=_full(new, relation))
        case m.Delete(old=old):
            return replace(message, old=_old(old, relation))


def _old(image: m.KeyTuple | m.FullTuple, relation: m.Relation) -> m.KeyTuple | m.FullTuple:
    if isinstance(image, m.FullTuple):
        return _full(image, relation)
    return m.KeyTuple(_texts(image.values, relation))


def _full(image: m.FullTuple, relation: m.Relation) -> m.FullTuple:
    return m.FullTuple(_texts(image.values, relation))


def _texts(values: tuple[_Value, ...], relation: m.Relation) -> tuple[_Value | m.Text, ...]:
    if len(values) != len(relation.columns) or not any(isinstance(value, m.Binary) for value in values):
        return values
    return tuple(_text(*pair) for pair in zip(values, relation.columns, strict=True))


def _text(value: _Value, column: m.RelationColumn) -> _Value | m.Text:
    pg_type = builtin(column.type_oid, column.typmod)
    if not isinstance(value, m.Binary) or pg_type is None or not has_reader(pg_type):
        return value
    try:
        text = text_of(pg_type, pa.array([value.data], pa.binary()))
    except MalformedError as error:
        reason = f'column "{column.name}" is not what its type sends in binary: {error.reason}'
        raise UndecodableError(f"could not read a row: {reason}", value.data) from None
    return m.Text(text[0].as_py() or b"")
