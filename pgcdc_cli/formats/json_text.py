"""Values, objects and stamps in JSON: by column for n rows at once, or one by one for a few rows.

An object's members, such as `"id":1,"name":"x"`, are joined from constants, which all rows share, and
columns. Where rows differ in more than the value (a NULL has no quotes, an unchanged TOAST value no member),
each row has a fragment of its own.

A stamp is a change's position. Its keys are, in this order, lsn, commit_lsn, seq, xid, ts, gid, origin and
origin_lsn; the last three only where they apply.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.changes.origin import Origin
from pgcdc_cli.changes.slice import INVALID_XID, Stamp, Stamps
from pgcdc_cli.changes.table import MANY_TABLES
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import ArrowArray, Booleans, Fragment, Int64s, as_mask, as_text
from pgcdc_cli.types.pg_type import JsonKind


@lru_cache(MANY_TABLES)
def quote(text: str) -> bytes:
    """Quote a name; it stays UTF-8."""
    return json.dumps(text, ensure_ascii=False).encode()


def named_list(label: str, names: Sequence[str]) -> bytes:
    """Write `,"label":["a","b"]`; nothing if there are no names."""
    return b"," + quote(label) + b":[" + b",".join(map(quote, names)) + b"]" if names else b""


def named_lists(label: str, marked: Sequence[tuple[str, Booleans]]) -> Fragment:
    """Write `named_list` for n rows, each with the names whose mask is set for it."""
    if not marked:
        return b""
    patterns, choice = np.unique(np.stack([mask for _, mask in marked], axis=1), axis=0, return_inverse=True)
    names = [[name for (name, _), chosen in zip(marked, row, strict=True) if chosen] for row in patterns]
    return _pick([named_list(label, some) for some in names], choice.reshape(-1))


class JsonValue(NamedTuple):
    """`text` is null for SQL NULL; `bare` marks the values without quotes: all, none, or those of a mask."""

    text: pa.BinaryArray
    bare: Booleans | bool


class Member(NamedTuple):
    """One column's values, with the text before and after each; `absent` marks rows without the member."""

    head: bytes
    value: JsonValue
    absent: Booleans | None
    tail: bytes = b""

    @classmethod
    def of(cls, name: str, value: JsonValue, absent: Booleans | None) -> "Member":
        """Make a member with this name."""
        return cls(quote(name) + b":", value, absent)


def objects_of(members: Iterable[Member]) -> Iterator[Fragment]:
    """Yield fragments that, joined row by row, make n rows' objects."""
    yield b"{"
    yield from separated(members)
    yield b"}"


def separated(members: Iterable[Member], comma: bytes = b",") -> Iterator[Fragment]:
    """Yield fragments that, joined row by row, make n rows' members with commas between them."""
    preceded: Booleans | bool = False
    for member in members:
        yield from _member(member, preceded, comma)
        preceded = True if member.absent is None else preceded | ~member.absent


def _member(member: Member, preceded: Booleans | bool, comma: bytes) -> Iterator[Fragment]:
    head, tail = member.head, member.tail
    text, bare = member.value
    if text.null_count and bare is not True:
        bare = bare | kernels.is_null(text)
    if isinstance(bare, bool) and member.absent is None and isinstance(preceded, bool):
        begin, mark = comma * preceded + head, b"" if bare else b'"'
        yield from (begin + mark, text, mark + tail)
        return
    if member.absent is not None:
        text = kernels.replace_where(text, member.absent, b"")
    state = _state(member, bare, preceded)
    yield _pick((head + b'"', head, b"", comma + head + b'"', comma + head, b""), state)
    yield text
    yield _pick((b'"' + tail, tail, b"", b'"' + tail, tail, b""), state)


def _state(member: Member, bare: Booleans | bool, preceded: Booleans | bool) -> Int64s:
    """Number each row's case: 0 quoted, 1 bare, 2 absent; plus 3 if a comma precedes it."""
    state = np.zeros(len(member.value.text), np.int64)
    state[...] = bare
    if member.absent is not None:
        state[member.absent] = 2
    return state + 3 * np.asarray(preceded, np.int64)


def _pick(options: Sequence[bytes], choice: Int64s) -> Fragment:
    return kernels.take(kernels.binary(options), choice)


