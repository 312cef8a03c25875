"""The types of pgvector, which Debezium knows since 3.4: `vector`, `halfvec` and `sparsevec`."""

from typing import Any

import numpy as np
import pyarrow as pa

from pgcdc_cli.formats.debezium.types.kind import Converter, Kind, inexact, named, per_value
from pgcdc_cli.formats.debezium.types.numeric_types import floating, java_float
from pgcdc_cli.types import kernels
from pgcdc_cli.types.array_literals import split_arrays

_LARGEST_INT16 = 2**15 - 1

_SPARSE: dict[str, Any] = named("struct", "io.debezium.data.SparseDoubleVector") | {
    "fields": [
        {"type": "int16", "optional": False, "field": "dimensions"},
        {
            "type": "map",
            "keys": {"type": "int16", "optional": False},
            "values": {"type": "double", "optional": False},
            "optional": False,
            "field": "vector",
        },
    ],
    "doc": "Sparse double vector",
}


def dense(type_: str, name: str) -> Kind:
    """`vector` and `halfvec`: a list of numbers of one Connect type, such as `[1.0,2.5]`."""
    number, java = floating(type_).to_json, np.float32 if type_ == "float" else np.float64
    schema = named("array", name) | {"items": {"type": type_, "optional": False}}

    def to_json(column: pa.BinaryArray) -> pa.BinaryArray:
        numbers = split_arrays(kernels.replace_pattern(column, r"^\[(.*)\]$", r"{\1}"), ",")
        listed = kernels.join_lists(numbers.offsets, number(numbers.texts), b",")
        return kernels.nulled_like(kernels.as_binary(kernels.join([b"[", listed, b"]"])), column)

    def each(text: str) -> bytes:
        return b"[" + b",".join(java_float(one, java) for one in text[1:-1].split(",")) + b"]"

    form = inexact("Debezium prints numbers as Java does")
    return Kind(schema, Converter(to_json, each), b"[]", form=form)


def sparse() -> Kind:
    """`sparsevec`: its dimensions, and pairs of index and number; null where Java's short can't count them.

    The connector gives the pairs in an order that is another in each run; here they are sorted, as the server
    prints them.
    """
    form = inexact("Debezium prints numbers as Java does")
    return Kind(_SPARSE, per_value(_sparse), form=form)


def _sparse(text: str) -> bytes | None:
    numbers, _, dimensions = text.rpartition("/")
    if int(dimensions) > _LARGEST_INT16:
        return None
    pairs = (pair.partition(":") for pair in numbers[1:-1].split(",") if pair)
    listed = (b"[%s,%s]" % (index.encode(), java_float(number)) for index, _, number in pairs)
    return b'{"dimensions":%s,"vector":[%s]}' % (dimensions.encode(), b",".join(listed))
