"""Lines of text of a slice's rows, as a column or, of a few rows, as a list; back in stream order."""

from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias, cast

import numpy as np
import pyarrow as pa

from pgcdc_cli.formats.ordered import Arrange, Encoded
from pgcdc_cli.pgoutput.changes import Int64s
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Column, Mask

Lines: TypeAlias = "Column | list[bytes]"
EncodedLines: TypeAlias = "Encoded[Lines]"

MOST_ROWS = 24
"""Rows from about which on columns are quicker than one after the other."""


def are_few(rows: int) -> bool:
    """Say whether so many rows of a table and shape are quicker written one by one."""
    return rows <= MOST_ROWS


def _concat(parts: Sequence[Lines]) -> Lines:
    if all(isinstance(part, list) for part in parts):
        return list(chain.from_iterable(cast("Sequence[list[bytes]]", parts)))
    return kernels.concat_bytes([kernels.binary(part) if isinstance(part, list) else part for part in parts])


def _take(lines: Lines, rows: Int64s) -> Lines:
    return [lines[row] for row in rows.tolist()] if isinstance(lines, list) else kernels.take(lines, rows)


LINES: Arrange[Lines] = Arrange(_concat, _take)


def not_empty(lines: Lines) -> Mask:
    """Say which rows have a text at all."""
    if isinstance(lines, list):
        return np.array([len(line) > 0 for line in lines])
    mask: Mask = np.diff(kernels.value_bytes(lines)[0]) > 0
    return mask


def joined_lines(lines: Lines) -> bytes | pa.Buffer:
    """Give lines as one piece of data."""
    return b"".join(lines) if isinstance(lines, list) else kernels.contiguous(lines)
