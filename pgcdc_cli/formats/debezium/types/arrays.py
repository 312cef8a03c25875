"""Arrays, whose elements are converted by their type; and pgvector's vectors, known since Debezium 3.4.

For an array of several dimensions the connector writes as many elements as the outermost dimension has, all
null (for what it writes as text, a Java object's address, which differs in each run). If its elements can't
be null, the array is. So it is here.
"""

import hashlib
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.types.connect_schemas import in_order
from pgcdc_cli.formats.debezium.types.kind import (
    FOUR_BYTES,
    NULL,
    Converter,
    Form,
    Kind,
    Loss,
    at_once,
    base64_token,
    inexact,
    named,
    per_value,
    single_token,
    string,
    token,
)
from pgcdc_cli.formats.debezium.types.numeric_types import INTEGERS, floating, java_float
from pgcdc_cli.types import kernels
from pgcdc_cli.types.array_literals import Elements, as_json, parse_array, split_arrays
from pgcdc_cli.types.kernels import Booleans
from pgcdc_cli.types.pg_type import PgType

_TEXTS = frozenset(
    [
        "text", "varchar", "bpchar", "char", "json", "jsonb", "uuid", "inet", "cidr", "macaddr", "macaddr8",
        "ltree", "int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange",
    ]
)  # fmt: skip
"""Types whose elements the connector makes text of, whatever they are."""
_NOT_FINITE = r"^(NaN|-?Infinity)$"
_LOWER_BOUND = r"^\[[+-]?\d+:[+-]?\d+\]="
_NULL = pa.scalar(NULL, pa.binary())
_JAVA_ARRAY = '"[Ljava.lang.String;@0"'


def array(element: PgType, kind: Kind, config: ConnectorConfig, *, optional: bool = True) -> Kind:
    """Lists of elements of `kind`; `optional`: an element may be null, which is never so for ltree."""
    no_nulls = not optional or element.name == "ltree"
    schema = {"type": "array", "items": in_order({**kind.schema, "optional": optional})}
    delimiter = ";" if element.name == "box" else ","
    inner = _inner_array(element, kind, optional=optional)

    def nested(text: str) -> bytes | None:
        if inner is None or (element.name == "numeric" and re.search("NaN|Infinity", text)):
            return None
        return _several_dimensions(text, inner)

    def to_json(column: pa.BinaryArray) -> pa.BinaryArray:
        elements = _split(column, delimiter)
        tokens = kind.to_json(elements.texts)
        listed = kernels.join_lists(elements.offsets, kernels.coalesce(tokens, _NULL), b",")
        null = kernels.as_mask(column.is_null())
        if no_nulls:
            null = null | elements.rows_with(kernels.as_mask(tokens.is_null()))
        if element.name == "numeric":
            null = null | elements.rows_with(kernels.as_mask(kernels.matches(elements.texts, _NOT_FINITE)))
        shown = kernels.null_where(kernels.as_binary(kernels.join([b"[", listed, b"]"])), null)
        return _with_several_dimensions(shown, column, elements.irregular, nested)

    def each(text: str) -> bytes | None:
        elements = parse_array(re.sub(_LOWER_BOUND, "", text), delimiter)
        if elements is None:
            return nested(text)
        tokens = [None if one is None else single_token(kind.to_json, one.encode()) for one in elements]
        if element.name == "numeric" and any(re.search(_NOT_FINITE, one) for one in elements if one):
            return None
        if no_nulls and None in tokens:
            return None
        return b"[" + b",".join(NULL if one is None else one for one in tokens) + b"]"

    unavailable = _unavailable(element, config)
    loss = _loss(element, kind, no_nulls=no_nulls)
    convert = _converter(kind, Converter(to_json, each), no_nulls=no_nulls)
    return Kind(schema, convert, b"[]", unavailable, form=_form(kind.form), loss=loss)


_JSON = np.frombuffer(bytes.maketrans(b"{}NUL", b"[]nul"), np.uint8)
"""Turns an array of integers into JSON, which has other brackets, and a small `null`."""


def _converter(kind: Kind, convert: Converter, *, no_nulls: bool) -> Converter:
    """Choose the converter: `convert`, or one that needn't split arrays of integers or texts."""
    if no_nulls:
        return convert
    if kind.to_json is INTEGERS:
        return at_once(_has_one_dimension, _integers, convert)
    return at_once(_has_no_escapes, as_json, convert) if kind.to_json is string else convert


