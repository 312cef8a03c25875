"""Scalar types other than numeric, floats, dates and times.

Booleans, integers, text, bytea, bit strings, uuid, and the system's types: pg_lsn, tid, pg_snapshot. Network
addresses: inet and cidr (`network_send`), macaddr and macaddr8; IPv4 addresses are printed by column, IPv6
addresses (`inet_net_ntop.c`) one at a time. Geometric types: float8 numbers in brackets (geo_ops.c). Text
search: tsvector (`tsvectorsend`, `tsvectorout`) and tsquery (`tsquerysend`, `tsqueryout`).
"""

import re
import struct
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pgcdc_cli.errors import MalformedError
from pgcdc_cli.types import kernels
from pgcdc_cli.types.binary.numbers import FLOAT8, ZERO, hex_digit, hex_pairs, leading_dropped, wide
from pgcdc_cli.types.binary.packed import (
    Bytes,
    Packed,
    Reader,
    big_endian,
    choose,
    decimal,
    edges,
    from_kept,
    from_list,
    from_rows,
    numbers_at,
    require,
    slices,
)
from pgcdc_cli.types.kernels import ArrowArray, Booleans

_BACKSLASH = ord("\\")
_PREFIX = np.frombuffer(b"\\x", np.uint16)[0]
_LARGE = 4096


def text(values: Packed) -> Packed:
    """Read a type whose send format is its text."""
    return values


_XML_ENCODED = re.compile(rb'(<\?xml version="[^"]*") encoding="[^"]*"([^>]*)\?>\n?')
_XML_DEFAULT = b'<?xml version="1.0"'


def xml(values: Packed) -> Packed:
    """Leave out the encoding that `xml_send` declares, unlike `xml_out`, if the session's is not UTF-8."""
    return from_list([_without_encoding(wire) for wire in values.each()])


def _without_encoding(wire: bytes) -> bytes:
    declared = _XML_ENCODED.match(wire)
    if declared is None:
        return wire
    if declared.groups() == (_XML_DEFAULT, b""):
        # `xml_out` prints no declaration that says nothing, nor the end of its line.
        return wire[declared.end() :]
    return b"".join([*declared.groups(), wire[declared.end(2) :]])


def versioned(values: Packed) -> Packed:
    """Read text after the format's version, a byte 1 (`jsonb_send`, `jsonpath_send`)."""
    values.at_least(1)
    require(values.data[values.starts] == 1, "its version is not 1")
    return slices(values, values.starts + 1, values.lengths - 1)


def boolean(values: Packed) -> Packed:
    flags = values.fixed(1)
    require(flags[:, 0] <= 1, "it is neither 0 nor 1")
    return from_rows(np.where(flags == 1, np.uint8(ord("t")), np.uint8(ord("f"))))


def integer(code: str) -> Reader:
    """Read integers of a numpy type: `i4`, `u8`, ..."""
    size = np.dtype(code).itemsize

    def read(values: Packed) -> Packed:
        return Packed.of(decimal(big_endian(values.fixed(size), code)))

    return read


def char(values: Packed) -> Packed:
    """Read `"char"`: empty for 0, a backslash and octal digits above 127 (`charout`, since PostgreSQL 16)."""
    byte = values.fixed(1)[:, 0]
    high = byte > 127
    characters = np.full((len(byte), 4), _BACKSLASH, np.uint8)
    characters[:, 1:] = byte[:, None] // (64, 8, 1) % 8 + ZERO
    characters[~high, 0] = byte[~high]
    kept = np.repeat(high[:, None], 4, axis=1)
    kept[:, 0] = byte != 0
    return from_kept(characters, kept)


def bytea(values: Packed) -> Packed:
    r"""Print as `\x` and two hex digits per byte."""
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
    """Read bit and varbit: the number of bits, then the bytes that hold them (`varbit_send`)."""
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
    """Print a row version's block number and its index within the block."""
    wire = values.fixed(6)
    block, index = big_endian(wire[:, :4], "u4"), big_endian(wire[:, 4:], "u2")
    return Packed.of(kernels.join([b"(", decimal(block), b",", decimal(index), b")"]))


