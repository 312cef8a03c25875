"""What every format gives to the sinks, and declares to a run of the stream and to the command line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types.database_text import InvalidText

if TYPE_CHECKING:
    # The command line's help asks what formats can do, and must be quick: these load numpy and pyarrow.
    import pyarrow as pa

    from pgcdc_cli.changes.slice import Edge, LastCommit, Slice

Data: TypeAlias = "bytes | memoryview | pa.Buffer | pa.RecordBatch"
Layout = Literal["table", "stream"]
Compression = Literal["none", "gzip", "zstd"]
Numeric = Literal["string", "number"]

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""Reads at an offset so many bytes of a file, or as many as there are."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The options that a format takes.

    `layouts`: "table" for a file a table, which needs a directory; "stream" for everything in one file.
    `numeric`: is the way in which numeric is written a choice? `transactions`: can begins, commits and
    the ends of prepared transactions be written? `snapshot`: has it a name for rows that were there before?
    `invalid_text`: what becomes of text that is none where nobody chose.
    """

    layouts: tuple[Layout, ...]
    compressions: tuple[Compression, ...] = ("none",)
    numeric: bool = False
    transactions: bool = False
    snapshot: bool = True
    invalid_text: InvalidText = "stop"


class FileFormat(Protocol):
    """What it can, and how files are named and put together: all that sinks ask.

    `name` is what the manifest calls it.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    @property
    def suffix(self) -> str:
        """What ends a file's name."""

    @property
    def tail(self) -> Callable[[ReadAt], bytes] | None:
        """Makes what ends a file from what is in it; None where nothing does."""

    def frame(self, data: Sequence[Data]) -> "bytes | memoryview | pa.Buffer":
        """Join what was encoded for one file into bytes that can be appended to it, and cut off again.

        That is a compressed frame, an Arrow record batch message, or the bytes themselves.
        """
        ...


class Format(FileFormat, Protocol):
    """Slices to bytes. `decodes` says so, where `RawFormat` takes the plugin's messages as they are."""

    decodes: ClassVar[Literal[True]]

    @property
    def wants_boundaries(self) -> bool:
        """Are begins and commits to be in its slices?"""

    @property
    def restartable(self) -> "Restartable | None":
        """The format itself, where its lines tell of what came before them."""

    def encode(self, slice_: "Slice") -> "EncodedSlice":
        """Encode the rows of a slice, each file's in stream order."""
        ...


class Restartable(Protocol):
    """A format whose lines tell of what came before them, and of an idle stream."""

    def restart(self, database: str, last_commit: "LastCommit | None") -> None:
        """Forget what came after the last edge; `last_commit` is the transaction before it, if any."""
        ...

    def heartbeat(self, commit_lsn: Lsn) -> "EncodedSlice":
        """Say, at a transaction edge, that the stream lives."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Rows for one output file, in stream order.

    `target` is what the manifest calls the table: `schema.table`, `_messages`, or "" where everything goes
    into one file. It names the folder, too, where `table` is None, as a file then holds several tables, or
    none. `head` begins every file of this kind (the Arrow schema): with another head, another file begins.
    `unchanged` says that there are rows with values that were not sent (unchanged TOAST), `invalid_text` how
    many values were no valid text. A piece without rows says that there is to be such a file, even if empty.
    """

    target: str
    rows: int
    first_commit_lsn: Lsn
    last_commit_lsn: Lsn
    data: Data
    head: bytes = b""
    table: TableSchema | None = None
    unchanged: bool = False
    invalid_text: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class EncodedSlice:
    """A slice, encoded. `tables` are all tables it speaks of, for the schema files."""

    pieces: tuple[Piece, ...]
    edge: "Edge | None"
    tables: tuple[TableSchema, ...] = ()
