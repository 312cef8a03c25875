"""What a format can be asked for."""

from dataclasses import dataclass
from typing import Literal

Layout = Literal["table", "stream"]
Compression = Literal["none", "gzip", "zstd"]
Numeric = Literal["string", "number"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The options that a format takes.

    `layouts`: "table" for a file a table, which needs a directory; "stream" for everything in one file.
    `numeric`: is the way in which numeric is written a choice? `transactions`: can begins, commits and
    the ends of prepared transactions be written? `snapshot`: has it a name for rows that were there before?
    """

    layouts: tuple[Layout, ...]
    compressions: tuple[Compression, ...] = ("none",)
    numeric: bool = False
    transactions: bool = False
    snapshot: bool = True
