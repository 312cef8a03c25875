"""Addresses: inet and cidr (`network_send`), macaddr and macaddr8.

An IPv4 address is printed by column, an IPv6 address (`inet_net_ntop.c`) one at a time.
"""

import struct
from itertools import groupby

import numpy as np

from pgcdc_cli.types.binary.numbers import hex_pairs, leading_dropped, wide
from pgcdc_cli.types.binary.packed import (
    Bytes,
    Packed,
    Reader,
    from_kept,
    from_list,
    from_rows,
    require,
    slices,
)
from pgcdc_cli.types.kernels import Booleans

_IPV4, _IPV6 = 2, 3
_HEADER = 4


def mac(size: int) -> Reader:
    """Read a hardware address of so many bytes."""

    def read(values: Packed) -> Packed:
        digits = hex_pairs(values.fixed(size))
        colons = np.full((values.rows, size, 1), ord(":"), np.uint8)
        return from_rows(np.concatenate([digits, colons], axis=2).reshape(values.rows, -1)[:, :-1])

    return read


def address(*, network: bool) -> Reader:
    """Read inet, or cidr, where `network`: that always has its number of bits."""

    def read(values: Packed) -> Packed:
        values.at_least(_HEADER)
        family = values.data[values.starts]
        require(_is_whole(values, family), "it is neither an IPv4 nor an IPv6 address")
        if (family == _IPV4).all():
            return _ipv4(values.fixed(8), network=network)
        return _mixed(values, family, network=network)

    return read


def _is_whole(values: Packed, family: Bytes) -> Booleans:
    size = np.where(family == _IPV4, 4, 16)
    bits, announced = values.data[values.starts + 1], values.data[values.starts + 3]
    known = (family == _IPV4) | (family == _IPV6)
    whole: Booleans = known & (values.lengths == _HEADER + size) & (announced == size) & (bits <= 8 * size)
    return whole


def _ipv4(wire: Bytes, *, network: bool) -> Packed:
    bits = wire[:, 1]
    parts, kept = [], []
    for octet in (*wire[:, _HEADER:].T, bits):
        characters = wide(octet, 3)
        parts += [characters, np.full((len(wire), 1), ord("."), np.uint8)]
        kept += [leading_dropped(characters, 1), np.ones((len(wire), 1), np.bool_)]
    parts[7][:] = ord("/")
    has_bits = np.full(len(wire), network) | (bits != 32)
    kept[7][:, 0] = has_bits
    kept[8] &= has_bits[:, None]
    return from_kept(np.concatenate(parts[:9], axis=1), np.concatenate(kept[:9], axis=1))


def _mixed(values: Packed, family: Bytes, *, network: bool) -> Packed:
    texts = np.empty(values.rows, np.object_)
    old = family == _IPV4
    texts[old] = _ipv4(
        slices(values, values.starts[old], values.lengths[old]).fixed(8), network=network
    ).each()
    new = slices(values, values.starts[~old], values.lengths[~old])
    texts[~old] = [_ipv6(wire, network=network) for wire in new.each()]
    return from_list(texts.tolist())


def _ipv6(wire: bytes, *, network: bool) -> bytes:
    words = struct.unpack(">8H", wire[_HEADER:])
    first, count = _longest_zeroes(words)
    groups = [f"{word:x}" for word in words]
    if first == 0 and (count == 6 or (count == 5 and words[5] == 0xFFFF)):
        groups[6:] = [".".join(map(str, wire[-4:]))]
    text = ":".join(groups)
    if count > 1:
        text = ":".join(groups[:first]) + "::" + ":".join(groups[first + count :])
    bits = wire[1]
    return f"{text}/{bits}".encode() if network or bits != 128 else text.encode()


def _longest_zeroes(words: tuple[int, ...]) -> tuple[int, int]:
    """Find the first of the longest runs of zeroes; 0 words if it is shorter than two."""
    best, start = (0, 0), 0
    for is_zero, run in groupby(words, key=lambda word: word == 0):
        count = len(list(run))
        if is_zero and count > max(best[1], 1):
            best = start, count
        start += count
    return best
