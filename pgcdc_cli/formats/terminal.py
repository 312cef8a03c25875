"""Text for a terminal: shortened, coloured, and without control characters."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

ELLIPSIS = "…"
_SHORTEST = 8
_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*")


def identifier(name: str) -> str:
    """Quote a name as SQL requires it; keywords are not quoted."""
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def safe(text: str) -> str:
    r"""Escape characters that aren't printable (control, escape, direction marks), as in `\u001b`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    code = ord(char)
    short = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
    return short.get(char) or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def safe_lines(data: bytes) -> bytes:
    r"""Escape what isn't printable in text of several lines, and bytes that are no UTF-8, as in `\xff`."""
    lines = data.decode("utf-8", "backslashreplace").split("\n")
    return "\n".join("\t".join(map(safe, line.split("\t"))) for line in lines).encode()


def width_of(text: str) -> int:
    """Columns that text takes on a terminal: two for a Chinese character, none for a combining accent."""
    if text.isascii():
        return len(text)
    # The import takes a while, and most text doesn't need it.
    from rich.cells import cell_len  # noqa: PLC0415

    return cell_len(text)


def pad(text: str, width: int) -> str:
    """Pad text with blanks."""
    return text + " " * (width - width_of(text))


def shorten(text: str, width: int) -> str:
    """Make text safe, and cut it to `width` columns of a terminal."""
    shown = safe(text[: width + 1])
    if width_of(shown) <= width and len(text) <= width:
        return shown
    shown = shown[: width - 1]
    while (excess := width_of(shown) - (width - 1)) > 0:
        # No character takes more than two columns.
        shown = shown[: -((excess + 1) // 2)]
    return shown + ELLIPSIS


@dataclass(frozen=True, slots=True)
class Style:
    """`width` is the terminal's, in characters; without `colour` no escape sequences are written.

    With `full`, values are not shortened to the width.
    """

    colour: bool = False
    width: int = 80
    full: bool = False

    def room(self, used: int) -> int:
        """Characters that are left on a line, but never fewer than a minimum."""
        return sys.maxsize if self.full else max(self.width - used, _SHORTEST)

    def _painter(self, code: str) -> Callable[[str], str]:
        return (lambda text: f"\x1b[{code}m{text}\x1b[0m") if self.colour else str

    def dim(self, text: str) -> str:
        return self._painter("2")(text)

    def bold(self, text: str) -> str:
        return self._painter("1")(text)

    def added(self, text: str) -> str:
        return self._painter("32")(text)

    def removed(self, text: str) -> str:
        return self._painter("31")(text)

    def changed(self, text: str) -> str:
        return self._painter("33")(text)

    def special(self, text: str) -> str:
        return self._painter("35")(text)
