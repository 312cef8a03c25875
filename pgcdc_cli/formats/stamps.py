"""Where changes stand, as text: as the members of JSON lines, and LSNs and moments by themselves.

A stamp's keys are, in this order, lsn, commit_lsn, seq, xid, ts, gid, origin and origin_lsn; the last three
only where they have something to say.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache

import numpy as np
import pyarrow as pa

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.slice import Stamp, Stamps
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.json_object import joined, quote
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Fragment, Int64s

INVALID_XID = 0
"""`InvalidTransactionId` in access/transam.h: what snapshot rows have."""

_POSITION = b'"lsn":"%b","commit_lsn":"%b","seq":%b'
_TRANSACTION = b',"xid":%b,"ts":"%b"'
_NO_TRANSACTION = b',"xid":null,"ts":null'


def stamp_columns(stamps: Stamps, gid: str | None) -> Iterator[Fragment]:
    """Yield what, joined row by row, are n stamps; `gid` is what their transaction was prepared as.

    What a transaction's rows share is written once for each run of them.
    """
    starts = transaction_starts(stamps)
    commit_lsn = lsn_text(stamps.commit_lsn[starts])
    xid = kernels.null_where(integer_text(stamps.xid[starts]), stamps.xid[starts] == INVALID_XID)
    ts = timestamp_text(stamps.commit_ts[starts])
    source = _source_column(stamps, starts, gid)
    transaction = joined([*_filled(_TRANSACTION, [xid], [ts]), source])
    commit_lsn_of_row, transaction_of_row = each_row(starts, len(stamps), commit_lsn, transaction)
    yield from _filled(_POSITION, _lsn_column(stamps.lsn), [commit_lsn_of_row], [integer_text(stamps.seq)])
    yield transaction_of_row


def each_row(starts: Int64s, rows: int, *columns: ArrowArray) -> list[Fragment]:
    """Give every row what is there once for each run of them; `starts` says where the runs begin."""
    if len(starts) == 1:
        return [column[0].as_py() for column in columns]
    run = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, rows)))
    return [kernels.take(column, run) for column in columns]


def _lsn_column(values: Int64s) -> Sequence[Fragment]:
    """Give LSNs; of a snapshot's rows all are the same."""
    return [one_lsn(int(values[0]))] if (values == values[0]).all() else lsn_fragments(values)


def transaction_starts(stamps: Stamps) -> Int64s:
    """Find where another transaction begins."""
    changed = (
        (np.diff(stamps.commit_lsn) != 0) | (np.diff(stamps.xid) != 0) | (np.diff(stamps.commit_ts) != 0)
    )
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(changed) + 1])


def _source_column(stamps: Stamps, starts: Int64s, gid: str | None) -> Fragment:
    if stamps.origin is None:
        return _source(gid, None)
    texts = [_source(gid, origin) for origin in (None, *stamps.origins)]
    return kernels.take(kernels.binary(texts), stamps.origin[starts] + 1)


def _filled(template: bytes, *columns: Sequence[Fragment]) -> Iterator[Fragment]:
    """Put each column, given in fragments, where a `%b` stands."""
    begin, *constants = template.split(b"%b")
    yield begin
    for fragments, constant in zip(columns, constants, strict=True):
        yield from fragments
        yield constant


def stamp_rows(stamps: Stamps, gid: str | None) -> Iterator[bytes]:
    """Yield the stamps of a few rows of this server, one by one."""
    source = _source(gid, None)
    columns = (stamps.lsn, stamps.commit_lsn, stamps.seq, stamps.xid, stamps.commit_ts)
    for lsn, commit_lsn, seq, xid, commit_ts in zip(*(column.tolist() for column in columns), strict=True):
        commit, transaction = _commit(commit_lsn, xid, commit_ts)
        yield _POSITION % (one_lsn(lsn), commit, b"%d" % seq) + transaction + source


def one_stamp(stamp: Stamp, gid: str | None) -> bytes:
    """Write a single stamp."""
    commit, transaction = _commit(stamp.commit_lsn, stamp.xid, stamp.commit_ts)
    position = _POSITION % (one_lsn(stamp.lsn), commit, b"%d" % stamp.seq)
    return position + transaction + _source(gid, stamp.origin)


