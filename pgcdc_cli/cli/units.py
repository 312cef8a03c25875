"""Parse values of options: sizes and times as in PostgreSQL's settings (`128MB`, `1.5h`), LSNs, counts.

All functions raise a usage error for anything else.
"""

import math
import re
from collections.abc import Callable

from pgcdc_cli.cli.command_tree import usage_error
from pgcdc_cli.lsn import Lsn

_NUMBER = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]*)")
_COUNT = re.compile("[0-9]{1,18}")
_OCTAL = re.compile("[0-7]{1,9}")
_BYTES = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def checked(read: Callable[[str], object]) -> Callable[[str | None], str | None]:
    """Make a callback for an option, so that an error of `read` is reported with the option's name.

    The value stays text. With Typer's `parser` it would have the type of the result, and so would the
    default, which the help shows as it is; and Typer would import Pydantic for each run.
    """

    def callback(value: str | None) -> str | None:
        if value is not None:
            read(value)
        return value

    return callback


def size(text: str) -> int:
    """Parse a size into bytes, 1 or more. Without a unit, 1024 or more: 10 is meant for 10MB."""
    amount, unit = _split(text, "a size", _BYTES)
    count = round(float(amount) * _BYTES[unit or "B"])
    if count < 1:
        raise usage_error(f'"{text}" is less than a byte')
    if not unit and count < _BYTES["kB"]:
        reason = "is less than a kilobyte: a number with a unit, such as 128MB"
        raise usage_error(f'"{text}" {reason}, or {text.strip()}B')
    return count


def duration(text: str) -> float:
    """Parse a time into seconds; a number without a unit is seconds."""
    amount, unit = _split(text, "a time", _SECONDS)
    return float(amount) * _SECONDS[unit or "s"]


def positive_duration(text: str) -> float:
    """Parse a time into seconds, more than 0."""
    seconds = duration(text)
    if seconds == 0:
        raise usage_error(f'"{text}" is not a time above 0')
    return seconds


def hours(text: str) -> int:
    """Parse a time into hours, rounded up. Less than one is refused unless it is 0: 7 is meant for 7d."""
    seconds = duration(text)
    if 0 < seconds < _SECONDS["h"]:
        raise usage_error(f'"{text}" is less than an hour: a number with a unit, such as 7d or 12h')
    return math.ceil(seconds / _SECONDS["h"])


def _split(text: str, what: str, units: dict[str, int] | dict[str, float]) -> tuple[str, str]:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in {*units, ""}:
        raise usage_error(f'"{text}" is not {what}: a number with a unit ({", ".join(units)})')
    return match[1], match[2]


def lsn(text: str) -> Lsn:
    """Parse an LSN."""
    try:
        return Lsn.parse(text)
    except ValueError as error:
        raise usage_error(f'"{text}" is not an LSN, such as 0/1A2B3C8') from error


def end_position(text: str) -> Lsn | None:
    """Parse an LSN, or `now`, which is None."""
    try:
        return None if text == "now" else Lsn.parse(text)
    except ValueError as error:
        raise usage_error(f'"{text}" is neither now nor an LSN, such as 0/1A2B3C8') from error


def whole_number(text: str) -> int:
    """Parse a whole number above 0."""
    if not _COUNT.fullmatch(text) or int(text) == 0:
        raise usage_error(f'"{text}" is not a whole number above 0, of at most 18 digits')
    return int(text)


def percent(text: str) -> float:
    """Parse a percentage: more than 0, and 100 at most."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] or not 0 < float(match[1]) <= 100:
        raise usage_error(f'"{text}" is not a percentage: a number above 0, 100 at most')
    return float(match[1])


def file_mode(text: str) -> int:
    """Parse permissions of files, octal as for chmod; the owner must be able to read and write."""
    mode = int(text, 8) if _OCTAL.fullmatch(text) else -1
    if not 0 <= mode <= 0o777:
        raise usage_error(f'"{text}" is not a mode from 0600 to 0777, such as 0640')
    if mode & 0o600 != 0o600:
        raise usage_error(f'mode "{text}" does not let the owner read and write')
    return mode


def name_and_value(option: str, text: str) -> tuple[str, str]:
    """Split `NAME=VALUE`, the value of `option`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise usage_error(f'{option}: "{text}" is not NAME=VALUE')
    return name, value
