"""Where changes stand: the members `xid`, `timestamp` and `lsn`, each with its comma, as far as asked for."""

from collections.abc import Iterator
from functools import lru_cache

from pgcdc_cli.changes.slice import Stamp, Stamps
from pgcdc_cli.formats.json_object import joined
from pgcdc_cli.formats.stamps import (
    each_row,
    integer_text,
    lsn_fragments,
    one_lsn,
    one_timestamp,
    timestamp_text,
    transaction_starts,
)
from pgcdc_cli.formats.wal2json.options import Wal2jsonOptions
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Fragment, Int64s


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
        yield from (b',"timestamp":"', kernels.replace_substring(text, b"T", b" "), b'"')


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
    number = b',"xid":' + (b"%d" % xid if xid else b"null") if options.include_xids else b""
    return number + (b',"timestamp":' + _moment(commit_ts) if options.include_timestamp else b"")


def _moment(commit_ts: int | None) -> bytes:
    return b"null" if commit_ts is None else b'"%b"' % _as_server(one_timestamp(commit_ts))


def _as_server(timestamp: bytes) -> bytes:
    """Print `2026-01-02T03:04:05.678900Z` as the server does: `2026-01-02 03:04:05.6789+00`."""
    return timestamp.replace(b"T", b" ").rstrip(b"0Z").rstrip(b".") + b"+00"