def one_transaction(stamp: Stamp, gid: str | None) -> bytes:
    """Write a single stamp from the comma before `xid` on."""
    return _commit(stamp.commit_lsn, stamp.xid, stamp.commit_ts)[1] + _source(gid, stamp.origin)


@lru_cache(64)
def _commit(commit_lsn: int, xid: int | None, commit_ts: int | None) -> tuple[bytes, bytes]:
    """Write what a transaction's rows share: the commit LSN, and what stands behind `seq`."""
    if commit_ts is None:
        return one_lsn(commit_lsn), _NO_TRANSACTION
    return one_lsn(commit_lsn), _TRANSACTION % (b"%d" % xid if xid else b"null", one_timestamp(commit_ts))


def _source(gid: str | None, origin: Origin | None) -> bytes:
    """Write gid and origin; a server that streams doesn't tell the LSN there."""
    prepared = b"" if gid is None else b',"gid":' + quote(gid)
    if origin is None:
        return prepared
    lsn = b',"origin_lsn":"%b"' % one_lsn(origin.commit_lsn) if origin.commit_lsn else b""
    return prepared + b',"origin":' + quote(origin.name) + lsn


_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - all are UTC, and say so by their Z
_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_DIGITS_MAX = 8
_POWERS = 1 << np.arange(4, 32, 4)
_SHIFTS = np.arange(28, -1, -4)
_ISO_LENGTH = len("2026-01-02 03:04:05.678901")


def integer_text(values: Int64s) -> pa.BinaryArray:
    """Decimal digits."""
    return kernels.as_binary(pa.array(values).cast(pa.string()))


def one_lsn(value: int) -> bytes:
    """As PostgreSQL prints `pg_lsn`: `0/1A2B3C8`."""
    return b"%X/%X" % (value >> 32, value & 0xFFFFFFFF)


def lsn_text(values: Int64s) -> pa.BinaryArray:
    """As `one_lsn`."""
    return kernels.as_binary(kernels.join(lsn_fragments(values)))


def lsn_fragments(values: Int64s) -> list[Fragment]:
    """Give what joined is `lsn_text`; in most batches the upper half is a constant."""
    high = values >> 32
    low = _hex(values & 0xFFFFFFFF)
    if (high == high[0]).all():
        return [b"%X/" % high[0], low]
    return [_hex(high), b"/", low]


def _hex(values: Int64s) -> pa.BinaryArray:
    """Upper-case digits of numbers below 2**32, without leading zeros."""
    digits = _DIGITS[values[:, None] >> _SHIFTS & 15]
    lengths = np.searchsorted(_POWERS, values, side="right") + 1
    if (lengths == lengths[0]).all():
        shown = digits[:, _DIGITS_MAX - lengths[0] :].reshape(-1)
    else:
        shown = digits[np.arange(_DIGITS_MAX) >= _DIGITS_MAX - lengths[:, None]]
    return kernels.from_bytes(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), shown)


def one_timestamp(micros: int) -> bytes:
    """Print microseconds since 1970-01-01 UTC as `2026-01-02T03:04:05.678901Z`.

    A year without four digits is a PROTOCOL error.
    """
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise _no_year() from None
    return moment.isoformat(timespec="microseconds").encode() + b"Z"


def timestamp_text(micros: Int64s) -> pa.BinaryArray:
    """As `one_timestamp`."""
    text = pa.array(micros).cast(pa.timestamp("us")).cast(pa.string())
    offsets, data = kernels.value_bytes(text)
    if len(data) != _ISO_LENGTH * len(micros):
        raise _no_year()
    lines = np.empty((len(micros), _ISO_LENGTH + 1), np.uint8)
    lines[:, :-1] = data.reshape(-1, _ISO_LENGTH)
    lines[:, 10] = ord("T")
    lines[:, -1] = ord("Z")
    return kernels.from_bytes(offsets + np.arange(len(offsets)), lines.reshape(-1))


def _no_year() -> PgcdcError:
    return PgcdcError(ErrorKind.PROTOCOL, "could not print a commit's time: its year has no four digits")
