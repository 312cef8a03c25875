"""Rows of an Arrow file become the changes that were written, all of them or some."""

import io

import numpy as np
import pyarrow as pa
import pytest
from segments import finished

from pgcdc_cli.changes.slice import ChangeBatch, FullImage, KeyImage, Slice, Stamp, Stamps, TruncateChange
from pgcdc_cli.changes.table import ReplicaIdentity, TableColumn, TableSchema
from pgcdc_cli.formats.arrow import ArrowFormat
from pgcdc_cli.formats.jsonl import JsonlFormat
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.reader import arrow_reader
from pgcdc_cli.reader.arrow_reader import read_arrow
from pgcdc_cli.reader.stored_file import StoredFile
from pgcdc_cli.types.pg_type import builtin

COLUMNS = tuple(
    TableColumn.of(name, builtin(oid, -1), in_replica_identity=name in {"id", "day"})
    for name, oid in (("id", 23), ("day", 1082), ("at", 1114), ("size", 701))
)
TABLE = TableSchema(16384, "public", "ARROW1", ReplicaIdentity.DEFAULT, COLUMNS, ("id", "day"))
"""Its name, which is in the file's footer, too, is what an Arrow file ends with."""


def column(*texts):
    return pa.array([None if text is None else text.encode() for text in texts], pa.binary())


def image(ids, unchanged=None):
    rows = len(ids)
    values = (
        column(*ids),
        column(*["infinity", "2026-01-02"][:rows]),
        column(*["0044-03-15 10:00:00.5 BC", None][:rows]),
        column(*["-0", "1e+15"][:rows]),
    )
    return FullImage(values, (None, unchanged, None, None))


def key(*texts):
    return KeyImage((*map(column, texts), None, None))


def stamps(*index):
    return Stamps.of([Stamp(i, Lsn(i + 100), Lsn(200), 1_700_000_000_000_000, 7, i) for i in index])


WRITTEN = Slice(
    None,
    (
        ChangeBatch(TABLE, "I", stamps(0, 3), image(["1", "2"]), None),
        ChangeBatch(
            TABLE, "U", stamps(1), image(["5"]), KeyImage((column("1"), column("2026-01-02"), None, None))
        ),
        ChangeBatch(TABLE, "D", stamps(4), None, KeyImage((column("2"), column("-infinity"), None, None))),
    ),
    (TruncateChange(TABLE, Stamp(2, Lsn(102), Lsn(200), 1_700_000_000_000_000, 7, 2), True, False),),
)


def lines_of(part):
    form = JsonlFormat()
    return (
        b"".join(bytes(form.frame([piece.data])) for piece in form.encode(part).pieces).decode().splitlines()
    )


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """The rows as they are read, with the table's schema."""
    monkeypatch.setattr(arrow_reader, "find_schema", lambda *_: TABLE)
    form = ArrowFormat()
    [piece] = form.encode(WRITTEN).pieces
    stored = finished(piece.head + bytes(form.frame([piece.data])), form)
    content = io.BufferedReader(io.BytesIO(stored))
    return list(read_arrow(StoredFile(str(tmp_path / "t.arrow")), content))


def test_each_row_is_the_line_that_was_written(rows):
    assert [row.line for row in rows] == lines_of(WRITTEN)
    assert [row.order for row in rows] == [(200, 1, seq) for seq in range(5)]


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3, 4], [3], [2, 4], [1, 3]])
def test_some_rows_are_their_changes_in_the_order_of_their_index(rows, numbers):
    index = np.arange(len(numbers)) * 10
    taken = rows[0].rows.slice(np.array(numbers), index)
    assert lines_of(taken) == [lines_of(WRITTEN)[number] for number in numbers]
    backwards = rows[0].rows.slice(np.array(numbers), index[::-1].copy())
    assert lines_of(backwards) == [lines_of(WRITTEN)[number] for number in reversed(numbers)]
