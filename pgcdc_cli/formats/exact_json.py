"""Read JSON lines with the digits of their numbers kept, and write them again."""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

Change: TypeAlias = dict[str, Any]
"""The object of a line."""


class Number(str):
    """A number's text: a float would round it, and int() refuses more than some thousand digits."""

    __slots__ = ()


def parse_line(line: str | bytes) -> Change:
    """Parse a JSON line, keeping the digits of its numbers.

    Raises ValueError for invalid JSON, and RecursionError for JSON that is nested too deeply.
    """
    change: Change = json.loads(line, parse_int=Number, parse_float=Number)
    return change


def compact_json(value: object, blank: str = "") -> str:
    """Write a value that `parse_line` read; `blank` follows commas and colons."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, Mapping):
        members = (f"{compact_json(name)}:{blank}{compact_json(one, blank)}" for name, one in value.items())
        return "{" + f",{blank}".join(members) + "}"
    if isinstance(value, list):
        return "[" + f",{blank}".join(compact_json(one, blank) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)
