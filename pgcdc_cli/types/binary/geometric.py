"""Points and what is made of them: float8 numbers in brackets (geo_ops.c)."""

import numpy as np

from pgcdc_cli.types import kernels
from pgcdc_cli.types.binary.numbers import FLOAT8
from pgcdc_cli.types.binary.packed import Packed, Reader, choose, edges, numbers_at, require, slices
from pgcdc_cli.types.kernels import ArrowArray

_POINT = 16


def figure(*parts: bytes | int) -> Reader:
    """Read a figure; `parts` are what is printed: constants, and its numbers by their index."""
    size = 8 * (1 + max(part for part in parts if isinstance(part, int)))

    def read(values: Packed) -> Packed:
        numbers = values.fixed(size).reshape(-1, 8)
        texts = FLOAT8(Packed(np.arange(len(numbers) + 1) * 8, numbers.reshape(-1))).arrow()
        columns = [
            part if isinstance(part, bytes) else kernels.take(texts, np.arange(part, len(numbers), size // 8))
            for part in parts
        ]
        return Packed.of(kernels.join(columns))

    return read


_point = figure(b"(", 0, b",", 1, b")")


def _points(values: Packed, head: int) -> ArrowArray:
    """Join the points behind a head whose last four bytes are their number."""
    count = numbers_at(values.data, values.starts + head - 4, values.ends, "i4")
    require((count >= 0) & (values.lengths == head + count * _POINT), "its length is not that of its points")
    flat = slices(values, values.starts + head, values.lengths - head).data
    points = _point(Packed(np.arange(len(flat) // _POINT + 1) * _POINT, flat)).arrow()
    return kernels.join_lists(edges(count), points, b",")


def polygon(values: Packed) -> Packed:
    return Packed.of(kernels.join([b"(", _points(values, 4), b")"]))


def path(values: Packed) -> Packed:
    values.at_least(5)
    closed = values.data[values.starts]
    require(closed <= 1, "it is neither open nor closed")
    return Packed.of(
        kernels.join([choose((b"[", b"("), closed), _points(values, 5), choose((b"]", b")"), closed)])
    )
