"""Write changes of other formats and captures as JSON lines, without members that they don't contain."""

import base64
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias, TypeVar

from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.formats.exact_json import Number, compact_json
from pgcdc_cli.reader.stored_file import Order, undecodable
from pgcdc_cli.types.pg_type import JsonKind

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_LINE_BREAKS = str.maketrans("\n\r", "  ")
_BOOLEANS = {"t": "true", "f": "false"}
_LONGEST_SHOWN = 200
"""Characters of a line that an error shows."""
_T = TypeVar("_T")

MISREAD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Errors raised by reading JSON of another shape, or with numbers beyond all bounds."""


class RestoredChange(NamedTuple):
    """A change as a JSON line; `table` is `schema.table`, `_messages`, or "" for a change of no table."""

    order: Order
    table: str
    line: str


class Value(NamedTuple):
    """A column's value: PostgreSQL's text, None for NULL, and how it is written in JSON."""

    kind: JsonKind
    text: str | None

    @classmethod
    def as_it_stands(cls, token: object) -> "Value":
        """Keep a JSON value as it is, if the column's type is unknown."""
        if token is None or (isinstance(token, str) and not isinstance(token, Number)):
            return cls("string", token)
        return cls("json", compact_json(token))

    @property
    def token(self) -> str:
        if self.text is None:
            return "null"
        if self.kind == "json":
            return self.text.translate(_LINE_BREAKS)
        if self.kind == "bool" and self.text in _BOOLEANS:
            return _BOOLEANS[self.text]
        if self.kind in ("number", "float") and _NUMBER.fullmatch(self.text):
            return self.text
        return compact_json(self.text)

    @property
    def is_json_null(self) -> bool:
        return self.kind == "json" and self.text is not None and self.text.strip() == "null"


Values: TypeAlias = Mapping[str, Value]
"""Values by column."""


def change_line(
    head: Mapping[str, object], images: Mapping[str, Values | None], unchanged: Iterable[str] = ()
) -> str:
    """Write a row's change; `images` are key, old and new, None for one that it doesn't have."""
    given = {label: values for label, values in images.items() if values is not None}
    written = "".join(f',"{label}":{_object(values)}' for label, values in given.items())
    nulls = [
        f"{label}.{name}"
        for label in ("old", "new")
        for name, value in given.get(label, {}).items()
        if value.is_json_null
    ]
    lists = {"unchanged": list(unchanged), "json_null": nulls}
    written += "".join(f',"{label}":{compact_json(names)}' for label, names in lists.items() if names)
    return f"{compact_json(head)[:-1]}{written}}}"


def _object(values: Values) -> str:
    return "{" + ",".join(f"{compact_json(name)}:{value.token}" for name, value in values.items()) + "}"


def message_content(content: bytes) -> dict[str, str]:
    """Make the member that holds a logical message's content."""
    try:
        return {"content": content.decode()}
    except UnicodeDecodeError:
        return {"content_base64": base64.b64encode(content).decode()}


def each_line(
    path: str, content: io.BufferedReader, read: Callable[[str], Iterable[_T]], what: str
) -> Iterator[_T]:
    """Read line by line. Raises PgcdcError (PROTOCOL) for a line that is not `what`."""
    for number, line in enumerate(content, 1):
        try:
            yield from read(line.removesuffix(b"\n").decode())
        except MISREAD as error:
            raise undecodable(path, f"line {number} is not {what}: {complaint(error)}") from error


def unfit_line(line: str, error: Exception) -> PgcdcError:
    """Make the error for a change whose JSON line has values of another kind than pgcdc writes."""
    return undecodable("a change", f"{complaint(error)}: {line[:_LONGEST_SHOWN]}")


def complaint(error: Exception) -> str:
    """Describe what is wrong with a line that could not be read."""
    if isinstance(error, KeyError):
        return f'it has no "{error.args[0]}"'
    if isinstance(error, json.JSONDecodeError):
        return f"it is not JSON ({error.msg.removesuffix(' starting at')}, column {error.colno})"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, ArithmeticError):
        return "a number is too large"
    if isinstance(error, IndexError | TypeError | AttributeError):
        return "a value has the wrong type"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
