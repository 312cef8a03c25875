"""Read JSON objects that must have exactly the expected fields: the checkpoint and the manifest.

A field that is missing, unknown or of the wrong type raises ValueError, which names it.
"""

import json
from typing import TypeVar

from pgcdc_cli.directory.disk import damaged
from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.lsn import Lsn

T = TypeVar("T")

_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", list: "an array", str: "a string"}

_OTHER_VERSION = "it is intact: continue with the pgcdc that wrote it, or a newer one"


class JsonFields:
    """A JSON object that is read field by field; `end` raises ValueError if any are left."""

    def __init__(self, data: object, what: str) -> None:
        if not isinstance(data, dict):
            raise ValueError(f"{what} is not an object")  # noqa: TRY004 - damaged data, not a wrong call
        self._data = dict(data)
        self._what = what

    def _take(self, name: str, kind: type[T]) -> T:
        if name not in self._data:
            raise ValueError(f"{self._what} lacks {name}")
        value = self._data.pop(name)
        if type(value) is not kind:
            raise ValueError(f"{name} of {self._what} is not {_KINDS[kind]}")
        return value

    def text(self, name: str) -> str:
        return self._take(name, str)

    def count(self, name: str) -> int:
        """Take an integer, 0 or more."""
        value = self._take(name, int)
        if value < 0:
            raise ValueError(f"{name} of {self._what} is negative")
        return value

    def flag(self, name: str) -> bool:
        return self._take(name, bool)

    def lsn(self, name: str) -> Lsn:
        return Lsn.parse(self._take(name, str))

    def path(self, name: str) -> str:
        """Take a relative path that doesn't leave its folder."""
        value = self._take(name, str)
        if value.startswith("/") or "\0" in value or not {"", ".", ".."}.isdisjoint(value.split("/")):
            raise ValueError(f"{name} of {self._what} points outside the directory")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError(f"{name} of {self._what} is not valid text")
        return value

    def items(self, name: str) -> list[object]:
        return self._take(name, list)

    def texts(self, name: str) -> dict[str, str]:
        """Take an object whose values are all strings."""
        fields = JsonFields(self._data.pop(name, None), name)
        found = {key: fields.text(key) for key in tuple(fields._data)}
        fields.end()
        return found

    def inner(self, name: str) -> "JsonFields | None":
        """Take an object, or null."""
        if self.null(name):
            return None
        return JsonFields(self._data.pop(name, None), name)

    def null(self, name: str) -> bool:
        """Take a field if it is null, and say whether it was."""
        found = name in self._data and self._data[name] is None
        if found:
            del self._data[name]
        return found

    def missing(self, name: str) -> bool:
        """Whether an optional field is missing."""
        return name not in self._data

    def end(self) -> None:
        if self._data:
            raise ValueError(f"{self._what} has an unknown {min(self._data)}")


def dump(data: dict[str, object]) -> bytes:
    """Encode an object in its one form: no spaces, fields in the given order, ASCII only."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def load(data: bytes) -> object:
    """Parse JSON. Raises ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError("it is not JSON") from error


class OtherVersionError(ValueError):
    """A file that seems undamaged, but has a format version that this pgcdc doesn't read."""


def check_version(content: object, what: str, expected: int) -> None:
    """Raise OtherVersionError for another `format_version`, ValueError if `content` has none."""
    version = content.get("format_version") if isinstance(content, dict) else None
    if type(version) is not int:
        raise ValueError(f"it is not {what}")
    if version != expected:
        raise OtherVersionError(f"it has format version {version}, this pgcdc reads {expected}")


def unusable(path: str, error: ValueError) -> PgcdcError:
    """Make the error for a file of which a field was refused: it is damaged, or of another version."""
    hint = _OTHER_VERSION if isinstance(error, OtherVersionError) else None
    return damaged(path, str(error), doing="read", hint=hint)
