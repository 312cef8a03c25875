"""Text as a database holds it to UTF-8, and what becomes of bytes that aren't text.

The server converts to UTF-8 by itself, but then it ends the stream at bytes that have no equivalent, at every
start again. So it is told to convert nothing where the database checks nothing (SQL_ASCII), and where
somebody wants to go on. Its encodings are those of the PostgreSQL manual, "Character Set Support".
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

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

    `client_encoding` is what the server is asked to send. "keep" has bytes that aren't text as surrogates, as
    Python has them in names of files (`surrogateescape`): for names that go back to the server.
    """

    client_encoding: str = "UTF8"
    codec: str = "utf-8"
    invalid: InvalidText | Literal["keep"] = "stop"

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

    @classmethod
    def shown(cls, encoding: str) -> "DatabaseText":
        """Choose for names that somebody looks at: they are escaped where they aren't text."""
        return cls.of(encoding, None, "escape")

    def keeping(self) -> "DatabaseText":
        """Give the same with all bytes kept; `mended` gives what would have come without."""
        return replace(self, invalid="keep")

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
        text = data.decode(self.codec, "surrogateescape")
        if self.invalid == "keep":
            return text, False
        start = "\\" * backslashes + "x"
        return _BAD_BYTES.sub(lambda found: f"{start}{ord(found[0]) - 0xDC00:02x}", text), False

    def name(self, data: bytes) -> str:
        """Decode a name; UnicodeDecodeError with `stop`."""
        return self.decode(data)[0]

    def mended(self, kept: str) -> str:
        """Decode a name whose bytes were kept; UnicodeDecodeError with `stop`."""
        return self.name(kept.encode(self.codec, "surrogateescape"))

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


INVALID_NAME_HINT = "nothing of it was confirmed: go on with --invalid-text replace or escape"


STRICT = DatabaseText()
"""UTF-8, and an error where it isn't."""
