"""The columnar decoder: decodes the rows of a batch into columns of text values, with no Python code per row.

The tuples of all rows are walked together, column by column: kind and length are gathered at every row's
position, and the next position is the end of this column. Values are packed by one Arrow `take` per column.
All groups of rows share the walk, the widest tables first, so that the rows that still have columns are a
prefix. So many small groups cost little more than one large one.

Malformed messages are found here for all rows at once; then the plain decoder tells what is wrong.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.changes.slice import FEW_BYTES, FEW_ROWS, FewColumns, FullImage, Image, KeyImage, Operation
from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.errors import MalformedError, UndecodableError
from pgcdc_cli.pgoutput.message_batch import MessageBuffer
from pgcdc_cli.pgoutput.messages import (
    BINARY,
    NULL,
    TEXT,
    UNCHANGED_TOAST,
    Binary,
    Delete,
    Insert,
    Update,
)
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Booleans, Int64s

SMALLEST_ROW = 8
"""Bytes of a row message whose tuple has no columns: tag, relation OID, marker, column count."""

_COUNT_AT = 6
_NEW = ord("N")


class Shape(Enum):
    """The operation, and the marker of the message's first tuple: `N` new, `K` key, `O` old row."""

    INSERT = ("I", "N")
    UPDATE = ("U", "N")
    UPDATE_KEY = ("U", "K")
    UPDATE_OLD = ("U", "O")
    DELETE_KEY = ("D", "K")
    DELETE_OLD = ("D", "O")

    @property
    def operation(self) -> Operation:
        return self.value[0]

    @property
    def marker(self) -> str:
        return self.value[1]


@dataclass(frozen=True, slots=True, eq=False)
class RowMessages:
    """Row messages of one table and one shape, by number; each has `SMALLEST_ROW` bytes or more.

    `read` converts binary values of a column, given by its index, to text; None if the connection did not
    request binary. `whole` says that the old tuples are whole rows, despite their `K` marker.
    """

    numbers: Int64s
    table: TableSchema
    shape: Shape
    read: Callable[[int, pa.BinaryArray], pa.BinaryArray] | None = None
    whole: bool = False


class RowImages(NamedTuple):
    """The images of the rows with these message numbers; `group` is the index of their group."""

    group: int
    numbers: Int64s
    new: FullImage | None
    old: Image | None


def decode_rows(buffer: MessageBuffer, groups: Sequence[RowMessages]) -> list[RowImages]:
    """Decode the row messages of one or more groups; one or two results for each group.

    With `publish_via_partition_root`, the marker depends on the root's replica identity, the old tuple on the
    partition's (`logicalrep_write_update` in proto.c). So a `K` tuple with values outside of the key is a
    whole row, from a partition with replica identity FULL; such rows of a group have a result of their own.

    Raises UndecodableError, with the message's LSN, if the plain decoder refuses a message, if it has another
    number of columns than its relation, or a binary value that was not requested or can't be read.
    """
    first = [
        _Tuples(buffer, rows, rows.shape.marker, buffer.starts[rows.numbers] + _COUNT_AT) for rows in groups
    ]
    _walk(buffer, first)
    if any(run.whole.any() for run in first):
        return _decode_apart(buffer, first)
    second = {i: _new_tuples(buffer, run) for i, run in enumerate(first) if _has_both(run.rows.shape)}
    _walk(buffer, list(second.values()))
    last = [second.get(i, run) for i, run in enumerate(first)]
    _check(buffer, last, np.concatenate([run.position == run.ends for run in last]))
    return [_images(i, run, second.get(i)) for i, run in enumerate(first)]


def _decode_apart(buffer: MessageBuffer, runs: Sequence["_Tuples"]) -> list[RowImages]:
    """Decode again, with the whole rows of each group as a group of their own."""
    parts = []
    for group, run in enumerate(runs):
        for whole in np.unique(run.whole).tolist():
            numbers = run.rows.numbers[run.whole == whole]
            parts.append((group, replace(run.rows, numbers=numbers, whole=whole or run.rows.whole)))
    found = decode_rows(buffer, [rows for _, rows in parts])
    return [images._replace(group=parts[images.group][0]) for images in found]


def _has_both(shape: Shape) -> bool:
    return shape in {Shape.UPDATE_KEY, Shape.UPDATE_OLD}


def _images(group: int, first: "_Tuples", second: "_Tuples | None") -> RowImages:
    numbers = first.rows.numbers
    if second is not None:
        return RowImages(group, numbers, second.full_image(), first.old_image())
    if first.rows.shape.operation == "D":
        return RowImages(group, numbers, None, first.old_image())
    return RowImages(group, numbers, first.full_image(), None)