def snapshot(values: Packed) -> Packed:
    """Print xmin, xmax and the transactions in progress (`pg_snapshot_send`)."""
    return from_list([_snapshot(wire) for wire in values.each()])


def _snapshot(wire: bytes) -> bytes:
    if len(wire) < 20:
        raise MalformedError("it has fewer than 20 bytes")
    count, xmin, xmax = struct.unpack_from(">iQQ", wire)
    if len(wire) != 20 + 8 * count:
        raise MalformedError("its length is not that of its transactions")
    running = ",".join(map(str, struct.unpack_from(f">{count}Q", wire, 20)))
    return f"{xmin}:{xmax}:{running}".encode()


_IPV4, _IPV6 = 2, 3
_HEADER = 4


def mac(size: int) -> Reader:
    """Read MAC addresses of `size` bytes."""

    def read(values: Packed) -> Packed:
        digits = hex_pairs(values.fixed(size))
        colons = np.full((values.rows, size, 1), ord(":"), np.uint8)
        return from_rows(np.concatenate([digits, colons], axis=2).reshape(values.rows, -1)[:, :-1])

    return read


def address(*, network: bool) -> Reader:
    """Read inet, or cidr where `network`: that is always printed with its netmask's bits."""

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
    """Find the first of the longest runs of zeroes: its start and length; length 0 if none has two words."""
    best, start = (0, 0), 0
    for is_zero, run in groupby(words, key=lambda word: word == 0):
        count = len(list(run))
        if is_zero and count > max(best[1], 1):
            best = start, count
        start += count
    return best


_POINT = 16


