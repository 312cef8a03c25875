"""Booleans, whole numbers, text, bytes and bits, uuid, and the system's own: pg_lsn, tid, pg_snapshot."""

import struct

import numpy as np
from numpy.typing import NDArray

from pgcdc_cli.types import kernels
from pgcdc_cli.types.binary.numbers import hex_digit, hex_pairs, leading_dropped, octals
from pgcdc_cli.types.binary.packed import (
    Bytes,
    MalformedError,
    Packed,
    Reader,
    big_endian,
    decimal,
    from_kept,
    from_list,
    from_rows,
    numbers_at,
    require,
    without_head,
)

_BACKSLASH = ord("\\")
_PREFIX = np.frombuffer(b"\\x", np.uint16)[0]
_LARGE = 4096


def text(values: Packed) -> Packed:
    """What is sent as it is printed."""
    return values


def versioned(values: Packed) -> Packed:
    """Read text behind the number 1, its format's version (`jsonb_send`, `jsonpath_send`)."""
    values.at_least(1)
    require(values.data[values.starts] == 1, "its version is not 1")
    return without_head(values, 1)


def boolean(values: Packed) -> Packed:
    flags = values.fixed(1)
    require(flags[:, 0] <= 1, "it is neither 0 nor 1")
    return from_rows(np.where(flags == 1, np.uint8(ord("t")), np.uint8(ord("f"))))


def integer(code: str) -> Reader:
    """Read whole numbers of one numpy type: `i4`, `u8`, ..."""
    size = np.dtype(code).itemsize

    def read(values: Packed) -> Packed:
        return Packed.of(decimal(big_endian(values.fixed(size), code)))

    return read


def char(values: Packed) -> Packed:
    """Read `"char"`: nothing for 0, a backslash and octal digits above 127 (`charout`, since 16)."""
    byte = values.fixed(1)[:, 0]
    high = byte > 127
    characters = np.full((len(byte), 4), _BACKSLASH, np.uint8)
    characters[:, 1:] = octals(byte.astype(np.int64), 3)
    characters[~high, 0] = byte[~high]
    kept = np.repeat(high[:, None], 4, axis=1)
    kept[:, 0] = byte != 0
    return from_kept(characters, kept)


def bytea(values: Packed) -> Packed:
    r"""Print as `\x` and two digits a byte."""
    rows = values.rows
    offsets = values.offsets + np.arange(rows + 1)
    characters = np.empty(int(offsets[-1]), np.uint16)
    characters[offsets[:-1]] = _PREFIX
    if len(values.data) > _LARGE * rows:
        for row in range(rows):
            start, end = values.offsets[row : row + 2]
            characters[offsets[row] + 1 : offsets[row + 1]] = _digits(values.data[start:end])
    else:
        is_digit = np.ones(len(characters), np.bool_)
        is_digit[offsets[:-1]] = False
        characters[is_digit] = _digits(values.data)
    return Packed(offsets * 2, characters.view(np.uint8))


def _digits(data: Bytes) -> NDArray[np.uint16]:
    return hex_pairs(data).reshape(-1).view(np.uint16)


def uuid(values: Packed) -> Packed:
    digits = hex_pairs(values.fixed(16)).reshape(-1, 32)
    groups = np.split(digits, (8, 12, 16, 20), axis=1)
    dash = np.full((len(digits), 1), ord("-"), np.uint8)
    parts = [part for group in groups for part in (dash, group)][1:]
    return from_rows(np.concatenate(parts, axis=1))


def bits(values: Packed) -> Packed:
    """Read bit and varbit: a number of bits, then as many bytes as hold them (`varbit_send`)."""
    counts = numbers_at(values.data, values.starts, values.ends, "i4")
    require((counts >= 0) & ((counts + 7) // 8 == values.lengths - 4), "its bits don't fit its bytes")
    firsts = (values.starts + 4) * 8
    steps = np.zeros(len(values.data) * 8 + 1, np.int8)
    np.add.at(steps, firsts, 1)
    np.add.at(steps, firsts + counts, -1)
    kept = np.cumsum(steps[:-1], dtype=np.int8) > 0
    characters = np.unpackbits(values.data) + np.uint8(ord("0"))
    offsets = np.append(0, np.cumsum(counts))
    return Packed(offsets, characters[kept])


def pg_lsn(values: Packed) -> Packed:
    """Print as two hexadecimal numbers without leading zeroes."""
    wire = values.fixed(8)
    digits = hex_digit(np.stack([wire >> 4, wire & 15], axis=2).reshape(-1, 16))
    slash = np.full((values.rows, 1), ord("/"), np.uint8)
    halves = digits[:, :8], digits[:, 8:]
    kept = [leading_dropped(half, 1) for half in halves]
    return from_kept(
        np.concatenate([halves[0], slash, halves[1]], axis=1),
        np.concatenate([kept[0], np.ones_like(slash, np.bool_), kept[1]], axis=1),
    )


def tid(values: Packed) -> Packed:
    """Print a row version's block number, and its index there."""
    wire = values.fixed(6)
    block, index = big_endian(wire[:, :4], "u4"), big_endian(wire[:, 4:], "u2")
    return Packed.of(kernels.join([b"(", decimal(block), b",", decimal(index), b")"]))


def snapshot(values: Packed) -> Packed:
    """Print xmin, xmax and what was in progress (`pg_snapshot_send`)."""
    return from_list([_snapshot(wire) for wire in values.each()])


def _snapshot(wire: bytes) -> bytes:
    if len(wire) < 20:
        raise MalformedError("it has less than 20 bytes")
    count, xmin, xmax = struct.unpack_from(">iQQ", wire)
    if len(wire) != 20 + 8 * count:
        raise MalformedError("its length is not that of its transactions")
    running = ",".join(map(str, struct.unpack_from(f">{count}Q", wire, 20)))
    return f"{xmin}:{xmax}:{running}".encode()
