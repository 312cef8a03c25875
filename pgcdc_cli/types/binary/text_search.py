"""Text search: tsvector (`tsvectorsend`, `tsvectorout`) and tsquery (`tsquerysend`, `tsqueryout`)."""

import struct
from dataclasses import dataclass
from typing import NamedTuple

from pgcdc_cli.types.binary.packed import MalformedError, Packed, from_list

_INT32 = struct.Struct(">i")
_UINT16 = struct.Struct(">H")
_WEIGHTS = (b"", b"C", b"B", b"A")
"""By the two highest bits of a position; D is not written."""

_OPERAND, _OPERATOR = 1, 2
_NOT, _AND, _OR, _PHRASE = 1, 2, 3, 4
_PRIORITY = {_OR: 1, _AND: 2, _PHRASE: 3, _NOT: 4}
_SIGNS = {_OR: b" | ", _AND: b" & "}


@dataclass(slots=True)
class _Cursor:
    """Reads one value front to back."""

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
        """Read a lexeme, which ends with a zero byte; gives it in quotes."""
        end = self.wire.find(0, self.at)
        if end < 0:
            raise MalformedError("it has a lexeme without an end")
        word = self.wire[self.at : end]
        self.at = end + 1
        return b"'" + word.replace(b"\\", b"\\\\").replace(b"'", b"''") + b"'"

    def count(self) -> int:
        """Read how many items follow; each has two bytes at least."""
        number = self.number(_INT32)
        if not 0 <= 2 * number <= len(self.wire) - self.at:
            raise MalformedError("it has less bytes than items")
        return number

    def end(self) -> None:
        if self.at != len(self.wire):
            raise MalformedError("it has more bytes than items")


def tsvector(values: Packed) -> Packed:
    return from_list([_tsvector(_Cursor(wire)) for wire in values.each()])


def _tsvector(cursor: _Cursor) -> bytes:
    words = [_lexeme(cursor) for _ in range(cursor.count())]
    cursor.end()
    return b" ".join(words)


def _lexeme(cursor: _Cursor) -> bytes:
    word = cursor.word()
    positions = [cursor.number(_UINT16) for _ in range(cursor.number(_UINT16))]
    if not positions:
        return word
    return word + b":" + b",".join(b"%d" % (one & 0x3FFF) + _WEIGHTS[one >> 14] for one in positions)


class _Node(NamedTuple):
    """A part of a query as printed; an operand has the highest priority."""

    text: bytes
    priority: int


def tsquery(values: Packed) -> Packed:
    return from_list([_tsquery(_Cursor(wire)) for wire in values.each()])


def _tsquery(cursor: _Cursor) -> bytes:
    items = [_item(cursor) for _ in range(cursor.count())]
    cursor.end()
    # An operator stands before its operands, the right one first: so backwards that one is on top.
    stack: list[_Node] = []
    for item in reversed(items):
        stack.append(item if isinstance(item, _Node) else _apply(*item, stack))
    if len(stack) > 1 or (items and not stack):
        raise MalformedError("its operators don't fit its operands")
    return stack[0].text if stack else b""


def _item(cursor: _Cursor) -> _Node | tuple[int, int]:
    """Read an operand, or an operator and its distance."""
    kind = cursor.byte()
    if kind == _OPERAND:
        return _operand(cursor)
    operator = cursor.byte() if kind == _OPERATOR else 0
    if operator not in _PRIORITY:
        raise MalformedError("it has an item that is neither operand nor operator")
    return operator, cursor.number(_UINT16) if operator == _PHRASE else 0


def _operand(cursor: _Cursor) -> _Node:
    weights, prefix = cursor.byte(), cursor.byte()
    word = cursor.word()
    letters = bytes(letter for bit, letter in zip((8, 4, 2, 1), b"ABCD", strict=True) if weights & bit)
    flags = (b"*" if prefix else b"") + letters
    return _Node(word + (b":" + flags if flags else b""), len(_PRIORITY) + 1)


def _apply(operator: int, distance: int, stack: list[_Node]) -> _Node:
    """Print an operator between its operands (`infix` in tsquery.c)."""
    priority = _PRIORITY[operator]
    if len(stack) < (1 if operator == _NOT else 2):
        raise MalformedError("its operators don't fit its operands")
    if operator == _NOT:
        return _Node(b"!" + _inside(stack.pop(), priority), priority)
    right, left = stack.pop(), stack.pop()
    sign = _SIGNS.get(operator) or (b" <-> " if distance == 1 else b" <%d> " % distance)
    # A phrase is not associative.
    least = priority + 1 if operator == _PHRASE else priority
    return _Node(_inside(left, priority) + sign + _inside(right, least), priority)


def _inside(node: _Node, priority: int) -> bytes:
    return b"( " + node.text + b" )" if node.priority < priority else node.text
