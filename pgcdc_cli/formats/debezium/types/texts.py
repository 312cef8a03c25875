"""Text, JSON, UUIDs, bytea, bit strings, hstore, points, and types that Debezium doesn't know, as bytes."""

import base64
import binascii
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.types.java import java_map_order
from pgcdc_cli.formats.debezium.types.kind import (
    NULL,
    PLAIN,
    Converter,
    Kind,
    Loss,
    base64_token,
    inexact,
    json_text,
    named,
    per_value,
    quoted,
    string,
    token,
)
from pgcdc_cli.formats.debezium.types.numeric_types import java_float, java_number
from pgcdc_cli.large_copies import joined
from pgcdc_cli.types import kernels, to_arrow

_UNLIMITED = 2**31 - 1
_PIECE = 6 << 20
"""Bytes encoded at a time, so that other threads can run in between; a multiple of three bytes."""
_EMPTY = pa.scalar(b"", pa.binary())
_ZEROS = kernels.binary([b"", b"\0", b"\0\0"])
_URL_SAFE = np.frombuffer(bytes.maketrans(b"+/", b"-_"), np.uint8)
_HSTORE_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"=>(?:"((?:[^"\\]|\\.)*)"|NULL)(?:, |$)', re.DOTALL)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_GEOMETRIC = frozenset(["point", "line", "lseg", "box", "path", "polygon", "circle"])


JSONB = Converter(string.column, string.each)
"""Converts text like `string`; marks a column as jsonb, in PostgreSQL's output format."""


def text(config: ConnectorConfig, name: str | None = None, to_json: Converter = string) -> Kind:
    """Text as it is; `name` is the semantic type name."""
    schema = {"type": "string"} if name is None else named("string", name)
    return Kind(schema, to_json, b'""', token(config.placeholder), form=PLAIN)


def uuid(config: ConnectorConfig) -> Kind:
    unavailable = token(config.placeholder)
    return Kind(named("string", "io.debezium.data.Uuid"), quoted, b'""', unavailable, form=PLAIN)


def enum(labels: tuple[str, ...], config: ConnectorConfig) -> Kind:
    schema = named("string", "io.debezium.data.Enum", allowed=",".join(labels))
    return Kind(schema, string, b'""', token(config.placeholder), form=PLAIN)


def nothing() -> Kind:
    """Always null, as the connector writes `name` while streaming."""
    return Kind({"type": "string"}, per_value(lambda _: None), b'""', form=inexact("Debezium writes null"))


def encoded(config: ConnectorConfig) -> Callable[[bytes], bytes]:
    """Choose the function that writes bytes under `binary.handling.mode`."""
    return {
        "bytes": base64_token,
        "base64": base64_token,
        "base64-url-safe": lambda data: b'"' + base64.urlsafe_b64encode(data) + b'"',
        "hex": lambda data: b'"' + binascii.hexlify(data) + b'"',
    }[config.binary_handling_mode]


def binary_schema(config: ConnectorConfig) -> dict[str, Any]:
    return {"type": "bytes" if config.binary_handling_mode == "bytes" else "string"}


def bytea(config: ConnectorConfig) -> Kind:
    encode = encoded(config)

    def column(texts: pa.BinaryArray) -> pa.BinaryArray:
        if config.binary_handling_mode == "hex":
            tokens = quoted(kernels.without_start(texts, len("\\x")))
        else:
            alphabet = _URL_SAFE if config.binary_handling_mode == "base64-url-safe" else None
            tokens = _base64_tokens(kernels.coalesce(to_arrow.decode_hex(texts), _EMPTY), alphabet)
        return kernels.nulled_like(tokens, texts)

    to_json = Converter(column, lambda text: encode(bytes.fromhex(text[2:])))
    form = {"form": "bytes", "encoding": config.binary_handling_mode}
    return Kind(binary_schema(config), to_json, b'""', _unavailable_bytes(config), form=form)


def _base64_tokens(column: pa.BinaryArray, alphabet: NDArray[np.uint8] | None) -> pa.BinaryArray:
    """Write each value as quoted base64, in another alphabet if one is given; none may be null."""
    missing = -np.diff(kernels.value_bytes(column)[0]) % 3
    # All values are encoded as one; padded with zeroes, each begins at a multiple of three bytes.
    padded = kernels.join([column, kernels.take(_ZEROS, missing)]) if missing.any() else column
    offsets, data = kernels.value_bytes(padded)
    pieces = (data[at : at + _PIECE].data for at in range(0, len(data), _PIECE))
    letters = np.frombuffer(joined([binascii.b2a_base64(piece, newline=False) for piece in pieces]), np.uint8)
    written = letters.copy() if alphabet is None else alphabet[letters]
    ends = offsets[1:] // 3 * 4
    written[ends[missing > 0] - 1] = written[ends[missing > 1] - 2] = ord("=")
    return quoted(kernels.from_bytes(offsets // 3 * 4, written))


def unknown(type_name: str, config: ConnectorConfig) -> Kind:
    """The bytes of a value's text, as the JDBC driver prints it."""
    encode = encoded(config)
    printed = _geometric if type_name in _GEOMETRIC else str
    to_json = per_value(lambda text: encode(printed(text).encode()))
    form = {"form": "text", "encoding": config.binary_handling_mode}
    if type_name in _GEOMETRIC:
        form = inexact("Debezium prints numbers as Java does")
    return Kind(binary_schema(config), to_json, b'""', unavailable=_unavailable_bytes(config), form=form)


def _unavailable_bytes(config: ConnectorConfig) -> bytes:
    if config.binary_handling_mode == "bytes":
        return base64_token(config.placeholder_octets)
    return token(config.placeholder) if config.binary_handling_mode == "hex" else NULL


def _geometric(text: str) -> str:
    """Print a geometric value's numbers as Java does."""
    return _NUMBER.sub(lambda number: java_number(number[0]), text)


def bits(typmod: int, *, varying: bool = False) -> Kind:
    """A boolean for a length of 1; else little-endian bytes without zero bytes at the end."""
    if typmod == 1:
        loss = Loss("^$", "Debezium has no boolean for a bit string without bits") if varying else None
        return Kind({"type": "boolean"}, _bit, b"false", form={"form": "bit"}, loss=loss)
    schema = named("bytes", "io.debezium.data.Bits", length=str(typmod if typmod > 0 else _UNLIMITED))
    exact = typmod > 0 and not varying
    form = {"form": "bits", "length": typmod} if exact else inexact("Debezium leaves out zeros at the front")
    return Kind(schema, per_value(_bits), b'""', form=form)


def _bit(column: pa.BinaryArray) -> pa.BinaryArray:
    tokens = kernels.if_else(kernels.equal(column, b"1"), b"true", b"false")
    return kernels.null_where(tokens, kernels.as_mask(kernels.equal(column, b"")))


def _bits(text: str) -> bytes:
    return base64_token(int(text or "0", 2).to_bytes(len(text) // 8 + 1, "little").rstrip(b"\0"))


_POINT: dict[str, Any] = {
    "type": "struct",
    "fields": [
        {"type": "double", "optional": False, "field": "x"},
        {"type": "double", "optional": False, "field": "y"},
        {"type": "bytes", "optional": True, "field": "wkb"},
        {"type": "int32", "optional": True, "field": "srid"},
    ],
    "name": "io.debezium.data.geometry.Point",
    "version": 1,
    "doc": "Geometry (POINT)",
}


def point() -> Kind:
    form = inexact("Debezium prints numbers as Java does")
    return Kind(_POINT, per_value(_point), _point("(0,0)"), form=form)


def _point(text: str) -> bytes:
    x, _, y = text.strip("()").partition(",")
    # Little-endian well-known binary: byte order, type 1 (point), both coordinates.
    wkb = struct.pack("<BIdd", 1, 1, float(x), float(y))
    numbers = java_float(x), java_float(y)
    return b'{"x":%s,"y":%s,"wkb":%s,"srid":null}' % (*numbers, base64_token(wkb))


_STRING_MAP: dict[str, Any] = {
    "type": "map",
    "keys": {"type": "string", "optional": False},
    "values": {"type": "string", "optional": True},
}


def hstore(config: ConnectorConfig) -> Kind:
    unavailable: object = {config.placeholder: config.placeholder}
    if config.hstore_handling_mode == "map":
        convert = per_value(lambda text: token(parse_hstore(text)))
        return Kind(_STRING_MAP, convert, b"{}", token(unavailable), form={"form": "hstore"})
    to_json = per_value(lambda text: token(json_text(parse_hstore(text))))
    schema = named("string", "io.debezium.data.Json")
    return Kind(schema, to_json, b'"{}"', token(json_text(unavailable)), form={"form": "hstore"})


def parse_hstore(text: str) -> dict[str, str | None]:
    """Parse `"a"=>"1", "b"=>NULL`; keys are in the order of the HashMap that the driver puts them in."""
    pairs = {
        _unescaped(pair[1]): None if pair[2] is None else _unescaped(pair[2])
        for pair in _HSTORE_PAIR.finditer(text)
    }
    return {key: pairs[key] for key in java_map_order(pairs)}


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
