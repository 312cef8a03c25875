"""Text as a database holds it to UTF-8, and what becomes of bytes that aren't text.

The server converts to UTF-8 by itself, but then it ends the stream at bytes that have no equivalent, at every
start again. So it is told to convert nothing where the database checks nothing (SQL_ASCII), and where
somebody wants to go on. Its encodings are those of the PostgreSQL manual, "Character Set Support".
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from pgcdc_cli.types import kernels

InvalidText = Literal["stop", "replace", "escape"]

UNCHECKED = "SQL_ASCII"

SINGLE_BYTE_CODECS = {
    **{f"LATIN{number}": f"iso8859-{number}" for number in range(1, 5)},
    "LATIN5": "iso8859-9",
    "LATIN6": "iso8859-10",
    "LATIN7": "iso8859-13",
    "LATIN8": "iso8859-14",
    "LATIN9": "iso8859-15",
    "LATIN10": "iso8859-16",
    **{f"ISO_8859_{number}": f"iso8859-{number}" for number in range(5, 9)},
    **{f"WIN{page}": f"cp{page}" for page in (*range(1250, 1259), 866, 874)},
    "KOI8R": "koi8-r",
    "KOI8U": "koi8-u",
}
_CODECS = {
    "UTF8": "utf-8",
    UNCHECKED: "utf-8",
    **SINGLE_BYTE_CODECS,
    "EUC_JP": "euc_jp",
    "EUC_JIS_2004": "euc_jis_2004",
    "EUC_KR": "cp949",
    "EUC_CN": "gbk",
}
_BAD_BYTES = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True, slots=True)
class DatabaseText:
    """How text comes from the wire. `codec` is Python's name of its encoding.

    `client_encoding` is what the server is asked to send.
    """

    client_encoding: str = "UTF8"
    codec: str = "utf-8"
    invalid: InvalidText = "stop"

    @classmethod
    def of(cls, encoding: str, given: InvalidText | None, default: InvalidText) -> "DatabaseText":
        """Choose for a database of this encoding; `given` is None where nobody chose what to do.

        Then encodings of several bytes are left to the server: Python's codecs know fewer characters.
        """
        invalid = given or default
        if encoding in {"UTF8", UNCHECKED}:
            return cls(encoding, "utf-8", invalid)
        known = _CODECS if given else SINGLE_BYTE_CODECS
        if invalid == "stop" or encoding not in known:
            return cls(invalid=invalid)
        return cls(encoding, known[encoding], invalid)

    @property
    def passes(self) -> bool:
        """Is text to be taken as it comes, to fail where it is written?"""
        return self.invalid == "stop"

    def decode(self, data: bytes, backslashes: int = 1) -> tuple[str, bool]:
        """Decode one text, and say whether all of it was valid; UnicodeDecodeError with `stop` if not.

        An escape begins with so many backslashes: where they are escaped themselves it takes more.
        """
        try:
            return data.decode(self.codec), True
        except UnicodeDecodeError:
            if self.invalid == "stop":
                raise
            if self.invalid == "replace":
                return data.decode(self.codec, "replace"), False
        start = "\\" * backslashes + "x"
        text = data.decode(self.codec, "surrogateescape")
        return _BAD_BYTES.sub(lambda found: f"{start}{ord(found[0]) - 0xDC00:02x}", text), False

    def name(self, data: bytes) -> str:
        """Decode a name; UnicodeDecodeError with `stop`."""
        return self.decode(data)[0]

    def values(self, values: list[bytes | None], backslashes: int) -> tuple[list[bytes | None], int]:
        """Make values UTF-8, and count those that were no valid text."""
        mended: list[bytes | None] = []
        invalid = 0
        for value in values:
            if value is None or value.isascii():
                mended.append(value)
                continue
            text, valid = self.decode(value, backslashes)
            mended.append(text.encode())
            invalid += not valid
        return mended, invalid

    def column(self, values: pa.BinaryArray, backslashes: int) -> tuple[pa.BinaryArray, int]:
        """Make a column UTF-8, and count values that were no valid text."""
        _, data = kernels.value_bytes(values)
        if not len(data) or data.max() < 0x80 or (self.codec == "utf-8" and first_invalid(values) is None):
            return values, 0
        mended, invalid = self.values(values.to_pylist(), backslashes)
        return kernels.binary(mended), invalid


INVALID_NAME_HINT = (
    "nothing of it was confirmed: go on with --invalid-text replace or escape, and with --no-catalog where"
    " the name is still there"
)

STRICT = DatabaseText()
"""UTF-8, and an error where it isn't."""

DecodeName = Callable[[bytes], str]


def first_invalid(values: pa.BinaryArray) -> int | None:
    """Find the first value that is no valid UTF-8."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        rows = (number for number, value in enumerate(values.to_pylist()) if not _is_valid(value))
        return next(rows)
    return None


def _is_valid(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