def figure(*parts: bytes | int) -> Reader:
    """Read a geometric type; `parts` are what to print: constants, and its numbers by their index."""
    size = 8 * (1 + max(part for part in parts if isinstance(part, int)))

    def read(values: Packed) -> Packed:
        numbers = values.fixed(size).reshape(-1, 8)
        texts = FLOAT8(Packed(np.arange(len(numbers) + 1) * 8, numbers.reshape(-1))).arrow()
        columns = [
            part if isinstance(part, bytes) else kernels.take(texts, np.arange(part, len(numbers), size // 8))
            for part in parts
        ]
        return Packed.of(kernels.join(columns))

    return read


_point = figure(b"(", 0, b",", 1, b")")


def _points(values: Packed, head: int) -> ArrowArray:
    """Join the points that follow a head of `head` bytes; its last four are their number."""
    count = numbers_at(values.data, values.starts + head - 4, values.ends, "i4")
    require((count >= 0) & (values.lengths == head + count * _POINT), "its length is not that of its points")
    flat = slices(values, values.starts + head, values.lengths - head).data
    points = _point(Packed(np.arange(len(flat) // _POINT + 1) * _POINT, flat)).arrow()
    return kernels.join_lists(edges(count), points, b",")


def polygon(values: Packed) -> Packed:
    return Packed.of(kernels.join([b"(", _points(values, 4), b")"]))


def path(values: Packed) -> Packed:
    values.at_least(5)
    closed = values.data[values.starts]
    require(closed <= 1, "it is neither open nor closed")
    return Packed.of(
        kernels.join([choose((b"[", b"("), closed), _points(values, 5), choose((b"]", b")"), closed)])
    )


_INT32 = struct.Struct(">i")
_UINT16 = struct.Struct(">H")
_WEIGHTS = (b"", b"C", b"B", b"A")
"""Indexed by the two highest bits of a position; the weight D is not printed."""

_OPERAND, _OPERATOR = 1, 2
_NOT, _AND, _OR, _PHRASE = 1, 2, 3, 4
_PRIORITY = {_OR: 1, _AND: 2, _PHRASE: 3, _NOT: 4}
_SIGNS = {_OR: b" | ", _AND: b" & "}


@dataclass(slots=True)
class _TextSearchReader:
    """Reads one value from front to back."""

    wire: bytes
    at: int = 0

    def number(self, form: struct.Struct) -> int:
        if self.at + form.size > len(self.wire):
            raise MalformedError("it is cut short")
        (number,) = form.unpack_from(self.wire, self.at)
        self.at += form.size
        return int(number)

    def byte(self) -> int:
        if self.at >= len(self.wire):
            raise MalformedError("it is cut short")
        self.at += 1
        return self.wire[self.at - 1]

    def word(self) -> bytes:
        """Read a lexeme, which ends with a zero byte, and quote it."""
        end = self.wire.find(0, self.at)
        if end < 0:
            raise MalformedError("it has a lexeme without an end")
        word = self.wire[self.at : end]
        self.at = end + 1
        return b"'" + word.replace(b"\\", b"\\\\").replace(b"'", b"''") + b"'"

    def count(self) -> int:
        """Read the number of items that follow; each has at least two bytes."""
        number = self.number(_INT32)
        if not 0 <= 2 * number <= len(self.wire) - self.at:
            raise MalformedError("it has fewer bytes than items")
        return number

    def end(self) -> None:
        if self.at != len(self.wire):
            raise MalformedError("it has more bytes than items")


def tsvector(values: Packed) -> Packed:
    return from_list([_tsvector(_TextSearchReader(wire)) for wire in values.each()])


def _tsvector(reader: _TextSearchReader) -> bytes:
    words = [_lexeme(reader) for _ in range(reader.count())]
    reader.end()
    return b" ".join(words)


def _lexeme(reader: _TextSearchReader) -> bytes:
    word = reader.word()
    positions = [reader.number(_UINT16) for _ in range(reader.number(_UINT16))]
    if not positions:
        return word
    return word + b":" + b",".join(b"%d" % (one & 0x3FFF) + _WEIGHTS[one >> 14] for one in positions)


class _QueryPart(NamedTuple):
    """A printed part of a query; an operand has the highest priority."""

    text: bytes
    priority: int


def tsquery(values: Packed) -> Packed:
    return from_list([_tsquery(_TextSearchReader(wire)) for wire in values.each()])


def _tsquery(reader: _TextSearchReader) -> bytes:
    items = [_item(reader) for _ in range(reader.count())]
    reader.end()
    # An operator precedes its operands, the right one first; read backwards, its left operand is on the stack
    # when it comes, and the right one on top of it.
    stack: list[_QueryPart] = []
    for item in reversed(items):
        stack.append(item if isinstance(item, _QueryPart) else _apply(*item, stack))
    if len(stack) > 1 or (items and not stack):
        raise MalformedError("its operators don't fit its operands")
    return stack[0].text if stack else b""


def _item(reader: _TextSearchReader) -> _QueryPart | tuple[int, int]:
    """Read an operand, or an operator with its distance."""
    kind = reader.byte()
    if kind == _OPERAND:
        return _operand(reader)
    operator = reader.byte() if kind == _OPERATOR else 0
    if operator not in _PRIORITY:
        raise MalformedError("it has an item that is neither operand nor operator")
    return operator, reader.number(_UINT16) if operator == _PHRASE else 0


def _operand(reader: _TextSearchReader) -> _QueryPart:
    weights, prefix = reader.byte(), reader.byte()
    word = reader.word()
    letters = bytes(letter for bit, letter in zip((8, 4, 2, 1), b"ABCD", strict=True) if weights & bit)
    flags = (b"*" if prefix else b"") + letters
    return _QueryPart(word + (b":" + flags if flags else b""), len(_PRIORITY) + 1)


def _apply(operator: int, distance: int, stack: list[_QueryPart]) -> _QueryPart:
    """Print an operator between its operands (`infix` in tsquery.c)."""
    priority = _PRIORITY[operator]
    if len(stack) < (1 if operator == _NOT else 2):
        raise MalformedError("its operators don't fit its operands")
    if operator == _NOT:
        return _QueryPart(b"!" + _inside(stack.pop(), priority), priority)
    right, left = stack.pop(), stack.pop()
    sign = _SIGNS.get(operator) or (b" <-> " if distance == 1 else b" <%d> " % distance)
    # A phrase is not associative.
    least = priority + 1 if operator == _PHRASE else priority
    return _QueryPart(_inside(left, priority) + sign + _inside(right, least), priority)


def _inside(node: _QueryPart, priority: int) -> bytes:
    return b"( " + node.text + b" )" if node.priority < priority else node.text
