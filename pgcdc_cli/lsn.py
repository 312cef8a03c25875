"""The log sequence number: a position in PostgreSQL's write-ahead log.

PostgreSQL manual, "pg_lsn Type": two hexadecimal numbers of up to 8 digits each, separated by a slash.
"""

import re
from typing import Self

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Lsn(int):
    """A byte position in the write-ahead log (WAL), printed as PostgreSQL prints `pg_lsn`: `0/1A2B3C8`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `XXXXXXXX/XXXXXXXX`. Raises ValueError for anything else (`0x1/0`, spaces, nine digits)."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f'invalid LSN "{text}"')
        high, low = match.groups()
        return cls(int(high, 16) << 32 | int(low, 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn('{self}')"

    def hex16(self) -> str:
        """Format as 16 hexadecimal digits, so that file names sort as positions do."""
        return f"{int(self):016X}"
