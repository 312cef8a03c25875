"""The members of a JSON object with the text of their values: number tokens and blanks as they stand."""

import json
import re
from collections.abc import Iterator

# An int refuses thousands of digits.
_DECODER = json.JSONDecoder(parse_int=float)
_BLANKS = re.compile(r"[ \t\n\r]*")


def members(text: str) -> dict[str, str]:
    """Part an object whose members stand close together, as pgcdc writes them; blanks are part of a value.

    Raises ValueError if it is something else, RecursionError where it is nested too deeply.
    """
    return dict(_members(text))


def _members(text: str) -> Iterator[tuple[str, str]]:
    if text == "{}":
        return
    place, mark = 0, "{"
    while mark != "}":
        if text[place : place + 1] != mark:
            raise ValueError(f"no {mark} at character {place}")
        name, colon = _DECODER.raw_decode(text, place + 1)
        if not isinstance(name, str) or text[colon : colon + 1] != ":":
            raise ValueError(f"no member at character {place + 1}")
        place = _value_end(text, colon + 1)
        yield name, text[colon + 1 : place]
        mark = "}" if text[place : place + 1] == "}" else ","
    if place + 1 != len(text):
        raise ValueError(f"more than an object, from character {place + 1} on")


def _value_end(text: str, start: int) -> int:
    _, end = _DECODER.raw_decode(text, _after_blanks(text, start))
    return _after_blanks(text, end)


def _after_blanks(text: str, start: int) -> int:
    blanks = _BLANKS.match(text, start)
    return start if blanks is None else blanks.end()
