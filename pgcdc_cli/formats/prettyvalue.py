"""The values of a JSON line as a person reads them."""

import json
from typing import Any, TypeAlias

Change: TypeAlias = dict[str, Any]

NULL = "NULL"
UNCHANGED = "(unchanged)"
_QUOTED = frozenset(["", UNCHANGED])


class Number(str):
    """A number as it was written: a float would round it, and an int refuses thousands of digits."""

    __slots__ = ()


def parse_line(line: str | bytes) -> Change:
    """Read a JSON line, its numbers digit for digit.

    Raises ValueError, or RecursionError where JSON is nested too deeply.
    """
    change: Change = json.loads(line, parse_int=Number, parse_float=Number)
    return change


def image(change: Change, label: str) -> dict[str, str]:
    """Say what the values of the `old` or `new` image look like, by column.

    NULL is SQL's, null is JSON's; a text that could be taken for something else is quoted.
    """
    json_null = change.get("json_null", [])
    values = change.get(label, {})
    return {
        name: "null" if value is None and f"{label}.{name}" in json_null else shown(value)
        for name, value in values.items()
    }


def shown(value: object) -> str:
    """Write one value."""
    if value is None:
        return NULL
    if isinstance(value, str) and not isinstance(value, Number):
        return f'"{value}"' if _is_ambiguous(value) else value
    return _json(value)


def _is_ambiguous(text: str) -> bool:
    return text in _QUOTED or text[0] == " " or text[-1] == " " or text.upper() == NULL


def _json(value: object) -> str:
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(name)}: {_json(member)}" for name, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