class _Tuples:
    """One tuple of each row of a group; `position` is where its next column begins.

    `is_key` says that only the key's columns are wanted, `has_more` which tuples have values of other
    columns, `lacks_key` which lack some of the key's. `are_few` is set by the walk.
    """

    def __init__(self, buffer: MessageBuffer, rows: RowMessages, marker: str, position: Int64s) -> None:
        self.rows = rows
        self.marker = marker
        self.is_key = marker == "K" and not rows.whole
        self.position = position
        self.ends = buffer.ends[rows.numbers]
        self.has_more = self.lacks_key = np.zeros(len(position), np.bool_)
        self.width = len(rows.table.columns)
        self.are_few = False
        self.columns: list[pa.BinaryArray | None] = []
        self.unchanged: list[Booleans | None] = []

    def wants(self, column: int) -> bool:
        return not self.is_key or self.rows.table.columns[column].in_replica_identity

    def look(self, column: int, kind: Int64s | None) -> None:
        """Note which key tuples have a value in this column."""
        if self.wants(column):
            self.lacks_key = self.lacks_key if kind is None else self.lacks_key | (kind == NULL)
        else:
            self.has_more = self.has_more | (np.True_ if kind is None else kind != NULL)

    @property
    def whole(self) -> Booleans:
        """Which key tuples are whole rows; valid after the walk."""
        return self.has_more & ~self.lacks_key

    def old_image(self) -> Image:
        if not self.is_key:
            return self.full_image()
        return KeyImage(FewColumns(self.columns) if self.are_few else tuple(self.columns))

    def full_image(self) -> FullImage:
        # A row has a value for each column of its table.
        columns = cast("list[pa.BinaryArray]", self.columns)
        return FullImage(FewColumns(columns) if self.are_few else tuple(columns), tuple(self.unchanged))


def _new_tuples(buffer: MessageBuffer, old: _Tuples) -> _Tuples:
    """Find the new tuples after the old ones, which have been walked."""
    words = buffer.int64(old.position)
    _check(buffer, [old], (old.position + 3 <= old.ends) & (words >> 56 == _NEW))
    return _Tuples(buffer, old.rows, "N", old.position + 1)


class _Step(NamedTuple):
    """One column's values, in every row that has this column. `kind` is None if all are text."""

    starts: Int64s
    ends: Int64s
    kind: Int64s | None
    good: Booleans


def _walk(buffer: MessageBuffer, runs: Sequence[_Tuples]) -> None:
    """Fill the columns of all runs, and move their positions to the ends of their tuples."""
    if not runs:
        return
    runs = sorted(runs, key=lambda run: -run.width)
    bounds = [0, *np.cumsum([len(run.position) for run in runs]).tolist()]
    position = np.concatenate([run.position for run in runs])
    ends = np.concatenate([run.ends for run in runs])
    is_key = np.repeat([run.marker == "K" for run in runs], np.diff(bounds))
    widths = np.repeat([run.width for run in runs], np.diff(bounds))
    _check(buffer, runs, buffer.int64(position) >> 48 & 0xFFFF == widths)
    position += 2
    active = len(runs)
    binary = runs[0].rows.read is not None
    if not binary:
        _find_few(runs, np.add.reduceat(ends - position, bounds[:-1]).tolist())
    for column in range(runs[0].width):
        while runs[active - 1].width <= column:
            active -= 1
        rows = bounds[active]
        step = _step(buffer, position[:rows], ends[:rows], is_key[:rows], binary=binary)
        _check(buffer, runs, step.good)
        position[:rows] = step.ends
        _append(buffer, step, runs[:active], bounds, column)
    for run, (start, end) in zip(runs, pairwise(bounds), strict=True):
        run.position = position[start:end]


def _find_few(runs: Sequence[_Tuples], sizes: Sequence[int]) -> None:
    """Mark the runs with so few rows and bytes that they are mostly formatted row by row."""
    for run, size in zip(runs, sizes, strict=True):
        run.are_few = len(run.position) <= FEW_ROWS and size <= FEW_BYTES


def _step(buffer: MessageBuffer, position: Int64s, ends: Int64s, is_key: Booleans, *, binary: bool) -> _Step:
    word = buffer.int64(position)
    kind = word >> 56
    length = word >> 24 & 0xFFFFFFFF
    sent = kind == TEXT
    if sent.all():
        starts = position + 5
        stops = starts + length
        return _Step(starts, stops, None, stops <= ends)
    if binary:
        sent |= kind == BINARY
    starts = position + np.where(sent, 5, 1)
    stops = starts + np.where(sent, length, 0)
    known = sent | (kind == NULL) | ((kind == UNCHANGED_TOAST) & ~is_key)
    return _Step(starts, stops, kind, known & (stops <= ends))


