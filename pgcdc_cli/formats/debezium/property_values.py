"""What a property's value may be, and what it means."""

import re
import warnings
from dataclasses import dataclass
from typing import Literal

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.debezium.connector_config import Patterns

PropertyKind = Literal["text", "verbatim", "topic", "flag", "number", "choice", "choices", "patterns", "keys"]


@dataclass(frozen=True, slots=True)
class Property:
    """One property. `choices` are the values that a choice (or a list of choices) may have.

    Blanks around a value are left out, but for `verbatim` ones.
    """

    name: str
    kind: PropertyKind
    doc: str
    default: str = ""
    choices: tuple[str, ...] = ()

    @property
    def attribute(self) -> str:
        """What the configuration calls it."""
        return self.name.replace(".", "_").replace("-", "_")


_FLAGS = {"true": True, "false": False}
_NOT_IN_TOPICS = re.compile(r"[^A-Za-z0-9._-]")
_NOT_IN_COMMAS = re.compile(r"(?<!\\),")


def wrong(name: str, text: str, reason: str) -> PgcdcError:
    """Make a USAGE error that names the property and, but for passwords, its value."""
    shown = "..." if "password" in name else text
    return PgcdcError(ErrorKind.USAGE, f'could not use property "{name}": "{shown}" {reason}')


def value_of(known: Property, text: str) -> object:
    """Turn a property's text into its value; a USAGE error where it can't have that."""
    if known.kind == "flag":
        if text.lower() not in _FLAGS:
            raise wrong(known.name, text, "is neither true nor false")
        return _FLAGS[text.lower()]
    if known.kind == "number":
        if not text.isascii() or not text.isdigit():
            raise wrong(known.name, text, "is no whole number")
        return int(text)
    if known.kind in {"choice", "choices"}:
        return _choice(known, text)
    if known.kind == "patterns":
        return patterns(known.name, text)
    if known.kind == "topic" and _NOT_IN_TOPICS.search(text):
        raise wrong(known.name, text, "has characters other than letters and digits of ASCII, ., _ and -")
    return _keys(known.name, text) if known.kind == "keys" else text


def _choice(known: Property, text: str) -> object:
    chosen = [part.strip().lower() for part in text.split(",")] if known.kind == "choices" else [text.lower()]
    bad = next((one for one in chosen if one not in known.choices), None)
    if bad is not None:
        raise wrong(known.name, bad, f"is none of {', '.join(known.choices)}")
    if known.kind == "choice":
        return chosen[0]
    if "none" in chosen and len(chosen) > 1:
        raise wrong(known.name, text, "has something beside none")
    # The connector takes an r, and leaves nothing out for it.
    return tuple(one for one in chosen if one not in {"none", "r"})


def patterns(name: str, text: str) -> Patterns:
    """Compile a list of regular expressions, each of which must match a whole name.

    As in Java, the case of ASCII letters alone makes no difference, and classes of characters are ASCII's.
    """
    parts = [part.strip().replace(r"\,", ",") for part in _NOT_IN_COMMAS.split(text)]
    return tuple(pattern(name, part) for part in parts if part)


def pattern(name: str, text: str, *, ignore_case: bool = True) -> re.Pattern[str]:
    """Compile one regular expression of Java's."""
    flags = re.ASCII | (re.IGNORECASE if ignore_case else re.NOFLAG)
    try:
        # Java knows sets within sets; Python warns of what looks like one.
        with warnings.catch_warnings(action="error", category=FutureWarning):
            return re.compile(_from_java_regex(text), flags)
    except (re.error, FutureWarning) as error:
        raise wrong(name, text, f"is no regular expression: {error}") from error


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
            raise wrong(name, rule, "is not TABLE:COLUMN,...")
        rules += [pattern(name, f"{table.strip()}.{column.strip()}") for column in columns.split(",")]
    return tuple(rules)
