"""Bytes that aren't as they were sent or left: flipped, missing, added, moved."""

import random


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Change one to four places; never nothing but by chance."""
    changed = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randint(0, len(changed))
        match dice.randrange(5):
            case 0 if changed:
                changed[min(at, len(changed) - 1)] ^= 1 << dice.randrange(8)
            case 1:
                del changed[at : at + dice.randint(1, 8)]
            case 2:
                changed[at:at] = dice.randbytes(dice.randint(1, 8))
            case 3:
                changed[at : at + 4] = dice.choice(
                    [b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4), b"\0\0\xff\xff"]
                )
            case _:
                size = dice.randint(1, 8)
                changed[at : at + size] = dice.randbytes(size)
    return bytes(changed)
