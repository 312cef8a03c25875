"""JSON lines: one object a line for every change, truncate and logical message, and for B and C if asked.

Keys, in this order: op, lsn, commit_lsn, seq, xid, ts, gid, origin, origin_lsn, schema, table, key, old, new,
unchanged, json_null. Those that have nothing to say are left out. `gid` is there in a transaction that was
prepared, `origin` in one that came here from another server. A column that the server didn't send is not in
`new`, and `unchanged` names it. `json_null` names the columns, as "new.doc" or "old.doc", whose null is
JSON's own and not SQL NULL. `xid` is null outside of transactions. What each type
looks like is in `types/convert.py`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Literal

import pyarrow as pa

from pgcdc_cli.formats.base import Data, EncodedSlice, Piece
from pgcdc_cli.formats.capabilities import Capabilities, Compression, Layout, Numeric
from pgcdc_cli.formats.compress import SUFFIXES, compress
from pgcdc_cli.formats.events import Event, event_object
from pgcdc_cli.formats.jsonfew import few_lines
from pgcdc_cli.formats.jsonobject import joined
from pgcdc_cli.formats.jsonrow import row_parts
from pgcdc_cli.formats.lines import LINES, EncodedLines, joined_lines
from pgcdc_cli.formats.ordered import MESSAGES, Encoded, commit_range, place, tables_of
from pgcdc_cli.pgoutput.changes import ChangeBatch, Slice, TruncateChange
from pgcdc_cli.table import TableSchema


@dataclass(frozen=True, slots=True)
class JsonlFormat:
    """The default format. `layout` "table" gives one target a table, "stream" everything in one file.

    `transactions` adds a line for each begin and commit; it needs the stream layout.
    """

    name: ClassVar[str] = "jsonl"
    tail: ClassVar[bytes] = b""
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("table", "stream"), ("none", "gzip", "zstd"), numeric=True, transactions=True
    )
    decodes: ClassVar[Literal[True]] = True
    restartable: ClassVar[None] = None

    layout: Layout = "table"
    compression: Compression = "none"
    numeric: Numeric = "string"
    transactions: bool = False

    @property
    def suffix(self) -> str:
        return ".jsonl" + SUFFIXES[self.compression]

    @property
    def wants_marks(self) -> bool:
        return self.transactions

    def encode(self, part: Slice) -> EncodedSlice:
        """Encode the rows of a slice; a PROTOCOL error where a value is no valid UTF-8."""
        marks = chain.from_iterable(part.marks if self.transactions else ())
        events: list[Event] = [*part.truncates, *part.messages, *marks]
        encoded = [self._batch(batch, part.gid) for batch in part.changes if len(batch)]
        encoded += [self._event(event, part.gid) for event in events]
        pieces = tuple(_piece(lines) for lines in LINES.in_order(encoded))
        return EncodedSlice(pieces, part.edge, tables_of(part))

    def frame(self, data: Sequence[Data]) -> bytes | memoryview | pa.Buffer:
        """Join lines; with a compression, into one frame."""
        return compress(data, self.compression)

    def _batch(self, batch: ChangeBatch, gid: str | None) -> EncodedLines:
        few = few_lines(batch, self.numeric, gid)
        lines = joined(row_parts(batch, self.numeric, gid)) if few is None else few
        target, stamps = self._place(batch.table), batch.stamps
        return Encoded(*target, stamps.index, stamps.commit_lsn, lines, batch.lacks_any)

    def _event(self, event: Event, gid: str | None) -> EncodedLines:
        line = json.dumps(event_object(event, gid), ensure_ascii=False, separators=(",", ":")) + "\n"
        table = event.table if isinstance(event, TruncateChange) else None
        return Encoded(*self._place(table), *place(event.stamp), [line.encode()])

    def _place(self, table: TableSchema | None) -> tuple[str, TableSchema | None]:
        if self.layout == "stream":
            return "", None
        return (MESSAGES, None) if table is None else (table.display, table)


def _piece(lines: EncodedLines) -> Piece:
    data = joined_lines(lines.rows)
    rows, commits = len(lines.rows), commit_range(lines)
    return Piece(lines.target, rows, *commits, data, table=lines.table, unchanged=lines.unchanged)