def _integers(column: pa.BinaryArray) -> pa.BinaryArray:
    offsets, data = kernels.value_bytes(column)
    return kernels.from_bytes(offsets, _JSON[data], kernels.validity(column))


def _has_no_escapes(column: pa.BinaryArray) -> bool:
    """Whether arrays have one dimension, and need no escapes, neither as literals nor in JSON.

    Raises PgcdcError (PROTOCOL) for invalid UTF-8.
    """
    data = kernels.all_bytes(column)
    if not len(data) or data.min() < ord(" ") or data.max() >= FOUR_BYTES or (data == ord("\\")).any():
        return False
    kernels.as_text(column)
    return _has_one_dimension(column)


def vector(type_: str) -> Kind:
    """int2vector and oidvector: always empty arrays, since the connector finds no elements in them."""
    schema = {"type": "array", "items": {"type": type_, "optional": False}}
    form = inexact("Debezium writes no elements")
    return Kind(schema, per_value(lambda _: b"[]"), b"[]", form=form)


_OLD_YEAR = r"[{,\"](0\d{3}|1[0-4]\d\d|15[0-7]\d|158[0-2])-| BC"
_LOST = {
    "numeric": "NaN|Infinity",
    "time": "24:00",
    "date": r"infinity|1582-10-(0[5-9]|1[0-4])| BC",
    "timestamp": _OLD_YEAR,
    "timestamptz": f"{_OLD_YEAR}|-infinity",
}
"""Texts in arrays, by element type, that the driver doesn't read exactly, or counts in another calendar."""


def _form(items: Form) -> Form:
    return items if items["form"] is None else {"form": "array", "items": items}


def _loss(element: PgType, kind: Kind, *, no_nulls: bool) -> Loss:
    """Describe what arrays lose; the patterns also match text elements that look like it."""
    patterns = [r"^(\{\{|\[)"]
    patterns += ["[{,]NULL[,}]"] if no_nulls else []
    patterns += [_LOST[element.name]] if element.name in _LOST else []
    if kind.form["form"] == "variable":
        patterns += [r"\.\d*0[,}]"]
    why = "Debezium's arrays have one dimension and not every element"
    return Loss("|".join(patterns), why, _has_one_dimension if len(patterns) == 1 else None)


def _has_one_dimension(column: pa.BinaryArray) -> bool:
    """Whether all arrays have one dimension, and no bounds."""
    offsets, data = kernels.value_bytes(column)
    starts = offsets[:-1][np.diff(offsets) > 0]
    return not bool(((data[starts] != ord("{")) | (data[starts + 1] == ord("{"))).any())


def _split(column: pa.BinaryArray, delimiter: str) -> Elements:
    """Split arrays, whatever their lower bounds."""
    found = split_arrays(column, delimiter)
    if not found.irregular.any():
        return found
    return split_arrays(kernels.replace_pattern(column, _LOWER_BOUND, ""), delimiter)


def _with_several_dimensions(
    shown: pa.BinaryArray, column: pa.BinaryArray, irregular: Booleans, nested: Callable[[str], bytes | None]
) -> pa.BinaryArray:
    if not irregular.any():
        return shown
    texts = column.filter(pa.array(irregular))
    counted = kernels.binary([nested(text.as_py().decode()) for text in texts])
    return kernels.replace_with_mask(shown, irregular, counted)


def _inner_array(element: PgType, kind: Kind, *, optional: bool) -> str | None:
    """Find what an array within an array is written as; None if the outermost array is null then."""
    text = optional and element.name in _TEXTS
    if text or element.category == "enum" or kind.schema.get("name") == "io.debezium.data.Tsvector":
        return _JAVA_ARRAY
    return "null" if optional else None


def _several_dimensions(text: str, inner: str) -> bytes:
    """Write `inner` as often as the outermost dimension has elements."""
    body = text.partition("=")[2] if text.startswith("[") else text
    depth = outer = 0
    quoted = escaped = False
    for character in body:
        if escaped or character == "\\":
            escaped = not escaped
        elif character == '"':
            quoted = not quoted
        elif not quoted and character in "{}":
            depth += 1 if character == "{" else -1
            outer += character == "{" and depth == 2
    return f"[{','.join([inner] * outer)}]".encode()


