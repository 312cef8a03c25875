"""Payloads of an outbox as JSON of their own, each with a schema that is read off it.

They are looked at one by one; but most of those that are jsonb, and whose schema nobody asks for, as columns.
"""

import json
import math
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import numpy as np
import pyarrow as pa

from pgcdc_cli.formats.debezium.types.connect_schemas import Schema, struct
from pgcdc_cli.formats.debezium.types.kind import Converter, ToJson, single_token, token
from pgcdc_cli.formats.debezium.types.numeric_types import java_float
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans

_INT32, _INT64 = 2**31, 2**63

Json: TypeAlias = "dict[str, Json] | list[Json] | str | bool | int | float | None"


class _UnfitError(ValueError):
    """JSON that no Connect schema describes."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """How payloads are expanded: `nulls` says if members that are null stay, `name` is the payload's column.

    `unnamed` is what names begin with where they have nothing to begin with.
    """

    name: str
    nulls: bool
    unnamed: str

    def expand(self, text: str) -> tuple[Schema, bytes] | None:
        """Give a payload's schema and its token; None where it is no object that a schema describes."""
        if not text.startswith("{"):
            return None
        try:
            value = json.loads(text, parse_constant=_refuse)
            schema = self._schema(self.name, value)
            return None if schema is None else (schema, _token(value, schema))
        except (ValueError, RecursionError):
            return None

    def _schema(self, name: str | None, value: Json) -> Schema | None:
        """Describe a value; None where it is left out."""
        if isinstance(value, dict):
            begin = self.unnamed if name is None else f"{name}."
            described = {key: self._schema(begin + key, member) for key, member in value.items()}
            fields = [schema | {"field": key} for key, schema in described.items() if schema is not None]
            return struct(fields, name, optional=True)
        if isinstance(value, list):
            return {"type": "array", "items": self._items(name, value), "optional": True} if value else None
        if value is None:
            return {"type": "bytes", "optional": True} if self.nulls else None
        return {"type": _plain_type(value), "optional": True}

    def _items(self, name: str | None, values: list[Json]) -> Schema:
        """Describe the elements of an array, which are alike."""
        some = [value for value in values if value is not None]
        if len({_kind(value) for value in some}) > 1:
            raise _UnfitError
        if not some or not isinstance(some[0], dict):
            schema = self._schema(None, some[0] if some else None)
            if schema is None:
                raise _UnfitError
            return schema
        schemas = [self._schema(name, value) for value in some]
        distinct = [one for number, one in enumerate(schemas) if one and one not in schemas[:number]]
        return distinct[0] if len(distinct) == 1 else _merged(distinct)


def _merged(schemas: list[Schema]) -> Schema:
    """Put the fields of several structs together; what is null in one may be something else in another."""
    fields: dict[str, Schema] = {}
    for field in (field for schema in schemas for field in schema["fields"]):
        known = fields.get(field["field"])
        if known is None or (known["type"] == "bytes" and field["type"] != "bytes"):
            fields[field["field"]] = field
    return struct(list(fields.values()), schemas[0].get("name"))


def _kind(value: Json) -> str:
    """Say what elements of an array have in common."""
    if isinstance(value, (dict, list)):
        return type(value).__name__
    return _plain_type(value)


def _plain_type(value: Json) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return "int32" if -_INT32 <= value < _INT32 else "int64"
    return "double"


def _token(value: Json, schema: Schema) -> bytes:
    """Write a value by its schema."""
    if value is None:
        if not schema["optional"]:
            raise _UnfitError
        return b"null"
    if schema["type"] == "struct":
        return _object(value, schema)
    if schema["type"] == "array" and isinstance(value, list):
        return b"[" + b",".join(_token(element, schema["items"]) for element in value) + b"]"
    if schema["type"] != _kind(value) or (schema["type"] == "double" and isinstance(value, int)):
        raise _UnfitError
    return _double(value) if isinstance(value, float) else token(value)


def _double(value: float) -> bytes:
    if math.isinf(value):
        raise _UnfitError
    return java_float(repr(value))


def _object(value: Json, schema: Schema) -> bytes:
    if not isinstance(value, dict):
        raise _UnfitError
    members = [
        token(field["field"]) + b":" + _token(value.get(field["field"]), field) for field in schema["fields"]
    ]
    return b"{" + b",".join(members) + b"}"


def _refuse(_name: str) -> NoReturn:
    raise _UnfitError


_AWKWARD = (
    # Escapes, arrays, and characters that Jackson escapes.
    r"[\\\[\xF0-\xF4]"
    # Numbers that Java prints otherwise.
    r"|: -?(?:\d{19}|\d{8,}\.|0\.000)|\.\d{8}|\.\d+0[,}]"
)
"""Found in every jsonb that isn't written like its token, blanks apart; and in some whose texts look so."""
_MANY_OBJECTS = r"(?:\{[^{]*){100}"
"""Fewer are never nested too deeply to be looked at."""


def columnar(one_by_one: ToJson, *, nulls: bool) -> Converter:
    """Convert what PostgreSQL printed of jsonb objects, most of them at once, and the rest one by one.

    `nulls` says if members that are null stay.
    """
    awkward = _AWKWARD if nulls else f"null|{_AWKWARD}"

    def column(values: pa.BinaryArray) -> pa.BinaryArray:
        plain = _are_objects(values) & ~kernels.as_mask(kernels.matches(values, awkward))
        if not plain.any():
            return one_by_one(values)
        compact = _without_blanks(values.filter(pa.array(plain)))
        if plain.all():
            return compact
        tokens = kernels.replace_with_mask(values, plain, compact)
        return kernels.replace_with_mask(tokens, ~plain, one_by_one(values.filter(pa.array(~plain))))

    return Converter(column, lambda text: single_token(one_by_one, text.encode()))


def _are_objects(values: pa.BinaryArray) -> Booleans:
    """Say which are objects that have no more than some others in them; null is none."""
    few = ~kernels.as_mask(kernels.matches(values, _MANY_OBJECTS))
    return few & kernels.as_mask(kernels.matches(values, r"^\{"))


def _without_blanks(values: pa.BinaryArray) -> pa.BinaryArray:
    """Leave out the blanks between tokens. No text has a quotation mark in it, and no value is empty."""
    offsets, data = kernels.value_bytes(values)
    in_text = np.bitwise_xor.accumulate((data == ord('"')).view(np.uint8)).view(np.bool_)
    keep = in_text | (data != ord(" "))
    lengths = np.add.reduceat(keep, offsets[:-1], dtype=np.int64)
    return kernels.from_bytes(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), data[keep])
