"""Bytes that differ from those that were sent or stored: flipped, missing, added, moved."""

import random

COUNTS = (b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4), b"\0\0\xff\xff")


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Change one place or a few; the result always differs from the input."""
    changed = data
    while changed == data:
        for _ in range(dice.choice([1, 1, 1, 2, 4])):
            changed = _changed(changed, dice)
    return changed


def _changed(data: bytes, dice: random.Random) -> bytes:
    at, size = dice.randint(0, len(data)), dice.randint(1, 8)
    match dice.randrange(6):
        case 0 if at < len(data):
            return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]
        case 1 if data:
            # A byte from the data itself, so that text mostly remains text.
            return data[:at] + bytes([dice.choice(data)]) + data[at + 1 :]
        case 2:
            return data[:at] + data[at + size :]
        case 3:
            return data[:at] + dice.randbytes(size) + data[at:]
        case 4:
            return data[:at] + dice.choice(COUNTS) + data[at + 4 :]
    return data[:at] + dice.randbytes(size) + data[at + size :]