def joined(fragments: Iterable[Fragment]) -> ArrowArray:
    """Concatenate row by row; adjacent constants are merged first."""
    merged: list[Fragment] = []
    for fragment in fragments:
        if isinstance(fragment, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += fragment
        else:
            merged.append(fragment)
    return kernels.join(merged)


_NUMBER = r"^-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?$"
_NULL = r"^[ \t\n\r]*null[ \t\n\r]*$"
_BEFORE_NULL = np.zeros(256, np.bool_)
_BEFORE_NULL[np.frombuffer(b" \t\n\rn", np.uint8)] = True
"""Bytes that can begin a value that is JSON null."""
_BLANKS = bytes.maketrans(b"\n\r", b"  ")
_BLANKED = np.frombuffer(_BLANKS, np.uint8)


def json_value(kind: JsonKind, column: pa.BinaryArray) -> JsonValue:
    """Convert n wire texts of a column to JSON."""
    if kind == "json":
        return JsonValue(_one_line(column), True)
    if kind == "bool":
        return _boolean(column)
    if kind in ("number", "float"):
        return _number(column)
    return JsonValue(escape(column), False)


def json_null(column: pa.BinaryArray) -> Booleans | None:
    """Mark the values that are JSON null, not SQL NULL; None if there are none."""
    offsets, data = kernels.value_bytes(column)
    if not _BEFORE_NULL[data[offsets[:-1][np.diff(offsets) > 0]]].any():
        return None
    mask = as_mask(kernels.matches(as_text(column), _NULL))
    return mask if mask.any() else None


def _one_line(column: pa.BinaryArray) -> pa.BinaryArray:
    """Replace line breaks by blanks: in JSON they occur only between tokens."""
    data = kernels.all_bytes(column)
    if not len(data):
        return column
    if data.max() >= 0x80:
        as_text(column)
    if data.min() > 0x0D:
        return column
    offsets, _ = kernels.value_bytes(column)
    return kernels.from_bytes(offsets, _BLANKED[data], kernels.validity(column))


def _boolean(column: pa.BinaryArray) -> JsonValue:
    true = kernels.equal(column, b"t")
    if (as_mask(true) | as_mask(kernels.equal(column, b"f")) | kernels.is_null(column)).all():
        return JsonValue(kernels.if_else(true, b"true", b"false"), True)
    return JsonValue(escape(column), False)


def _number(column: pa.BinaryArray) -> JsonValue:
    """Quote NaN and the infinities; the pattern is matched only if there are other bytes than a decimal's."""
    if is_decimal(column):
        return JsonValue(column, True)
    finite = as_mask(kernels.matches(as_text(column), _NUMBER))
    return JsonValue(column, True) if finite.all() else JsonValue(escape(column), finite)


def is_decimal(column: pa.BinaryArray | pa.StringArray) -> bool:
    """Whether the values have no other bytes than digits, signs, and points."""
    data = kernels.all_bytes(column)
    if not len(data):
        return True
    # Between the minus sign and the digits are the point and the slash.
    return bool(data.min() >= ord("-") and data.max() <= ord("9") and not (data == ord("/")).any())


class UnusualError(Exception):
    """A row that only the column path handles."""


_ONE_NUMBER = re.compile(_NUMBER.encode())
_ONE_NULL = re.compile(_NULL.encode())
_SPECIAL = re.compile(rb'[\x00-\x1f"\\\x80-\xff]')


def json_writer(kind: JsonKind) -> Callable[[bytes], bytes]:
    """Choose the function that writes one wire text as `json_value` and `objects_of` do.

    It raises UnicodeDecodeError for invalid UTF-8, and UnusualError for a boolean other than t and f.
    """
    return _WRITERS[kind]


def is_json_null(value: bytes) -> bool:
    """Whether a value is JSON null, as in `json_null`."""
    return _ONE_NULL.fullmatch(value) is not None


def one_string(value: bytes) -> bytes:
    """Quote one UTF-8 text. Raises UnicodeDecodeError for an invalid one."""
    if _SPECIAL.search(value) is None:
        return b'"' + value + b'"'
    return json.dumps(value.decode(), ensure_ascii=False).encode()


def _one_number(value: bytes) -> bytes:
    return value if value.isdigit() or _ONE_NUMBER.fullmatch(value) else one_string(value)


def _one_boolean(value: bytes) -> bytes:
    if value not in {b"t", b"f"}:
        raise UnusualError
    return b"true" if value == b"t" else b"false"


def _one_json(value: bytes) -> bytes:
    value.decode()
    return value.translate(_BLANKS)


_WRITERS: dict[JsonKind, Callable[[bytes], bytes]] = {
    "string": one_string,
    "number": _one_number,
    "float": _one_number,
    "bool": _one_boolean,
    "json": _one_json,
}

LONGEST_ESCAPE = len("\\u0000") + 1
"""Bytes that one byte of a value may take while it is escaped: itself and its escape."""

_BACKSLASH, _QUOTE, _BLANK = b'\\" '
ESCAPES = {byte: json.dumps(chr(byte))[1:-1].encode() for byte in (_BACKSLASH, _QUOTE, *range(0x20))}
"""What JSON writes for bytes that it must escape."""
# The letter after the backslash for bytes with a two-character escape, else 0.
_LETTERS = np.zeros(256, np.uint8)
for _byte, _escape in ESCAPES.items():
    _LETTERS[_byte] = _escape[1] if len(_escape) == len("\\n") else 0

BLOCK = 1 << 20
"""Bytes of values that are escaped at a time: so few that they and the result stay in a processor's cache."""


def escape(column: pa.BinaryArray, escapes: Mapping[int, bytes] = ESCAPES) -> pa.BinaryArray:
    """Escape quotes, backslashes and control characters. Raises PgcdcError (PROTOCOL) for invalid UTF-8.

    `escapes` has those of the control characters that have no two-character escape.
    """
    data = kernels.all_bytes(column)
    if not len(data):
        return column
    if data.max() >= 0x80:
        as_text(column)
    if len(data) <= BLOCK and not _special(data).any():
        return column
    offsets, _ = kernels.value_bytes(column)
    ends, blocks, added = offsets.copy(), [], 0
    edges = [*range(0, len(data), BLOCK), len(data) + 1]
    rows = np.searchsorted(offsets, edges)
    for start, first, last in zip(edges, rows, rows[1:], strict=False):
        at, escaped = _escape_block(data[start : start + BLOCK])
        ends[first:last] += added + np.searchsorted(at, offsets[first:last] - start)
        added += len(at)
        blocks.append(escaped)
    if added:
        column = kernels.from_bytes(ends, np.concatenate(blocks), kernels.validity(column))
    return _escape_rare(column, escapes) if min(block.min() for block in blocks) < _BLANK else column


def _special(data: NDArray[np.uint8]) -> Booleans:
    mask: Booleans = (data < _BLANK) | (data == _QUOTE) | (data == _BACKSLASH)
    return mask


def _escape_block(block: NDArray[np.uint8]) -> tuple[Int64s, NDArray[np.uint8]]:
    """Write the two-character escapes; also return their positions."""
    at = np.flatnonzero(_special(block))
    if not len(at):
        return at, block
    if block.min() < _BLANK:
        letters = _LETTERS.take(block[at])
        if not letters.all():
            at, letters = at[letters > 0], letters[letters > 0]
        block = block.copy()
        block[at] = letters
    return at, kernels.insert_before(block, at, b"\\")


def _escape_rare(column: pa.BinaryArray, escapes: Mapping[int, bytes]) -> pa.BinaryArray:
    """Escape the control characters that have no two-character escape."""
    data = kernels.all_bytes(column)
    if len(data) > kernels.INT32_MAX // LONGEST_ESCAPE:
        column = kernels.widened(column)
    for byte in np.unique(data[data < _BLANK]).tolist():
        column = kernels.replace_substring(column, bytes([byte]), escapes[byte])
    return column


_POSITION = b'"lsn":"%b","commit_lsn":"%b","seq":%b'
_ROW_POSITION = _POSITION % (b"%X/%X", b"%b", b"%d")
_TRANSACTION = b',"xid":%b,"ts":"%b"'
_NO_TRANSACTION = b',"xid":null,"ts":null'


def stamp_columns(stamps: Stamps, gid: str | None) -> Iterator[Fragment]:
    """Yield fragments that, joined row by row, make n stamps; `gid` is that of their prepared transaction.

    What all rows of a transaction share is written once for each run of such rows.
    """
    starts = transaction_starts(stamps)
    commit_lsn = lsn_text(stamps.commit_lsn[starts])
    xid = kernels.null_where(integer_text(stamps.xid[starts]), stamps.xid[starts] == INVALID_XID)
    ts = timestamp_text(stamps.commit_ts[starts])
    ending = _gids_and_origins(stamps, starts, gid)
    transaction = joined([*_filled(_TRANSACTION, [xid], [ts]), ending])
    commit_lsn_of_row, transaction_of_row = each_row(starts, len(stamps), commit_lsn, transaction)
    yield from _filled(_POSITION, _lsn_column(stamps.lsn), [commit_lsn_of_row], [integer_text(stamps.seq)])
    yield transaction_of_row


def each_row(starts: Int64s, rows: int, *columns: ArrowArray) -> list[Fragment]:
    """Repeat for every row the value of its run; `starts` are the first rows of the runs."""
    if len(starts) == 1:
        return [column[0].as_py() for column in columns]
    run = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, rows)))
    return [kernels.take(column, run) for column in columns]


