"""Where changes stand: the members `xid`, `timestamp` and `lsn`, each with its comma, as far as asked for."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache

from pgcdc_cli.changes.slice import Stamp, Stamps
from pgcdc_cli.formats.json_object import joined
from pgcdc_cli.formats.stamps import (
    each_row,
    integer_text,
    lsn_fragments,
    one_lsn,
    timestamp_text,
    transaction_starts,
)
from pgcdc_cli.formats.wal2json.options import Wal2jsonOptions
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Fragment, Int64s

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - all are UTC, and say so by their +00


def stamp_columns(stamps: Stamps, options: Wal2jsonOptions) -> Iterator[Fragment]:
    """Yield what, joined row by row, are n changes' stamps."""
    if options.include_xids or options.include_timestamp:
        starts = transaction_starts(stamps)
        shared = joined(_transactions(stamps.xid[starts], stamps.commit_ts[starts], options))
        yield from each_row(starts, len(stamps), shared)
    if options.include_lsn:
        yield from (b',"lsn":"', *lsn_fragments(stamps.lsn), b'"')


def _transactions(xid: Int64s, commit_ts: Int64s, options: Wal2jsonOptions) -> Iterator[Fragment]:
    """Yield what, joined row by row, is what lines of one transaction share."""
    if options.include_xids:
        yield from (b',"xid":', integer_text(xid))
    if options.include_timestamp:
        text = kernels.replace_pattern(timestamp_text(commit_ts), r"\.?0*Z$", "+00")
        yield from (b',"timestamp":"', kernels.replace_pattern(text, "T", " "), b'"')


def stamp_rows(stamps: Stamps, options: Wal2jsonOptions) -> Iterator[bytes]:
    """Yield the stamps of a few rows, one by one."""
    columns = (stamps.lsn, stamps.xid, stamps.commit_ts)
    for lsn, xid, commit_ts in zip(*(column.tolist() for column in columns), strict=True):
        position = b',"lsn":"%b"' % one_lsn(lsn) if options.include_lsn else b""
        yield _transaction(xid, commit_ts, options) + position


def one_stamp(stamp: Stamp, options: Wal2jsonOptions) -> bytes:
    """Write a single stamp; one outside of transactions has neither xid nor timestamp."""
    position = b',"lsn":"%b"' % one_lsn(stamp.lsn) if options.include_lsn else b""
    return one_transaction(stamp, options) + position


def one_transaction(stamp: Stamp, options: Wal2jsonOptions) -> bytes:
    """Write what all lines of a transaction share."""
    return _transaction(stamp.xid, stamp.commit_ts, options)


@lru_cache(64)
def _transaction(xid: int | None, commit_ts: int | None, options: Wal2jsonOptions) -> bytes:
    number = b"%d" % xid if xid else b"null"
    moment = b"null" if commit_ts is None else b'"%b"' % one_timestamp(commit_ts)
    return (b',"xid":' + number if options.include_xids else b"") + (
        b',"timestamp":' + moment if options.include_timestamp else b""
    )


def one_timestamp(micros: int) -> bytes:
    """Print microseconds since 1970-01-01 UTC as the server does: `2026-01-02 03:04:05.6789+00`."""
    text = str(_EPOCH + timedelta(microseconds=micros))
    return (text.rstrip("0") if "." in text else text).encode() + b"+00"
