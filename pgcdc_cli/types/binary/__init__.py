"""Convert binary values (a type's send format) to the text that the server would have sent.

The text is that of pgcdc's sessions (`replication/session.py`), so that no later step can tell in which
format a value came. The function named by a type's `pg_type.typsend`, in PostgreSQL's source, defines its
send format.

These types have no reader: money, whose text depends on the server's locale; the reg* types, whose text is a
name; composite types and user-defined ranges; types of extensions, except those that send their text
(citext).
"""

from bisect import bisect_left

import numpy as np
import pyarrow as pa

from pgcdc_cli.errors import MalformedError
from pgcdc_cli.types.binary import datetimes, scalars
from pgcdc_cli.types.binary.containers import Array, Multirange, Range, Vector
from pgcdc_cli.types.binary.numbers import FLOAT4, FLOAT8, numeric
from pgcdc_cli.types.binary.packed import Packed, Reader, spread
from pgcdc_cli.types.kernels import as_mask
from pgcdc_cli.types.pg_type import OIDS, PgType


def text_of(pg_type: PgType, column: pa.BinaryArray) -> pa.BinaryArray:
    """Convert n values of a type that has a reader; NULL stays NULL.

    Raises MalformedError, with the first row that it concerns, for a value that is not in the type's send
    format, or if all values together have 2**31 characters or more.
    """
    read = _reader(pg_type)
    assert read is not None, pg_type
    if read is scalars.text:
        return column
    there = as_mask(column.is_valid()) if column.null_count else None
    values = Packed.of(column if there is None else column.drop_null())
    if not values.rows:
        return column
    try:
        texts = read(values)
        return texts.arrow() if there is None else spread(texts, there)
    except MalformedError as error:
        row = _first_bad(read, values)
        at = row if there is None else int(np.flatnonzero(there)[row])
        raise MalformedError(error.reason, at) from None


def _first_bad(read: Reader, values: Packed) -> int:
    """Find the first row at which reading fails."""

    def fails(row: int) -> bool:
        try:
            read(Packed(values.offsets[: row + 2], values.data[: values.offsets[row + 1]])).arrow()
        except MalformedError:
            return True
        return False

    return bisect_left(range(values.rows - 1), True, key=fails)


def has_reader(pg_type: PgType) -> bool:
    """Whether `text_of` can read the type."""
    return _reader(pg_type) is not None


def sends_binary(pg_type: PgType) -> bool:
    """Whether a server can send values of this type in binary: whether it has a send function."""
    return pg_type.sends != "nothing" and pg_type.oid not in _WITHOUT_SEND


def _reader(pg_type: PgType) -> Reader | None:
    if pg_type.element is not None:
        element = _reader(pg_type.element)
        return element and Array(element, b";" if pg_type.element.oid == _BOX else b",")
    if pg_type.category == "enum" or pg_type.sends == "text":
        return scalars.text
    return _BY_OID.get(pg_type.oid)


_BOX = OIDS["box"]
_int4, _int8 = scalars.integer("i4"), scalars.integer("i8")
_timestamp, _timestamptz = datetimes.timestamp(b""), datetimes.timestamp(b"+00")
_RANGES = {
    "int4": Range(_int4),
    "int8": Range(_int8),
    "num": Range(numeric),
    "ts": Range(_timestamp),
    "tstz": Range(_timestamptz),
    "date": Range(datetimes.date),
}
_BY_NAME: dict[str, Reader] = {
    "bool": scalars.boolean,
    "int2": scalars.integer("i2"),
    "int4": _int4,
    "int8": _int8,
    "oid": scalars.integer("u4"),
    "xid": scalars.integer("u4"),
    "cid": scalars.integer("u4"),
    "xid8": scalars.integer("u8"),
    "float4": FLOAT4,
    "float8": FLOAT8,
    "numeric": numeric,
    "char": scalars.char,
    **dict.fromkeys(("name", "text", "varchar", "bpchar", "json", "refcursor"), scalars.text),
    "xml": scalars.xml,
    "jsonb": scalars.versioned,
    "jsonpath": scalars.versioned,
    "bytea": scalars.bytea,
    "uuid": scalars.uuid,
    "bit": scalars.bits,
    "varbit": scalars.bits,
    "date": datetimes.date,
    "time": datetimes.time,
    "timetz": datetimes.timetz,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "interval": datetimes.interval,
    "inet": scalars.address(network=False),
    "cidr": scalars.address(network=True),
    "macaddr": scalars.mac(6),
    "macaddr8": scalars.mac(8),
    "point": scalars.figure(b"(", 0, b",", 1, b")"),
    "lseg": scalars.figure(b"[(", 0, b",", 1, b"),(", 2, b",", 3, b")]"),
    "box": scalars.figure(b"(", 0, b",", 1, b"),(", 2, b",", 3, b")"),
    "line": scalars.figure(b"{", 0, b",", 1, b",", 2, b"}"),
    "circle": scalars.figure(b"<(", 0, b",", 1, b"),", 2, b">"),
    "path": scalars.path,
    "polygon": scalars.polygon,
    "pg_lsn": scalars.pg_lsn,
    "tid": scalars.tid,
    "pg_snapshot": scalars.snapshot,
    "txid_snapshot": scalars.snapshot,
    "int2vector": Vector(scalars.integer("i2")),
    "oidvector": Vector(scalars.integer("u4")),
    "tsvector": scalars.tsvector,
    "tsquery": scalars.tsquery,
    **{f"{name}range": reader for name, reader in _RANGES.items()},
    **{f"{name}multirange": Multirange(reader) for name, reader in _RANGES.items()},
}
_BY_OID = {OIDS[name]: reader for name, reader in _BY_NAME.items()}
_WITHOUT_SEND = {OIDS[name] for name in ("aclitem", "gtsvector")}
