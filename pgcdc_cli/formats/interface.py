"""The interface of formats: for the sinks, for a run of the stream, and for the command line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types.database_text import InvalidText

if TYPE_CHECKING:
    # The command line's help, which must be quick, asks for capabilities; these imports take long.
    import pyarrow as pa

    from pgcdc_cli.changes.edge import Edge, LastCommit
    from pgcdc_cli.changes.slice import Slice
    from pgcdc_cli.changes.table import TableSchema

Data: TypeAlias = "bytes | memoryview | pa.Buffer | pa.RecordBatch"
SnapshotFormatName = Literal["jsonl", "arrow", "debezium", "pretty"]
"""Formats that can mark the rows of a snapshot."""

FormatName = Literal[SnapshotFormatName, "wal2json", "raw"]
Layout = Literal["table", "stream"]
Compression = Literal["none", "gzip", "zstd"]
Numeric = Literal["string", "number"]

TableLists: TypeAlias = Mapping[str, Callable[[str, str], bool]]
"""Options that list the tables to write, by name: whether such a list has a table, by schema and name."""

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""Reads a file: from an offset, a number of bytes, or as many as there are."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The options that a format supports.

    `layouts`: "table" for one file per table, which needs a directory; "stream" for all tables in one file.
    `numeric`: numeric can be written as strings or numbers. `transactions`: begins, commits and the ends of
    prepared transactions can be written. `invalid_text`: the default for what to do with invalid text.
    `typed`: it also takes columns of their Arrow types.
    """

    layouts: tuple[Layout, ...]
    compressions: tuple[Compression, ...] = ("none",)
    numeric: bool = False
    transactions: bool = False
    invalid_text: InvalidText = "stop"
    typed: bool = False


class FileFormat(Protocol):
    """The part of a format that sinks use: its capabilities, and how its files are named and written.

    `name` is the format's name in the manifest.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    @property
    def suffix(self) -> str:
        """End of a file's name."""

    @property
    def tail(self) -> Callable[[ReadAt], bytes] | None:
        """Function that makes the end of a file from its content; None if files need none."""

    def frame(self, data: Sequence[Data]) -> "bytes | memoryview | pa.Buffer":
        """Combine what was encoded for one file into bytes that can be appended to it, and truncated again.

        That is a compressed frame, Arrow record batch messages, or just the bytes.
        """
        ...


class Format(FileFormat, Protocol):
    """Encodes slices. `decodes` tells it from `RawFormat`, which takes the plugin's messages as they are."""

    decodes: ClassVar[Literal[True]]

    @property
    def wants_boundaries(self) -> bool:
        """Whether its slices must contain begins and commits."""

    @property
    def restartable(self) -> "Restartable | None":
        """The format itself if its lines depend on earlier ones, else None."""

    @property
    def table_lists(self) -> TableLists:
        """The options of the format that are set, and without which more tables would be written."""

    def encode(self, slice_: "Slice") -> "EncodedSlice":
        """Encode the rows of a slice, in stream order for each file."""
        ...


class Restartable(Protocol):
    """A format whose lines depend on earlier ones, and which writes heartbeats while the stream is idle."""

    def restart(self, database: str, last_commit: "LastCommit | None") -> None:
        """Go back to the last edge; `last_commit` is the last transaction before it, or None."""
        ...

    def heartbeat(self, commit_lsn: Lsn) -> "EncodedSlice":
        """Write a heartbeat, at a transaction edge."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Rows for one output file, in stream order.

    `target` is the table's name in the manifest: `schema.table`, `_messages`, or "" if everything goes into
    one file. It is also the folder's name if `table` is None: the file then holds several tables, or none.
    `head` is the start of every file of this kind (the Arrow schema); another head begins another file.
    `unchanged`: some rows have values that the server didn't send (unchanged TOAST). `invalid_text` counts
    the values that were not valid text. A piece without rows makes an empty file.
    """

    target: str
    rows: int
    first_commit_lsn: Lsn
    last_commit_lsn: Lsn
    data: Data
    head: bytes = b""
    table: "TableSchema | None" = None
    unchanged: bool = False
    invalid_text: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class EncodedSlice:
    """An encoded slice; `tables` are all its tables, for the schema files."""

    pieces: tuple[Piece, ...]
    edge: "Edge | None"
    tables: "tuple[TableSchema, ...]" = ()