def _unavailable(element: PgType, config: ConnectorConfig) -> bytes:
    """Make the placeholder for an unchanged TOAST array of this type; null if the connector has none."""
    placeholder = config.placeholder
    octets = config.placeholder_octets
    texts = {"text", "varchar", "json", "jsonb"}
    if element.name in texts or (element.name == "bpchar" and config.debezium_version != "2.5"):
        return b"[" + token(placeholder) + b"]"
    if element.name == "bytea" and config.binary_handling_mode == "bytes":
        return b"[" + base64_token(octets) + b"]"
    if element.name in {"int4", "int8"} or (
        element.name == "date" and config.time_precision_mode not in {"connect", "isostring"}
    ):
        # Java's bytes are signed.
        return token([octet - 256 if octet > 127 else octet for octet in octets])
    if element.name == "uuid":
        return token([str(_name_uuid(octets))])
    return NULL


def _name_uuid(name: bytes) -> uuid.UUID:
    """Make `UUID.nameUUIDFromBytes`: the MD5 of just the bytes, without a namespace."""
    return uuid.UUID(bytes=hashlib.md5(name, usedforsecurity=False).digest(), version=3)


_CUT = (r"(\.\d{3})\d+$", r"\1"), (r"(\.\d*?)0+$", r"\1"), (r"\.$", ""), ("^24", "00")


def cut_to_millis(kind: Kind, typmod: int) -> Kind:
    """Times of day in arrays: cut to milliseconds, with 24:00 as the start of the day."""

    def to_json(column: pa.BinaryArray) -> pa.BinaryArray:
        for pattern, new in _CUT:
            column = kernels.replace_pattern(column, pattern, new)
        return kind.to_json(column)

    form = kind.form if 0 <= typmod <= 3 else inexact("Debezium cuts times in arrays to milliseconds")
    return replace(kind, to_json=to_json, form=form)


_LARGEST_INT16 = 2**15 - 1

_SPARSE: dict[str, Any] = named("struct", "io.debezium.data.SparseDoubleVector") | {
    "fields": [
        {"type": "int16", "optional": False, "field": "dimensions"},
        {
            "type": "map",
            "keys": {"type": "int16", "optional": False},
            "values": {"type": "double", "optional": False},
            "optional": False,
            "field": "vector",
        },
    ],
    "doc": "Sparse double vector",
}


def dense_vector(type_: str, name: str) -> Kind:
    """`vector` and `halfvec`: a list of numbers of one Connect type, such as `[1.0,2.5]`."""
    number, java = floating(type_).to_json, np.float32 if type_ == "float" else np.float64
    schema = named("array", name) | {"items": {"type": type_, "optional": False}}

    def to_json(column: pa.BinaryArray) -> pa.BinaryArray:
        numbers = split_arrays(kernels.replace_pattern(column, r"^\[(.*)\]$", r"{\1}"), ",")
        listed = kernels.join_lists(numbers.offsets, number(numbers.texts), b",")
        return kernels.nulled_like(kernels.as_binary(kernels.join([b"[", listed, b"]"])), column)

    def each(text: str) -> bytes:
        return b"[" + b",".join(java_float(one, java) for one in text[1:-1].split(",")) + b"]"

    form = inexact("Debezium prints numbers as Java does")
    return Kind(schema, Converter(to_json, each), b"[]", form=form)


def sparse_vector() -> Kind:
    """`sparsevec`: dimensions, and pairs of index and number; null for more than a Java short holds.

    The connector's order of the pairs differs in each run; here they are sorted, as the server prints them.
    """
    form = inexact("Debezium prints numbers as Java does")
    return Kind(_SPARSE, per_value(_sparse), form=form)


def _sparse(text: str) -> bytes | None:
    numbers, _, dimensions = text.rpartition("/")
    if int(dimensions) > _LARGEST_INT16:
        return None
    pairs = (pair.partition(":") for pair in numbers[1:-1].split(",") if pair)
    listed = (b"[%s,%s]" % (index.encode(), java_float(number)) for index, _, number in pairs)
    return b'{"dimensions":%s,"vector":[%s]}' % (dimensions.encode(), b",".join(listed))
