"""From a connector's configuration file and `-c name=value` to a checked configuration."""

import difflib
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.debezium.config import ConnectorConfig, Patterns
from pgcdc_cli.formats.debezium.masks import parse_mask
from pgcdc_cli.formats.debezium.properties import (
    MASK_PREFIXES,
    NOT_DONE,
    PROPERTIES,
    WITHOUT_MEANING,
    Property,
)

log = logging.getLogger("pgcdc")

_BY_NAME = {known.name: known for known in PROPERTIES}
_NOT_DONE = ("transforms.", "predicates.", "driver.", "signal.", "key.converter.", "value.converter.")
_FLAGS = {"true": True, "false": False}
_NOT_IN_TOPICS = re.compile(r"[^A-Za-z0-9._-]")
_BLANKS = " \t\f"
_ENTRY = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_NOT_IN_COMMAS = re.compile(r"(?<!\\),")


def read_properties(path: Path) -> dict[str, str]:
    """Read a configuration file: JSON, bare or as Kafka Connect takes it, or Java's .properties.

    Raises a USAGE error for a file that is neither.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise _unreadable(path, str(reason)) from error
    if text.lstrip().startswith("{"):
        return _from_json(path, text)
    return _from_java(text)


def _unreadable(path: Path, reason: str) -> PgcdcError:
    return PgcdcError(ErrorKind.USAGE, f'could not read connector configuration "{path}": {reason}')


def _from_json(path: Path, text: str) -> dict[str, str]:
    try:
        content: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise _unreadable(path, f"no JSON from line {error.lineno} on") from error
    if isinstance(content.get("config"), dict):
        content = content["config"]
    bad = next((name for name, value in content.items() if isinstance(value, (dict, list))), None)
    if bad is not None:
        raise _unreadable(path, f'"{bad}" is no plain value')
    return {
        name: json.dumps(value) if isinstance(value, bool) else str(value)
        for name, value in content.items()
        if value is not None and not name.startswith("_")
    }


def _from_java(text: str) -> dict[str, str]:
    """Read `java.util.Properties`: comments, continued lines, escapes, and `=`, `:` or a blank between."""
    found = {}
    lines = (line.lstrip(_BLANKS) for line in re.split(r"\r\n|\n|\r", text))
    for line in lines:
        if line and line[0] not in "#!":
            match = _ENTRY.fullmatch(_continued(line, lines))
            if match is not None:
                found[_unescaped(match[1])] = _unescaped(match[2])
    return found


def _continued(line: str, following: Iterator[str]) -> str:
    """Join what follows a line whose last backslash escapes its end."""
    while (len(line) - len(line.rstrip("\\"))) % 2:
        line = line[:-1] + next(following, "")
    return line


def _unescaped(text: str) -> str:
    short = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
    return re.sub(
        r"\\(?:u([0-9A-Fa-f]{4})|(.))",
        lambda match: chr(int(match[1], 16)) if match[1] else short.get(match[2], match[2]),
        text,
    )


def connector_config(properties: Mapping[str, str]) -> ConnectorConfig:
    """Check properties; warns of what is not followed. Raises a USAGE error for a wrong value."""
    values: dict[str, Any] = {}
    masks = []
    for name, text in properties.items():
        known = _BY_NAME.get(name)
        if known is not None:
            values[known.attribute] = _value(known, text if known.kind == "verbatim" else text.strip())
        elif name.startswith(MASK_PREFIXES):
            masks.append((_mask_rule(name), _patterns(name, text)))
        else:
            _warn(name)
    if not values.get("topic_prefix"):
        raise PgcdcError(
            ErrorKind.USAGE,
            "could not use the connector configuration: it has no topic.prefix",
            hint="give it with -c topic.prefix=NAME",
        )
    _check_lists(values, properties)
    return ConnectorConfig(**values, masks=tuple(sorted(masks, key=lambda mask: parse_mask(mask[0]).rank)))


def _check_lists(values: Mapping[str, Any], properties: Mapping[str, str]) -> None:
    """Raise where something is both included and excluded: the connector takes one of the two."""
    for kind in ("schema", "table", "column", "message.prefix"):
        include, exclude = (f"{kind}.{which}.list" for which in ("include", "exclude"))
        if values.get(_BY_NAME[include].attribute) and values.get(_BY_NAME[exclude].attribute):
            raise _wrong(exclude, properties[exclude], f"has no place beside {include}")


def _warn(name: str) -> None:
    if name in WITHOUT_MEANING:
        return
    if name in NOT_DONE or name.startswith(_NOT_DONE):
        log.warning('property "%s" is not supported: events are as without it', name)
        return
    near = difflib.get_close_matches(name, _BY_NAME, n=1)
    log.warning('property "%s" is unknown%s', name, f': did you mean "{near[0]}"?' if near else "")


def _wrong(name: str, text: str, reason: str) -> PgcdcError:
    shown = "..." if "password" in name else text
    return PgcdcError(ErrorKind.USAGE, f'could not use property "{name}": "{shown}" {reason}')


def _value(known: Property, text: str) -> object:
    if known.kind == "flag":
        if text.lower() not in _FLAGS:
            raise _wrong(known.name, text, "is neither true nor false")
        return _FLAGS[text.lower()]
    if known.kind == "number":
        if not text.isascii() or not text.isdigit():
            raise _wrong(known.name, text, "is no whole number")
        return int(text)
    if known.kind in {"choice", "choices"}:
        return _choice(known, text)
    if known.kind == "patterns":
        return _patterns(known.name, text)
    if known.kind == "topic" and _NOT_IN_TOPICS.search(text):
        raise _wrong(known.name, text, "has characters other than letters and digits of ASCII, ., _ and -")
    return _keys(known.name, text) if known.kind == "keys" else text


def _choice(known: Property, text: str) -> object:
    chosen = [part.strip().lower() for part in text.split(",")] if known.kind == "choices" else [text.lower()]
    wrong = next((one for one in chosen if one not in known.choices), None)
    if wrong is not None:
        raise _wrong(known.name, wrong, f"is none of {', '.join(known.choices)}")
    if known.kind == "choice":
        return chosen[0]
    if "none" in chosen and len(chosen) > 1:
        raise _wrong(known.name, text, "has something beside none")
    # The connector takes an r, and leaves nothing out for it.
    return tuple(one for one in chosen if one not in {"none", "r"})


def _patterns(name: str, text: str) -> Patterns:
    """Compile a list of regular expressions, each of which must match a whole name.

    As in Java, the case of ASCII letters alone makes no difference, and classes of characters are ASCII's.
    """
    parts = [part.strip().replace(r"\,", ",") for part in _NOT_IN_COMMAS.split(text)]
    return tuple(_pattern(name, part) for part in parts if part)


def _pattern(name: str, text: str) -> re.Pattern[str]:
    try:
        # Java knows sets within sets; Python warns of what looks like one.
        with warnings.catch_warnings(action="error", category=FutureWarning):
            return re.compile(_from_java_regex(text), re.IGNORECASE | re.ASCII)
    except (re.error, FutureWarning) as error:
        raise _wrong(name, text, f"is no regular expression: {error}") from error


def _from_java_regex(text: str) -> str:
    """Write what Java spells otherwise: quoted text, the end, named groups and POSIX classes."""
    text = re.sub(r"\\Q(.*?)(?:\\E|\Z)", lambda match: re.escape(match[1]), text, flags=re.DOTALL)
    text = re.sub(r"\(\?<(?=[A-Za-z])", "(?P<", text).replace(r"\z", r"\Z")
    classes = {"Alpha": "a-zA-Z", "Digit": "0-9", "Alnum": "a-zA-Z0-9", "Lower": "a-z", "Upper": "A-Z"}
    for name, letters in classes.items():
        text = text.replace(rf"\p{{{name}}}", f"[{letters}]")
    return text


def _keys(name: str, text: str) -> Patterns:
    """Compile patterns of whole columns, `schema.table.column`, from those of tables and of their columns."""
    rules = []
    for rule in filter(None, (part.strip() for part in text.split(";"))):
        table, colon, columns = rule.rpartition(":")
        if not colon or not columns.strip():
            raise _wrong(name, rule, "is not TABLE:COLUMN,...")
        rules += [_pattern(name, f"{table.strip()}.{column.strip()}") for column in columns.split(",")]
    return tuple(rules)


def _mask_rule(name: str) -> str:
    try:
        parse_mask(name)
    except ValueError as error:
        raise PgcdcError(ErrorKind.USAGE, f'could not use property "{name}": {error}') from error
    return name
