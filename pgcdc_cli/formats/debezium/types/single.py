"""The token of a single value: quick for the most usual types, and else by their column's conversion."""

import re
from collections.abc import Callable

from pgcdc_cli.formats.debezium.types import kind, numbers
from pgcdc_cli.formats.debezium.types.kind import ToJson
from pgcdc_cli.types import kernels

_SPECIAL = re.compile(rb'[\x00-\x1f"\\\x80-\xff]')
_INTEGER = re.compile(rb"-?[0-9]+")


def single_token(to_json: ToJson, value: bytes) -> bytes | None:
    """Convert one wire text, as `to_json` does a column of them; None is null."""
    quick = _QUICK.get(to_json)
    found = None if quick is None else quick(value)
    if found is None:
        found = to_json(kernels.binary([value]))[0].as_py()
    return found


def _string(value: bytes) -> bytes | None:
    return b'"' + value + b'"' if _SPECIAL.search(value) is None else None


def _integer(value: bytes) -> bytes | None:
    return value if _INTEGER.fullmatch(value) else None


_QUICK: dict[ToJson, Callable[[bytes], bytes | None]] = {kind.string: _string, numbers.integers: _integer}
"""None leaves a value to its column's conversion."""
