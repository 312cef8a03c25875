"""The system's own numbers: pg_lsn, tid, snapshots, vectors."""

import struct

import numpy as np

from pgcdc_cli.types import kernels
from pgcdc_cli.types.send.digits import hex_digit, leading_dropped
from pgcdc_cli.types.send.packed import (
    MalformedError,
    Packed,
    big_endian,
    decimal,
    from_kept,
    from_list,
)


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
    """Print block and place of a row's version."""
    wire = values.fixed(6)
    block, place = big_endian(wire[:, :4], "u4"), big_endian(wire[:, 4:], "u2")
    return Packed.of(kernels.join([b"(", decimal(block), b",", decimal(place), b")"]))


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
