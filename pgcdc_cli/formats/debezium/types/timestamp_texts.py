"""The texts of dates and timestamps that are converted a column at a time, and how to recognize them."""

from contextlib import suppress

import numpy as np
import pyarrow as pa

from pgcdc_cli.formats.debezium.types.kind import Converter, Each, ToJson, usually
from pgcdc_cli.types import kernels

SINCE_1583 = r"^(158[3-9]|159\d|1[6-9]\d\d|[2-9]\d{3})-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d+)?(\+00)?)?$"
"""Dates and timestamps for which Java's calendar, Julian before 1582, and PostgreSQL's agree."""
USUAL_TIMESTAMP = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?(\+00)?$"
_LENGTH = len("2026-01-02 03:04:05")


def timestamps(convert: ToJson, each: Each, *, snapshot: bool) -> Converter:
    """Make a converter: `convert` for usual texts, `each` for the rest.

    `convert` must raise ArrowInvalid for unusual texts of at least the usual length.
    """
    tested = usually(SINCE_1583 if snapshot else USUAL_TIMESTAMP, convert, each)
    test = all_since_1583 if snapshot else _all_long

    def to_json(column: pa.BinaryArray) -> pa.BinaryArray:
        if test(column):
            # The conversion itself is the faster test, and most columns pass it.
            with suppress(pa.ArrowInvalid):
                return convert(column)
        return tested(column)

    return Converter(to_json, each)


def _all_long(column: pa.BinaryArray) -> bool:
    """Whether all texts are long enough for a date and a time of day with seconds."""
    lengths = np.diff(kernels.value_bytes(column)[0])
    return int((lengths >= _LENGTH).sum()) == len(column) - column.null_count


def all_since_1583(column: pa.BinaryArray) -> bool:
    """Whether all texts are that long, of years from 1583 on, and not BC; false if all are null."""
    offsets, data = kernels.value_bytes(column)
    starts, lengths = offsets[:-1], np.diff(offsets)
    if column.null_count:
        starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    if not len(data) or lengths.min() < _LENGTH or data.max() >= ord("B"):
        return False
    years = kernels.at_each_byte(data, "u4")[starts]
    return bool((years >= int.from_bytes(b"1583")).all())