def _lsn_column(values: Int64s) -> Sequence[Fragment]:
    """Write LSNs; all rows of a snapshot have the same one."""
    return [one_lsn(int(values[0]))] if (values == values[0]).all() else lsn_fragments(values)


def transaction_starts(stamps: Stamps) -> Int64s:
    """Find the rows at which another transaction begins."""
    changed = (
        (np.diff(stamps.commit_lsn) != 0) | (np.diff(stamps.xid) != 0) | (np.diff(stamps.commit_ts) != 0)
    )
    return np.concatenate([np.zeros(1, np.int64), np.flatnonzero(changed) + 1])


def _gids_and_origins(stamps: Stamps, starts: Int64s, gid: str | None) -> Fragment:
    if stamps.origin is None:
        return _gid_and_origin(gid, None)
    texts = [_gid_and_origin(gid, origin) for origin in (None, *stamps.origins)]
    return kernels.take(kernels.binary(texts), stamps.origin[starts] + 1)


def _filled(template: bytes, *columns: Sequence[Fragment]) -> Iterator[Fragment]:
    """Put each column, given in fragments, in place of a `%b`."""
    begin, *constants = template.split(b"%b")
    yield begin
    for fragments, constant in zip(columns, constants, strict=True):
        yield from fragments
        yield constant


