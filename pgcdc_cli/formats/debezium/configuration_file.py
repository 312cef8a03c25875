"""Read a connector's configuration: Kafka Connect's JSON, Java's .properties, and Debezium Server's names."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pgcdc_cli.errors import ErrorKind, PgcdcError

_LARGEST = 16 << 20
"""Characters of a file, at most: lists of tables may be long, but a device such as /dev/zero has no end."""
_BLANKS = " \t\f"
_ENTRY = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)

_RENAMED = (
    ("debezium.source.", ""),
    ("debezium.transforms", "transforms"),
    ("debezium.predicates", "predicates"),
    ("debezium.format.key.", "key.converter."),
    ("debezium.format.value.", "value.converter."),
    ("debezium.format.header.", "header.converter."),
)
"""Prefixes that Debezium Server's properties have, and what the connector's have in their place."""
_FORMATS = {f"debezium.format.{part}": f"{part}.converter" for part in ("key", "value", "header")}
_JSON = ("json", "jsonbytearray")
_OF_SERVER = ("debezium.sink.", "quarkus.")


def read_properties(path: Path) -> dict[str, str]:
    """Read a configuration file: JSON, plain or as Kafka Connect's REST API takes it, or Java's .properties.

    Raises PgcdcError (USAGE) for a file that can't be read.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(_LARGEST + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise _unreadable(path, str(reason)) from error
    if len(text) > _LARGEST:
        raise _unreadable(path, f"it has more than {_LARGEST >> 20} MB")
    if text.lstrip().startswith(("{", "[")):
        return _from_json(path, text)
    return _from_java(text)


def _unreadable(path: Path, reason: str) -> PgcdcError:
    message = f'could not read connector configuration "{path}": {reason}'
    hint = "--connector-config takes a properties file, or the JSON that was sent to Kafka Connect"
    return PgcdcError(ErrorKind.USAGE, message, hint=hint)


def _from_json(path: Path, text: str) -> dict[str, str]:
    try:
        content: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise _unreadable(path, f"it is not JSON from line {error.lineno} on") from error
    except RecursionError as error:
        raise _unreadable(path, "it is nested too deeply") from error
    except ValueError as error:
        # Python reads no such integer, and says how to have it do so.
        raise _unreadable(path, "a number has thousands of digits") from error
    if not isinstance(content, dict):
        raise _unreadable(path, "it is no JSON object")
    if isinstance(content.get("config"), dict):
        content = content["config"]
    bad = next((name for name, value in content.items() if isinstance(value, (dict, list))), None)
    if bad is not None:
        raise _unreadable(path, f'"{bad}" is not a plain value')
    return {
        name: json.dumps(value) if isinstance(value, bool) else str(value)
        for name, value in content.items()
        if value is not None and not name.startswith("_")
    }


def _from_java(text: str) -> dict[str, str]:
    """Parse the format of `java.util.Properties`: comments, continued lines, escapes, `=`, `:` or a blank."""
    found = {}
    lines = (line.lstrip(_BLANKS) for line in re.split(r"\r\n|\n|\r", text))
    for line in lines:
        if line and line[0] not in "#!":
            match = _ENTRY.fullmatch(_continued(line, lines))
            if match is not None:
                found[_unescaped(match[1])] = _unescaped(match[2])
    return found


def _continued(line: str, following: Iterator[str]) -> str:
    """Append the following lines while the line ends in a backslash that isn't escaped."""
    while (len(line) - len(line.rstrip("\\"))) % 2:
        line = line[:-1] + next(following, "")
    return line


def _unescaped(text: str) -> str:
    short = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
    units = re.sub(
        r"\\(?:u([0-9A-Fa-f]{4})|(.))",
        lambda match: chr(int(match[1], 16)) if match[1] else short.get(match[2], match[2]),
        text,
    )
    # Two escapes may be the halves of one character.
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def as_connector(properties: Mapping[str, str]) -> dict[str, str]:
    """Name Debezium Server's properties as it passes them to the connector; others keep their names.

    What concerns its sinks, or Quarkus, on which it runs, is left out.
    """
    found: dict[str, str] = {}
    # What is said for all of a record's parts comes first: what is said for one of them overrides it.
    for name, text in sorted(properties.items(), key=lambda item: not _is_of_all_parts(item[0])):
        if not name.startswith(_OF_SERVER):
            found.update(_renamed(name, text))
    return found


def _is_of_all_parts(name: str) -> bool:
    return name.startswith("debezium.format.") and name not in _FORMATS and not _prefix(name)


def _prefix(name: str) -> tuple[str, str] | None:
    return next((pair for pair in _RENAMED if name.startswith(pair[0])), None)


def _renamed(name: str, text: str) -> dict[str, str]:
    if name in _FORMATS:
        return {} if text.strip().lower() in _JSON else {_FORMATS[name]: text}
    if _is_of_all_parts(name):
        own = name.removeprefix("debezium.format.")
        return {f"{part}.converter.{own}": text for part in ("key", "value")}
    prefix = _prefix(name)
    return {name if prefix is None else prefix[1] + name.removeprefix(prefix[0]): text}
