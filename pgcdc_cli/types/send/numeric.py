"""numeric (`numeric_send`): digits of base 10,000, the first of them times 10,000 to the power `weight`.

Values of usual size are printed all at once; one digit after the other for all rows.
"""

from typing import NamedTuple

import numpy as np

from pgcdc_cli.types.kernels import Mask
from pgcdc_cli.types.send.digits import leading_dropped, quads
from pgcdc_cli.types.send.packed import (
    Bytes,
    Int64s,
    Packed,
    from_kept,
    from_list,
    numbers_at,
    require,
    slices,
)

_HEADER = 8
_POSITIVE, _NEGATIVE = 0, 0x4000
_SPECIAL = {0xC000: b"NaN", 0xD000: b"Infinity", 0xF000: b"-Infinity"}
_LARGEST_WEIGHT = 7
_LARGEST_SCALE = 32
_DIGIT_END = 10_000


class _Header(NamedTuple):
    digits: Int64s
    weight: Int64s
    sign: Int64s
    scale: Int64s


def numeric(values: Packed) -> Packed:
    values.at_least(_HEADER)
    header = _Header(
        *(
            numbers_at(values.data, values.starts + 2 * place, values.ends, code)
            for place, code in enumerate(("u2", "i2", "u2", "u2"))
        )
    )
    require(values.lengths == _HEADER + 2 * header.digits, "its length is not that of its digits")
    require(np.isin(header.sign, (_POSITIVE, _NEGATIVE, *_SPECIAL)), "it has no sign")
    usual = (header.sign <= _NEGATIVE) & (header.scale <= _LARGEST_SCALE)
    usual &= (header.weight <= _LARGEST_WEIGHT) & (header.weight >= -_LARGEST_SCALE)
    if usual.all():
        return _usual(values, header)
    return _mixed(values, header, usual)


def _mixed(values: Packed, header: _Header, usual: Mask) -> Packed:
    some = slices(values, values.starts[usual], values.lengths[usual])
    texts = np.empty(values.rows, np.object_)
    texts[usual] = _usual(some, _Header(*(part[usual] for part in header))).each()
    texts[~usual] = [
        _single(values.data[slice(*values.offsets[row : row + 2])]) for row in np.flatnonzero(~usual)
    ]
    return from_list(texts.tolist())


def _usual(values: Packed, header: _Header) -> Packed:
    if not values.rows:
        return values
    powers = int(max(header.weight.max(), 0))
    fractions = -(-int(header.scale.max()) // 4)
    groups = [_group(values, header, power) for power in range(powers, -fractions - 1, -1)]
    integer = np.concatenate(groups[: powers + 1], axis=1)
    negative = header.sign == _NEGATIVE
    rows = values.rows
    parts = [np.full((rows, 1), ord("-"), np.uint8), integer]
    kept = [negative[:, None], leading_dropped(integer, 1)]
    if fractions:
        parts += [np.full((rows, 1), ord("."), np.uint8), *groups[powers + 1 :]]
        kept += [(header.scale > 0)[:, None], np.arange(4 * fractions) < header.scale[:, None]]
    return from_kept(np.concatenate(parts, axis=1), np.concatenate(kept, axis=1))


def _group(values: Packed, header: _Header, power: int) -> Bytes:
    """Print every value's digit for one power of 10,000: n rows of four characters."""
    place = header.weight - power
    there = (place >= 0) & (place < header.digits)
    digits = np.zeros(values.rows, np.int64)
    digits[there] = numbers_at(
        values.data, (values.starts + _HEADER + 2 * place)[there], values.ends[there], "u2"
    )
    _check(digits)
    return quads(digits)


def _check(digits: Int64s) -> None:
    require(digits < _DIGIT_END, "it has a digit beyond 9999")


def _single(wire: Bytes) -> bytes:
    """Print one value of any size, as `get_str_from_var` in numeric.c."""
    count, weight, sign, scale = np.ndarray(4, ">u2", wire.tobytes()).tolist()
    if sign in _SPECIAL:
        return _SPECIAL[sign]
    weight -= (weight & 0x8000) << 1
    digits = np.ndarray(count, ">u2", wire.tobytes(), _HEADER).astype(np.int64)
    _check(digits)
    text = quads(digits).tobytes()
    whole = 4 * (weight + 1)
    if whole <= 0:
        integer, fraction = b"0", b"0" * -whole + text
    else:
        integer, fraction = text[:whole].ljust(whole, b"0").lstrip(b"0") or b"0", text[whole:]
    minus = b"-" if sign == _NEGATIVE else b""
    return minus + integer + (b"." + fraction[:scale].ljust(scale, b"0") if scale else b"")