def stamp_rows(stamps: Stamps, gid: str | None) -> Iterator[bytes]:
    """Yield the stamps of a few rows, one by one; none may have an origin."""
    ending = _gid_and_origin(gid, None)
    columns = (stamps.lsn, stamps.commit_lsn, stamps.seq, stamps.xid, stamps.commit_ts)
    for lsn, commit_lsn, seq, xid, commit_ts in zip(*(column.tolist() for column in columns), strict=True):
        commit, transaction = _commit(commit_lsn, xid, commit_ts)
        yield _ROW_POSITION % (lsn >> 32, lsn & 0xFFFFFFFF, commit, seq) + transaction + ending


def one_stamp(stamp: Stamp, gid: str | None) -> bytes:
    """Write a single stamp."""
    commit, transaction = _commit(stamp.commit_lsn, stamp.xid, stamp.commit_ts)
    position = _ROW_POSITION % (stamp.lsn >> 32, stamp.lsn & 0xFFFFFFFF, commit, stamp.seq)
    return position + transaction + _gid_and_origin(gid, stamp.origin)


def one_transaction(stamp: Stamp, gid: str | None) -> bytes:
    """Write a single stamp's end, from the comma before `xid` on."""
    return _commit(stamp.commit_lsn, stamp.xid, stamp.commit_ts)[1] + _gid_and_origin(gid, stamp.origin)


@lru_cache(4096)
def _commit(commit_lsn: int, xid: int | None, commit_ts: int | None) -> tuple[bytes, bytes]:
    """Write what a transaction's rows share: the commit LSN, and the members after `seq`."""
    if commit_ts is None:
        return one_lsn(commit_lsn), _NO_TRANSACTION
    return one_lsn(commit_lsn), _TRANSACTION % (b"%d" % xid if xid else b"null", one_timestamp(commit_ts))


def _gid_and_origin(gid: str | None, origin: Origin | None) -> bytes:
    """Write gid and origin; for a streamed transaction the server sends no `origin_lsn`."""
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
    """Print decimal digits."""
    return kernels.as_binary(kernels.convert(kernels.numbers(values), pa.string()))


def one_lsn(value: int) -> bytes:
    """Print as PostgreSQL prints `pg_lsn`: `0/1A2B3C8`."""
    return b"%X/%X" % (value >> 32, value & 0xFFFFFFFF)


def lsn_text(values: Int64s) -> pa.BinaryArray:
    """Print as `one_lsn` does."""
    return kernels.as_binary(kernels.join(lsn_fragments(values)))


def lsn_fragments(values: Int64s) -> list[Fragment]:
    """Yield fragments that, joined, are `lsn_text`; in most batches the upper half is a constant."""
    high = values >> 32
    low = _hex(values & 0xFFFFFFFF)
    if (high == high[0]).all():
        return [b"%X/" % high[0], low]
    return [_hex(high), b"/", low]


def _hex(values: Int64s) -> pa.BinaryArray:
    """Print numbers below 2**32 as upper-case hex digits without leading zeroes."""
    digits = _DIGITS[values[:, None] >> _SHIFTS & 15]
    lengths = np.searchsorted(_POWERS, values, side="right") + 1
    if (lengths == lengths[0]).all():
        shown = digits[:, _DIGITS_MAX - lengths[0] :].reshape(-1)
    else:
        shown = digits[np.arange(_DIGITS_MAX) >= _DIGITS_MAX - lengths[:, None]]
    return kernels.from_bytes(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), shown)


def one_timestamp(micros: int) -> bytes:
    """Print microseconds since 1970-01-01 UTC as `2026-01-02T03:04:05.678901Z`.

    Raises PgcdcError (PROTOCOL) for a year without four digits.
    """
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise _no_year() from None
    return moment.isoformat(timespec="microseconds").encode() + b"Z"


def timestamp_text(micros: Int64s) -> pa.BinaryArray:
    """Print as `one_timestamp` does."""
    text = kernels.convert(kernels.numbers(micros, pa.timestamp("us")), pa.string())
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
