"""Messages to transactions: those of a batch in, slices of changes out.

Everything is decided for all messages of a batch at once: the transaction each belongs to and whether it may
stand there (`outline.py`), the version of its table and its number (`batch.py`), its values (`columns.py`).
Only what is no row (relations, truncates, logical messages) is looked at one by one. This is protocol 1: what
is streamed or prepared comes here in its form, once it commits (`streamed.py`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput.batch import Batch, Tables
from pgcdc_cli.pgoutput.changes import Slice
from pgcdc_cli.pgoutput.messages import Relation
from pgcdc_cli.pgoutput.outline import Limits, OpenTransaction, Outline
from pgcdc_cli.pgoutput.small_batch import SmallBatch
from pgcdc_cli.pgoutput.wire import Wire
from pgcdc_cli.table import TableSchema


class Assembler:
    """What is known between the batches of one connection: relations, the open transaction, what is wanted.

    `describe` gives a relation message its catalog facts. It is asked for each one, since the server sends
    another whenever something about the table may have changed, be it only a default.
    Transactions with a commit LSN below `skip_before`, and non-transactional messages not beyond it, are
    dropped whole. `ended`: the end position `until` is reached, or `max_transactions` (1 or more) have ended;
    what follows is not looked at. A transaction is wanted when its final LSN is before `until`, a
    non-transactional message when its LSN is not beyond it. `binary`: it was asked for, and each type
    must have a reader for it. After an error the assembler is useless.
    """

    def __init__(
        self,
        describe: Callable[[Relation], TableSchema],
        *,
        skip_before: Lsn,
        marks: bool = False,
        until: Lsn | None = None,
        max_transactions: int | None = None,
        binary: bool = False,
    ) -> None:
        self.ended = False
        self.marks = marks
        self._limits = Limits(skip_before, until, max_transactions)
        self._open: OpenTransaction | None = None
        self._tables = Tables(describe, binary=binary)

    @property
    def in_transaction(self) -> bool:
        """A transaction's Begin has come, its Commit has not."""
        return self._open is not None

    def assemble(self, wires: Iterable[Wire]) -> list[Slice]:
        """Decode messages to at most two slices.

        The first ends at the last transaction edge among them, the second is the open remainder; where there
        is no edge, or no change after it, that slice is left out.

        UndecodableError, with nothing of the batch returned, for bytes that are no message, a message out of
        place or not asked for, a row of an unknown relation or with other columns than its relation. What
        `describe` raises passes through.
        """
        found: list[Slice] = []
        index = 0
        for wire in () if self.ended else wires:
            batch, index = self._read(wire, index)
            found += batch.slices()
            if self.ended:
                break
        return _merged(found)

    def assemble_small(self, frames: Sequence[bytes]) -> list[Slice] | None:
        """Decode what `is_small` takes, as `assemble` does; None for what only that can do."""
        if self.ended or self._limits.transactions is not None:
            return None
        batch = SmallBatch(self._tables, self._open, self._limits, marks=self.marks)
        found = batch.slices(frames)
        if found is not None:
            self._open = batch.open
        return found

    def _read(self, wire: Wire, index: int) -> tuple[Batch, int]:
        """Take over a buffer's messages; their indexes count from `index`. Returns the next index, too."""
        outline = Outline(wire, self._open, self._limits)
        batch = Batch(wire, outline, self._tables, None if self._open is None else self._open.origin)
        first_seq = 0 if self._open is None else self._open.seq
        index = batch.number(first_index=index, first_seq=first_seq, marks=self.marks)
        self._open = batch.open_transaction(self._open)
        self.ended = outline.ended
        if self._limits.transactions is not None:
            left = self._limits.transactions - len(outline.edges)
            self._limits = self._limits._replace(transactions=left)
        return batch, index


def _merged(found: Sequence[Slice]) -> list[Slice]:
    """At most two slices of any number: up to the last edge, and the rest."""
    edges = [number for number, part in enumerate(found) if part.edge]
    cut = edges[-1] + 1 if edges else 0
    return [_joined(some) for some in (found[:cut], found[cut:]) if some]


def _joined(parts: Sequence[Slice]) -> Slice:
    edge = parts[-1].edge
    if edge is not None:
        edge = replace(edge, transactions=sum(part.edge.transactions for part in parts if part.edge))
    return Slice(
        edge,
        tuple(chain.from_iterable(part.changes for part in parts)),
        tuple(chain.from_iterable(part.truncates for part in parts)),
        tuple(chain.from_iterable(part.messages for part in parts)),
        tuple(chain.from_iterable(part.marks for part in parts)),
    )
