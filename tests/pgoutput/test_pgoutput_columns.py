"""Rows to columns: every width, every shape, and arrays that share no memory with others."""

import numpy as np
import pytest
from pgoutput_encoder import frame

from pgcdc_cli.changes.slice import FullImage, KeyImage
from pgcdc_cli.changes.table import ReplicaIdentity, TableColumn, TableSchema
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode_columns import RowMessages, Shape, decode_rows
from pgcdc_cli.pgoutput.message_batch import MessageBuffer
from pgcdc_cli.types.pg_type import PgType

pytestmark = pytest.mark.usefixtures("either_way")

TEXT = PgType(25, -1, "text")


def table(oid, width, keys=(0,)):
    columns = tuple(TableColumn.of(f"c{i}", TEXT, in_replica_identity=i in keys) for i in range(width))
    return TableSchema(oid, "public", f"t{oid}", ReplicaIdentity.DEFAULT, columns, None)


def full(*values):
    return m.FullTuple(tuple(map(value, values)))


def key(*values):
    return m.KeyTuple(tuple(map(value, values)))


def value(content):
    if content is None:
        return m.Null()
    return m.UnchangedToast() if content == "toast" else m.Text(content)


def decode(*groups):
    """Decode groups of table, shape and messages, whose messages are interleaved in the stream."""
    placed = [(row, group) for group, (_, _, rows) in enumerate(groups) for row in rows]
    order = sorted(range(len(placed)), key=lambda i: (i * 7919) % len(placed))
    (buffer,) = MessageBuffer.join([frame(placed[i][0]) for i in order])
    numbers = [np.array([n for n, i in enumerate(order) if placed[i][1] == g]) for g in range(len(groups))]
    images = decode_rows(
        buffer, [RowMessages(rows, of, shape) for rows, (of, shape, _) in zip(numbers, groups, strict=True)]
    )
    originals = [[placed[order[n]][0] for n in one.numbers] for one in images]
    return images, originals


@pytest.mark.parametrize("width", [0, 1, 2, 17, 1600])
def test_a_table_may_have_any_number_of_columns(width):
    rows = [m.Insert(1, full(*[f"{row}.{i}".encode() for i in range(width)])) for row in range(3)]
    ((images,), (originals,)) = decode((table(1, width), Shape.INSERT, rows))
    assert images.old is None
    assert images.new.unchanged == (None,) * width
    assert [column.to_pylist() for column in images.new.columns] == [
        [row.new.values[i].data for row in originals] for i in range(width)
    ]


def test_groups_of_different_widths_and_shapes_share_one_walk_and_no_values():
    narrow, wide = table(1, 2), table(2, 5, keys=(1, 4))
    groups = [
        (narrow, Shape.INSERT, [m.Insert(1, full(b"%d" % i, b"n" * i)) for i in range(4)]),
        (wide, Shape.DELETE_KEY, [m.Delete(2, key(None, b"%d" % i, None, None, b"k")) for i in range(3)]),
        (
            wide,
            Shape.UPDATE,
            [m.Update(2, None, full(b"a", "toast", None, b"%d" % i, b"")) for i in range(2)],
        ),
        (
            narrow,
            Shape.UPDATE_KEY,
            [m.Update(1, key(b"%d" % i, None), full(b"%d" % -i, "toast")) for i in range(5)],
        ),
        (narrow, Shape.UPDATE_OLD, [m.Update(1, full(b"o", None), full(b"n", b"%d" % i)) for i in range(2)]),
        (table(3, 0), Shape.DELETE_OLD, [m.Delete(3, full())] * 2),
    ]
    results, originals = decode(*groups)
    for (of, shape, _), images, rows in zip(groups, results, originals, strict=True):
        assert (images.new is None) == (shape.operation == "D")
        check_image(images.new, [getattr(row, "new", None) for row in rows], of)
        check_image(images.old, [getattr(row, "old", None) for row in rows], of)


def check_image(image, tuples, of):
    if image is None:
        assert set(tuples) == {None}
        return
    assert isinstance(image, KeyImage if isinstance(tuples[0], m.KeyTuple) else FullImage)
    check_values(image, tuples, of)


def check_values(image, tuples, of):
    for i, column in enumerate(image.columns):
        values = [row.values[i] for row in tuples]
        if column is None:
            assert not of.columns[i].in_replica_identity
            continue
        column.validate(full=True)
        assert column.offset == 0
        assert column.to_pylist() == [v.data if isinstance(v, m.Text) else None for v in values]
        if isinstance(image, FullImage):
            toast = [isinstance(v, m.UnchangedToast) for v in values]
            mask = image.unchanged[i]
            assert (mask is not None) == any(toast)
            assert mask is None or mask.tolist() == toast


def test_key_tuples_with_more_than_the_key_are_whole_rows():
    """A partition under replica identity FULL sends all columns in the key tuple of its root."""
    of = table(1, 3)
    rows = [
        key(b"1", None, None),
        key(b"2", b"two", None),
        key(None, b"no key", b"?"),
        key(b"3", None, None),
        key(b"4", None, b"four"),
    ]
    groups = [
        (of, Shape.DELETE_KEY, [m.Delete(1, old) for old in rows]),
        (of, Shape.UPDATE_KEY, [m.Update(1, old, full(b"n", "toast", b"w")) for old in rows]),
        (table(2, 2, keys=()), Shape.DELETE_KEY, [m.Delete(2, key(b"all", b"of it"))]),
    ]
    results, originals = decode(*groups)
    kinds = {(one.group, type(one.old)): rows for one, rows in zip(results, originals, strict=True)}
    assert [len(kinds[group, KeyImage]) for group in (0, 1)] == [3, 3]
    assert [len(kinds[group, FullImage]) for group in (0, 1, 2)] == [2, 2, 1]
    for one, messages in zip(results, originals, strict=True):
        check_values(one.old, [row.old for row in messages], groups[one.group][0])
        check_image(one.new, [getattr(row, "new", None) for row in messages], groups[one.group][0])


def test_a_group_keeps_no_other_groups_bytes():
    small, large = table(1, 1), table(2, 1)
    groups = [
        (small, Shape.INSERT, [m.Insert(1, full(b"s"))] * 3),
        (large, Shape.INSERT, [m.Insert(2, full(b"x" * 10_000))] * 3),
    ]
    (images, _), _ = decode(*groups)
    assert images.new.columns[0].buffers()[2].size == 3
