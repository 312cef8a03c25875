"""JSON lines as they are read back, their numbers digit for digit, and written again."""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

Change: TypeAlias = dict[str, Any]
"""The object of a line."""


class Number(str):
    """A number as it was written: a float would round it, and an int refuses thousands of digits."""

    __slots__ = ()


def parse_line(line: str | bytes) -> Change:
    """Read a JSON line, its numbers digit for digit.

    Raises ValueError, or RecursionError where JSON is nested too deeply.
    """
    change: Change = json.loads(line, parse_int=Number, parse_float=Number)
    return change


def compact_json(value: object, blank: str = "") -> str:
    """Write what `parse_line` reads; `blank` stands behind commas and colons."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, Mapping):
        members = (f"{compact_json(name)}:{blank}{compact_json(one, blank)}" for name, one in value.items())
        return "{" + f",{blank}".join(members) + "}"
    if isinstance(value, list):
        return "[" + f",{blank}".join(compact_json(one, blank) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)
