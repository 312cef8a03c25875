"""Masks, hashes and truncation: `column.mask.*` and `column.truncate.*`.

They apply to the value that the connector would write, not to the server's text, also to a missing one; never
to keys. Only text is masked or hashed (judged by its JDBC type), but the schema of every column that a mask
lists is marked as masked.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa

from pgcdc_cli.formats.debezium.connector_config import MOST_INT
from pgcdc_cli.formats.debezium.types.connect_schemas import in_order
from pgcdc_cli.formats.debezium.types.kind import Field, inexact, token
from pgcdc_cli.types import kernels
from pgcdc_cli.types.pg_type import PgType

Rewrite = Callable[[str], str]
_RULE = re.compile(
    r"column\.(?:(?P<action>truncate\.to|mask\.with)\.(?P<chars>[0-9]{1,10})\.chars"
    r"|mask\.hash(?P<newer>\.v2)?\.(?P<algorithm>[^.]+)\.with\.salt\.(?P<salt>.+))"
)
_ALGORITHMS = {
    "SHA": "sha1", "SHA1": "sha1", "SHA-1": "sha1", "SHA-224": "sha224", "SHA-256": "sha256",
    "SHA-384": "sha384", "SHA-512": "sha512", "SHA-512/224": "sha512_224", "SHA-512/256": "sha512_256",
    "SHA224": "sha224", "SHA256": "sha256", "SHA384": "sha384", "SHA512": "sha512",
    "SHA512/224": "sha512_224", "SHA512/256": "sha512_256", "SHA3-224": "sha3_224", "SHA3-256": "sha3_256",
    "SHA3-384": "sha3_384", "SHA3-512": "sha3_512", "MD5": "md5",
}  # fmt: skip
_JDBC_TEXT = frozenset(["bpchar", "char", "varchar", "text", "name"])
_SHORT_STRING, _LONG_STRING = b"\x74", b"\x7c"


class ColumnMask(NamedTuple):
    """`action` is truncate, mask or hash; `rank` is its place in Debezium's order of looking for rules."""

    action: str
    chars: int
    hashed: Rewrite
    rank: int


def parse_mask(rule: str) -> ColumnMask:
    """Parse a property name such as `column.mask.with.5.chars`. Raises ValueError for any other."""
    match = _RULE.fullmatch(rule)
    if match is None:
        raise ValueError("it names no mask")
    if match["action"] is not None:
        chars = int(match["chars"])
        if chars > MOST_INT:
            raise ValueError(f"it names more than {MOST_INT} characters")
        return (
            ColumnMask("mask", chars, str, 1)
            if match["action"] == "mask.with"
            else ColumnMask("truncate", chars, str, 0)
        )
    algorithm = _ALGORITHMS.get(match["algorithm"].upper())
    if algorithm is None:
        raise ValueError(f'"{match["algorithm"]}" is no hash algorithm, such as SHA-256')
    newer = match["newer"] is not None
    return ColumnMask("hash", 0, _hash(algorithm, match["salt"].encode(), newer=newer), 5 if newer else 4)


def _hash(algorithm: str, salt: bytes, *, newer: bool) -> Rewrite:
    octets = str.encode if newer else _serialised
    return lambda text: hashlib.new(algorithm, salt + octets(text), usedforsecurity=False).hexdigest()


def _serialised(text: str) -> bytes:
    """Serialise a string as Java does: length and modified UTF-8, which has no zero byte."""
    units = "".join(map(_surrogates, text))
    octets = units.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    short = len(octets) < 1 << 16
    size = len(octets).to_bytes(2 if short else 8, "big")
    return b"\xac\xed\x00\x05" + (_SHORT_STRING if short else _LONG_STRING) + size + octets


def _surrogates(character: str) -> str:
    if ord(character) < 1 << 16:
        return character
    high, low = divmod(ord(character) - 0x10000, 0x400)
    return chr(0xD800 + high) + chr(0xDC00 + low)


def masked(field: Field, mask: ColumnMask, type_: PgType, length: int, *, newer: bool) -> Field:
    """Apply a mask to a column's field; `length` is the column's length as the JDBC driver reports it.

    `newer` is Debezium 3.4, which truncates bytes, too, but neither bit strings nor the placeholder for
    unchanged TOAST values.
    """
    if mask.action == "truncate":
        return field if length <= mask.chars else _truncated(field, mask.chars, newer=newer)
    marked = with_parameters(field, {"masked": "true"})
    if type_.name not in _JDBC_TEXT and type_.category != "enum":
        return marked
    if mask.action == "hash":
        return _changed(marked, lambda text: _cut(mask.hashed(text), length), "column.mask.hash")
    stars = token("*" * mask.chars)
    constant = _each(lambda _: stars)
    form = inexact("column.mask.with")
    return replace(
        marked, to_json=constant, null=stars, absent=stars, unavailable=stars, form=form, loss=None
    )


def _truncated(field: Field, length: int, *, newer: bool) -> Field:
    marked = with_parameters(field, {"truncateLength": str(length)})
    if field.schema["type"] == "string":
        return _changed(marked, lambda text: _cut(text, length), "column.truncate")
    if not newer or field.schema["type"] != "bytes" or "name" in field.schema:
        return marked
    cut = _changed(marked, lambda text: _cut_bytes(text, length), "column.truncate")
    return replace(cut, unavailable=field.unavailable)


def with_parameters(field: Field, more: Mapping[str, str]) -> Field:
    """Add parameters to a field's schema."""
    parameters = {**field.schema.get("parameters", {}), **more}
    return replace(field, schema=in_order({**field.schema, "parameters": parameters}))


def _changed(field: Field, change: Rewrite, why: str) -> Field:
    """Rewrite a field's texts; they can't be read back then.

    An optional field's default in place of null isn't rewritten: the converter adds it after the mask.
    """

    def changed(found: bytes) -> bytes:
        return found if found == b"null" else token(change(json.loads(found)))

    each, to_json = _each(changed), field.to_json
    optional = field.schema["optional"]
    return replace(
        field,
        to_json=lambda column: each(to_json(column)),
        null=field.null if optional else changed(field.null),
        absent=field.absent if optional else changed(field.absent),
        unavailable=changed(field.unavailable),
        form=inexact(why),
        loss=None,
    )


def _each(change: Callable[[bytes], bytes]) -> Callable[[pa.BinaryArray], pa.BinaryArray]:
    def changed(column: pa.BinaryArray) -> pa.BinaryArray:
        return kernels.binary([None if one is None else change(one) for one in column.to_pylist()])

    return changed


def _cut(text: str, length: int) -> str:
    """Cut to a number of UTF-16 units, as Java counts, even in the middle of a character."""
    units = text.encode("utf-16-be", "surrogatepass")[: 2 * length]
    return units.decode("utf-16-be", "surrogatepass")


def _cut_bytes(text: str, length: int) -> str:
    """Cut bytes that are given in base64."""
    return base64.b64encode(base64.b64decode(text)[:length]).decode()
