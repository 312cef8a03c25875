"""Decode text in a database's encoding, and handle bytes that are not valid in it.

The server can convert to UTF-8 itself, but where bytes have no equivalent it raises an error, which ends the
stream, and ends it again after each restart. So pgcdc asks for no conversion where the server validates no
text (SQL_ASCII), and where the user chose to go on after invalid text. For the encodings, see the PostgreSQL
manual, "Character Set Support".
"""

import re
import string
from dataclasses import dataclass, replace
from typing import Literal

from pgcdc_cli.types.pg_type import PgType

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
_FOLDED = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def folded(name: str) -> str:
    """Fold a name without quotes as the server does: with UTF-8, only the letters of ASCII."""
    return name.translate(_FOLDED)


@dataclass(frozen=True, slots=True)
class DatabaseText:
    """How to decode text from the wire; `codec` is Python's name of its encoding.

    `client_encoding` is the setting to ask the server for. With `invalid="keep"`, invalid bytes become
    surrogates, as in Python's file names (`surrogateescape`): for names that are sent back to the server.
    """

    client_encoding: str = "UTF8"
    codec: str = "utf-8"
    invalid: InvalidText | Literal["keep"] = "stop"

    @classmethod
    def of(cls, encoding: str, given: InvalidText | None, default: InvalidText) -> "DatabaseText":
        """Choose for a database with this encoding; `given` is None if the user chose no handling.

        Then the server converts multibyte encodings: Python's codecs know fewer of their characters.
        """
        invalid = given or default
        if encoding in {"UTF8", UNCHECKED}:
            return cls(encoding, "utf-8", invalid)
        known = _CODECS if given else SINGLE_BYTE_CODECS
        if invalid == "stop" or encoding not in known:
            return cls(invalid=invalid)
        return cls(encoding, known[encoding], invalid)

    @classmethod
    def shown(cls, encoding: str) -> "DatabaseText":
        """Choose for names that are shown to a person: their invalid bytes are escaped."""
        return cls.of(encoding, None, "escape")

    def keeping(self) -> "DatabaseText":
        """Make a copy that keeps all bytes; `mended` turns its texts into those of the original."""
        return replace(self, invalid="keep")

    @property
    def passes(self) -> bool:
        """Whether to pass text on unchecked: it fails where it is written."""
        return self.invalid == "stop"

    def decode(self, data: bytes, backslashes: int = 1) -> tuple[str, bool]:
        """Decode one text; also return whether all of it was valid.

        `backslashes` is how many begin an escape: more than one where backslashes are escaped themselves.
        Raises UnicodeDecodeError for invalid text with `stop`.
        """
        try:
            return data.decode(self.codec), True
        except UnicodeDecodeError:
            if self.invalid == "stop":
                raise
            if self.invalid == "replace":
                return data.decode(self.codec, "replace"), False
        text = data.decode(self.codec, "surrogateescape")
        if self.invalid == "keep":
            return text, False
        start = "\\" * backslashes + "x"
        return _BAD_BYTES.sub(lambda found: f"{start}{ord(found[0]) - 0xDC00:02x}", text), False

    def name(self, data: bytes) -> str:
        """Decode a name. Raises UnicodeDecodeError for an invalid one with `stop`."""
        return self.decode(data)[0]

    def mended(self, kept: str) -> str:
        """Decode a name whose bytes were kept. Raises UnicodeDecodeError for an invalid one with `stop`."""
        return self.name(kept.encode(self.codec, "surrogateescape"))

    def values(self, values: list[bytes | None], backslashes: int) -> tuple[list[bytes | None], int]:
        """Convert n values to UTF-8; also return how many were invalid."""
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


def backslashes(type_: PgType) -> int:
    """Return how many backslashes an escaped backslash takes in a type's text."""
    if type_.element is not None:
        return 4 if type_.element.name in {"json", "jsonb"} else 2
    return 2 if type_.name in {"json", "jsonb", "hstore"} else 1


INVALID_NAME_HINT = "none of it was confirmed: continue with --invalid-text replace or escape"


STRICT = DatabaseText()
"""UTF-8; invalid text is an error."""

ESCAPED = DatabaseText(invalid="escape")
"""UTF-8; each invalid byte becomes `\\xNN`."""