def _append(
    buffer: MessageBuffer, step: _Step, runs: Sequence[_Tuples], bounds: Sequence[int], column: int
) -> None:
    """Append the column's values to every run."""
    kinds = [
        None if step.kind is None else step.kind[start:end]
        for start, end in pairwise(bounds[: len(runs) + 1])
    ]
    for run, kind in zip(runs, kinds, strict=True):
        if run.is_key:
            run.look(column, kind)
    wanted = [run.wants(column) for run in runs]
    if not any(wanted):
        for run in runs:
            run.columns.append(None)
        return
    values = kernels.nulled(buffer.pack(step.starts, step.ends), _nulls(step.kind))
    offsets = kernels.offsets(values)
    for run, kind, start, end, wants in zip(runs, kinds, bounds, bounds[1:], wanted, strict=False):
        if not wants:
            run.columns.append(None)
        elif run.are_few:
            run.columns.append(values.slice(start, end - start))
        else:
            own = _own_values(values, kind, offsets[start : end + 1])
            run.columns.append(own if kind is None else _text(buffer, run.rows, column, own, kind))
        run.unchanged.append(_mask(kind))


def _nulls(kind: Int64s | None) -> Booleans | None:
    return None if kind is None else (kind != TEXT) & (kind != BINARY)


def _own_values(values: pa.BinaryArray, kind: Int64s | None, offsets: NDArray[np.int32]) -> pa.BinaryArray:
    """Make an array of a run's values alone: offset 0, and no other run's bytes in its buffer."""
    count = len(offsets) - 1
    if count == len(values):
        return values
    data = values.buffers()[2]
    first, last = int(offsets[0]), int(offsets[-1])
    buffers = [
        None if (null := _nulls(kind)) is None else kernels.bitmap(~null),
        kernels.buffer(offsets - offsets[0]),
        pa.py_buffer(b"") if data is None else data.slice(first, last - first),
    ]
    return cast("pa.BinaryArray", pa.BinaryArray.from_buffers(pa.binary(), count, buffers))


def _text(
    buffer: MessageBuffer, rows: RowMessages, column: int, values: pa.BinaryArray, kind: Int64s
) -> pa.BinaryArray:
    """Convert the binary values of a column to text."""
    binary = kind == BINARY
    if rows.read is None or not binary.any():
        return values
    mixed = bool((kind == TEXT).any())
    try:
        read = rows.read(column, values.filter(pa.array(binary)) if mixed else values)
    except MalformedError as error:
        numbers = rows.numbers[binary] if mixed else rows.numbers
        raise _malformed(buffer, int(numbers[error.row]), rows.table.columns[column].name, error) from None
    return kernels.replace_with_mask(values, binary, read) if mixed else read


def _malformed(buffer: MessageBuffer, number: int, column: str, error: MalformedError) -> UndecodableError:
    reason = f'column "{column}" is not what its type sends in binary: {error.reason}'
    return buffer.error(number, f"could not decode {buffer.title(number)} message: {reason}")


def _mask(kind: Int64s | None) -> Booleans | None:
    if kind is None:
        return None
    unchanged: Booleans = kind == UNCHANGED_TOAST
    return unchanged if unchanged.any() else None


def _check(buffer: MessageBuffer, runs: Sequence[_Tuples], good: Booleans) -> None:
    """Raise the error of the first message that is not good; `good` may cover the first runs only."""
    if good.all():
        return
    bad: list[tuple[int, TableSchema]] = []
    start = 0
    for run in runs:
        own = good[start : start + len(run.position)]
        bad += [(int(number), run.rows.table) for number in run.rows.numbers[: len(own)][~own][:1]]
        start += len(run.position)
    raise _explain(buffer, *min(bad, key=lambda pair: pair[0]))


def _explain(buffer: MessageBuffer, number: int, table: TableSchema) -> UndecodableError:
    message = buffer.decode(number)
    assert isinstance(message, Insert | Update | Delete)
    title = f"could not decode {type(message).__name__} message"
    images = [getattr(message, name, None) for name in ("old", "new")]
    for image in filter(None, images):
        if len(image.values) != len(table.columns):
            return buffer.error(
                number,
                f"{title}: it has {len(image.values)} columns,"
                f' table "{table.display}" has {len(table.columns)}',
            )
        for column, value in zip(table.columns, image.values, strict=True):
            if isinstance(value, Binary):
                return buffer.error(
                    number, f'{title}: column "{column.name}" is binary, which was not asked for'
                )
    raise AssertionError(f"the decoders disagree on {buffer.message(number)!r}")
