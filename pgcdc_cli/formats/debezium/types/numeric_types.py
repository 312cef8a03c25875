"""Integers, floats, numeric and money.

Floats are printed as by Java's `Double.toString`. `numeric` in the precise mode is its unscaled value: a
big-endian two's complement in as few bytes as possible, in base64 (`org.apache.kafka.connect.data.Decimal`).
"""

import base64
import math
import re
from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.types.java import DOUBLE, FLOAT, java_digits
from pgcdc_cli.formats.debezium.types.kind import (
    PLAIN,
    Converter,
    Form,
    Kind,
    Loss,
    ToJson,
    at_once,
    base64_token,
    inexact,
    named,
    per_value,
    quoted,
    token,
    usually,
)
from pgcdc_cli.formats.json_text import is_decimal
from pgcdc_cli.types import kernels
from pgcdc_cli.types.to_arrow import MAX_DECIMAL_PRECISION, NumericPrecision, numeric_precision

_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_NOT_FINITE = {"NaN": "NaN", "Infinity": "Infinity", "-Infinity": "-Infinity"}
_NOT_FINITE_NAMES = {"NaN": "NAN", "Infinity": "POSITIVE_INFINITY", "-Infinity": "NEGATIVE_INFINITY"}
_USUAL_FLOAT = r"^-?(0|[1-9]\d{0,6}(\.\d+)?|0\.0{0,2}[1-9]\d*)$"
"""Texts that Java prints the same way, except for a missing ".0"."""
_USUAL_DECIMAL = r"^-?(0|[1-9]\d{0,6}(\.\d{1,8})?|0\.0{0,2}[1-9]\d{0,7})$"
"""Such texts without zeroes at the end, and with so few digits that a double holds them all."""
_LARGEST_INT64_PRECISION = 18
_DIGITS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_PADS = np.full(64, ord("="), np.uint8)
_PAIRS = np.concatenate(
    [
        np.stack([np.repeat(one, 64), np.tile(other, 64)], axis=1).reshape(-1).view(np.uint16)
        for one, other in ((_DIGITS, _DIGITS), (_DIGITS, _PADS), (_PADS, _PADS))
    ]
)
"""Two base64 letters, indexed by their 12 bits, plus 4096 for each letter that is only padding."""
_SIZES = 1 << np.arange(7, 63, 8)
"""Values (for a negative one, its complement) from each of these on need another byte."""


def integer(type_: str) -> Kind:
    return Kind({"type": type_}, INTEGERS, b"0", form=PLAIN)


def _integers(column: pa.BinaryArray) -> pa.BinaryArray:
    """Use wire text as the token. Raises ValueError for anything else (a default's expression)."""
    data = kernels.all_bytes(column)
    if ((data - np.uint8(ord("0")) > 9) & (data != ord("-"))).any():
        raise ValueError("no integer")
    return column


INTEGERS = Converter(_integers, str.encode)


def boolean() -> Kind:
    return Kind({"type": "boolean"}, booleans, b"false", form=PLAIN)


def booleans(column: pa.BinaryArray) -> pa.BinaryArray:
    if set(column.unique().to_pylist()) <= {b"t", b"f", None}:
        return kernels.if_else(kernels.equal(column, b"t"), b"true", b"false")
    # A default's literal may be any spelling of a boolean that PostgreSQL accepts.
    return per_value(lambda text: b"true" if text.lower() in {"t", "true", "1", "on", "yes"} else b"false")(
        column
    )


def floating(type_: str) -> Kind:
    kind = np.float32 if type_ == "float" else np.float64
    tested = usually(_USUAL_FLOAT, _with_point, lambda text: java_float(text, kind))
    return Kind({"type": type_}, at_once(_all_usual, _with_point, tested), b"0.0", form=PLAIN)


def _all_usual(column: pa.BinaryArray) -> bool:
    """Whether all floats are 0, or from 1E-3 to 1E7, and have no exponent."""
    if not is_decimal(column):
        return False
    values = np.abs(kernels.as_text(column).cast(pa.float64()).fill_null(0).to_numpy())
    return bool(((values == 0) | (values >= 1e-3) & (values < 1e7)).all())


def _with_point(column: pa.BinaryArray) -> pa.BinaryArray:
    """Print usual floats as Java does."""
    offsets, data = kernels.value_bytes(column)
    whole = (np.diff(offsets) > 0) & ~kernels.as_mask(kernels.contains(column, b"."))
    if not whole.any():
        return column
    longer = offsets + np.concatenate([np.zeros(1, np.int64), len(".0") * np.cumsum(whole)])
    marked = kernels.insert_before(data, offsets[1:][whole], b".0")
    return kernels.from_bytes(longer, marked, kernels.validity(column))


def java_float(text: str, kind: type[np.floating[Any]] = np.float64) -> bytes:
    """Print one float; NaN and the infinities become JSON strings."""
    value = kind(text)
    if not np.isfinite(value):
        return b'"NaN"' if np.isnan(value) else b'"Infinity"' if value > 0 else b'"-Infinity"'
    return java_number(text, kind).encode()


def java_number(text: str, kind: type[np.floating[Any]] = np.float64) -> str:
    """Print as `Double.toString` does: without an exponent from 1E-3 to 1E7."""
    short = kind(text)
    value = float(short)
    mark = "-" if math.copysign(1, value) < 0 else ""
    if value == 0:
        return f"{mark}0.0"
    precision = FLOAT if kind is np.float32 else DOUBLE
    digits = Decimal(str(abs(short))).normalize().as_tuple()
    if (
        len(digits.digits) > 1
        and abs(value) < 1 << precision.bits
        and math.frexp(value)[0] not in {0.5, -0.5}
    ):
        # In this range Java prints the shortest digits, too, except for powers of two.
        shown, point = "".join(map(str, digits.digits)), len(digits.digits) + int(digits.exponent)
    else:
        shown, point = java_digits(abs(value), precision)
    if -2 <= point <= 0:
        return f"{mark}0.{'0' * -point}{shown}"
    if 0 < point <= 7:
        return f"{mark}{shown[:point].ljust(point, '0')}.{shown[point:] or '0'}"
    return f"{mark}{shown[0]}.{shown[1:] or '0'}E{point - 1}"


def numeric(typmod: int, config: ConnectorConfig) -> Kind:
    declared = numeric_precision(typmod)
    # Debezium reads the scale as an unsigned number.
    scale = None if declared is None else declared.scale % 2048
    mode = config.decimal_handling_mode
    if mode == "string":
        unavailable = token(config.placeholder)
        zero = token(f"0.{'0' * scale}" if scale else "0")
        form = _NEGATIVE_SCALE if scale != _scale(declared) else {"form": "number"}
        return Kind({"type": "string"}, _string_mode(scale), zero, unavailable, form=form)
    if mode == "double":
        return Kind({"type": "double"}, _DOUBLES, b"0.0", form=_double_form(declared))
    if declared is None or scale is None:
        convert = Converter(_variable_scales, _variable_scale)
        return Kind(_VARIABLE_SCALE, convert, _VARIABLE_ZERO, form={"form": "variable"}, loss=_LOSES_ZEROS)
    parameters = {"scale": str(scale), "connect.decimal.precision": str(declared.precision)}
    schema = named("bytes", _DECIMAL, **parameters)
    to_json = _precise(scale) if scale < _LARGEST_INT64_PRECISION else per_value(_unscaled(scale))
    form = _NEGATIVE_SCALE if scale != declared.scale else {"form": "unscaled", "scale": scale}
    return Kind(schema, to_json, b'"AA=="', form=form, loss=_precise_loss(declared))


_NEGATIVE_SCALE = inexact("Debezium takes its negative scale for a large one")
_EXACT_IN_DOUBLE = 15
"""Decimal digits that every double preserves (`DBL_DIG` in float.h)."""


def _scale(declared: NumericPrecision | None) -> int | None:
    return None if declared is None else declared.scale


def _double_form(declared: NumericPrecision | None) -> Form:
    if declared is None or declared.precision > _EXACT_IN_DOUBLE:
        return inexact("decimal.handling.mode=double")
    within = 0 <= declared.scale <= declared.precision
    return {"form": "double"} if within else inexact("decimal.handling.mode=double")


def _precise_loss(declared: NumericPrecision) -> Loss | None:
    """Describe the loss of NaN: no loss if a lake table has a decimal, which can't hold it either."""
    is_decimal = declared.precision <= MAX_DECIMAL_PRECISION and declared.scale <= declared.precision
    return None if is_decimal else _LOSES_SPECIAL


_VARIABLE_SCALE: dict[str, Any] = {
    "type": "struct",
    "fields": [
        {"type": "int32", "optional": False, "field": "scale"},
        {"type": "bytes", "optional": False, "field": "value"},
    ],
    "name": "io.debezium.data.VariableScaleDecimal",
    "version": 1,
    "doc": "Variable scaled decimal",
}

_FINITE_NUMERIC = r"^[-\d.]+$"
_SCALES = kernels.binary([b'{"scale":%d,"value":' % scale for scale in range(18)])
_VARIABLE_ZERO = b'{"scale":0,"value":"AA=="}'


def _string_mode(scale: int | None) -> ToJson:
    def convert(text: str) -> bytes:
        if text in _NOT_FINITE_NAMES:
            return token(_NOT_FINITE_NAMES[text])
        digits = len(text.partition(".")[2])
        if scale is None or scale == digits:
            return token(text)
        zeros = "0" * (scale - digits)
        return token(f"{text}{zeros}" if digits else f"{text}.{zeros}")

    def to_json(column: pa.BinaryArray) -> pa.BinaryArray:
        if scale is not None and scale > _LARGEST_INT64_PRECISION:
            return per_value(convert)(column)
        usual = r"^-?[\d.]+$" if scale is None else _with_scale(scale)
        return quoted(column) if _all_match(column, usual) else per_value(convert)(column)

    return to_json


def _with_scale(scale: int) -> str:
    return rf"^-?\d+\.\d{{{scale}}}$" if scale else r"^-?\d+$"


def _all_match(column: pa.BinaryArray, pattern: str) -> bool:
    matching = kernels.matches(kernels.as_text(column), pattern)
    return bool((kernels.as_mask(matching) | kernels.as_mask(column.is_null())).all())


def _double(text: str) -> bytes:
    return java_float(text)


_short_doubles = usually(_USUAL_DECIMAL, _with_point, _double)


def _all_doubles(column: pa.BinaryArray) -> pa.BinaryArray:
    """Print decimals as doubles, without zeroes at the end."""
    text = kernels.as_text(column)
    has_point = kernels.as_mask(kernels.contains(text, b"."))
    short = kernels.choose(has_point, kernels.without_end(kernels.without_end(text, "0"), "."), text)
    return _short_doubles(kernels.as_binary(short))


_DOUBLES = Converter(_all_doubles, _double)


def _variable_scale(text: str) -> bytes | None:
    if text in _NOT_FINITE:
        return None
    whole, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0")
    value = base64_token(big_endian(_whole(whole + fraction)))
    return b'{"scale":%d,"value":%s}' % (len(fraction), value)


def _variable_scales(column: pa.BinaryArray) -> pa.BinaryArray:
    """Convert numbers of up to 17 digits (zeroes at the end not counted) at once, others one by one."""
    given = kernels.as_text(column.fill_null(b"0"))
    point = kernels.find(given, b".")
    text = kernels.choose(point < 0, given, kernels.without_end(given, "0"))
    rare = np.diff(kernels.offsets(text)) > _LARGEST_INT64_PRECISION
    if not is_decimal(text):
        rare |= ~kernels.as_mask(kernels.matches(text, _FINITE_NUMERIC))
    if rare.any():
        text, point = kernels.replace_where(text, rare, b"0"), np.where(rare, -1, point)
    scale = np.where(point < 0, 0, np.diff(kernels.offsets(text)) - point - 1)
    value = _base64_of(_without_points(text))
    joined = kernels.join([kernels.take(_SCALES, scale), value, b"}"])
    tokens = kernels.nulled_like(kernels.as_binary(joined), column)
    if not rare.any():
        return tokens
    rest = per_value(_variable_scale)(column.filter(pa.array(rare)))
    return kernels.replace_with_mask(tokens, rare, rest)


def _has_no_zeros(column: pa.BinaryArray) -> bool:
    """Whether all values are finite, and none ends in a zero."""
    offsets, data = kernels.value_bytes(column)
    ends = offsets[1:][np.diff(offsets) > 0]
    return is_decimal(column) and not bool((data[ends - 1] == ord("0")).any())


_LOSES_ZEROS = Loss(r"^(NaN|-?Infinity)$|\.\d*0$", "decimal.handling.mode=precise", _has_no_zeros)
_LOSES_SPECIAL = Loss(r"^(NaN|-?Infinity)$", "decimal.handling.mode=precise", is_decimal)


def _without_points(column: pa.BinaryArray | pa.StringArray) -> NDArray[np.int64]:
    """Read decimals as integers, as if they had no point; null becomes 0."""
    offsets, data = kernels.value_bytes(column)
    is_point = data == ord(".")
    points = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_point)])
    ends = offsets - points[offsets]
    digits = kernels.from_bytes(ends, data[~is_point], kernels.validity(column))
    return kernels.as_text(digits).cast(pa.int64()).fill_null(0).to_numpy()


def _unscaled(scale: int) -> Callable[[str], bytes | None]:
    def convert(text: str) -> bytes | None:
        if text in _NOT_FINITE:
            return None
        whole, _, fraction = text.partition(".")
        return base64_token(big_endian(_whole(whole + fraction.ljust(scale, "0"))))

    return convert


def _whole(digits: str) -> int:
    """Parse an integer of any length; `int` alone refuses long ones."""
    return int(Decimal(digits))


def big_endian(value: int) -> bytes:
    """Encode as two's complement in as few bytes as possible (`BigInteger.toByteArray`)."""
    return value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)


def _precise(scale: int) -> Converter:
    """Convert numbers of up to 18 digits at once, others one by one; the scale is below 18."""
    fraction = rf"\.\d{{{scale}}}" if scale else ""
    usual = rf"^-?\d{{1,{_LARGEST_INT64_PRECISION - scale}}}{fraction}$"

    def convert(column: pa.BinaryArray) -> pa.BinaryArray:
        return kernels.nulled_like(_base64_of(_without_points(column)), column)

    return at_once(
        lambda column: _all_short(column, scale), convert, usually(usual, convert, _unscaled(scale))
    )


def _all_short(column: pa.BinaryArray, scale: int) -> bool:
    """Whether all texts fit 64 bits, have no other bytes than a decimal's, and the point in its place."""
    offsets, data = kernels.value_bytes(column)
    lengths = np.diff(offsets)
    if lengths.max(initial=0) > _LARGEST_INT64_PRECISION or not is_decimal(column):
        return False
    ends = offsets[1:][lengths > 0]
    return np.array_equal(np.flatnonzero(data == ord(".")), ends - (scale + 1) if scale else ends[:0])


def _base64_of(values: NDArray[np.int64]) -> pa.BinaryArray:
    """Write each value's shortest big-endian two's complement as quoted base64."""
    size = np.searchsorted(_SIZES, values ^ (values >> 63), side="right") + 1
    length = (size + 2) // 3 * 4
    longest = int(length.max(initial=0))
    bits = (values << 8 * (8 - size)).view(np.uint64)
    tokens = np.full((len(values), longest + 2), ord('"'), np.uint8)
    pairs = tokens[:, 1:-1].view(np.uint16)
    for number in range(longest // 2):
        # 64 bits are five pairs of letters and a third of one.
        pair = bits >> np.uint64(52 - 12 * number) if number < 5 else bits << np.uint64(8)
        pair &= np.uint64(4095)
        if number % 2:
            pair += 4096 * np.clip(3 * (number // 2 + 1) - size, 0, 2).astype(np.uint64)
        pairs[:, number] = _PAIRS[pair]
    if (length < longest).any():
        tokens[np.arange(len(values)), length + 1] = ord('"')
        tokens = tokens[np.arange(longest + 2) < length[:, None] + 2]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(length + 2)])
    return kernels.from_bytes(offsets, tokens.reshape(-1))


def money(config: ConnectorConfig, *, snapshot: bool) -> Kind:
    """Money, printed under the server's lc_monetary. In snapshots the JDBC driver reads it as a double."""
    scale, mode = config.money_fraction_digits, config.decimal_handling_mode
    given = partial(_amount, scale=scale)
    amount = partial(_double_amount, scale=scale) if snapshot else given
    if mode == "string":
        printed = partial(_double_text, scale=scale) if snapshot else given
        convert, zero = per_value(lambda text: token(printed(text))), token(f"{0:.{scale}f}")
        return Kind({"type": "string"}, convert, zero, form=_MONEY)
    if mode == "double":
        return Kind({"type": "double"}, per_value(lambda text: _double(amount(text))), b"0.0", form=_MONEY)
    unscaled, unit = _unscaled(scale), Decimal(1).scaleb(-scale)

    def rounded(text: str) -> bytes | None:
        return unscaled(str(Decimal(amount(text)).quantize(unit, ROUND_HALF_UP, _ANY_SCALE)))

    schema = named("bytes", _DECIMAL, scale=str(scale))
    return Kind(schema, per_value(rounded), b'"AA=="', form=_MONEY)


_ANY_SCALE = Context(prec=33_000)
"""Has room for the most digits that `money.fraction.digits` takes, and for those before them."""

_MONEY = inexact("Debezium leaves out its currency")


def in_format(kind: Kind, config: ConnectorConfig) -> Kind:
    """Apply the converter's `decimal.format`: a decimal may be a number, printed by `BigDecimal.toString`."""
    if config.value_converter_decimal_format == "base64" or kind.schema.get("name") != _DECIMAL:
        return kind
    scale = int(kind.schema["parameters"]["scale"])

    def number(found: bytes) -> bytes:
        value = int.from_bytes(base64.b64decode(found[1:-1]), "big", signed=True)
        return str(Decimal((value < 0, Decimal(value).as_tuple().digits, -scale))).encode()

    def to_json(column: pa.BinaryArray) -> pa.BinaryArray:
        return kernels.binary([one and number(one) for one in kind.to_json(column).to_pylist()])

    return replace(kind, to_json=to_json, zero=number(kind.zero), form=inexact("decimal.format=numeric"))


_GROUP = 3
"""Digits between two separators of thousands; only a currency with as many decimals can look the same."""


def _amount(text: str, scale: int) -> str:
    """Read printed money, such as `-$1,234.50`, `1.234,50 €` or `kr. 7,00`, as `-1234.50`.

    `scale` decides where a point or comma before three digits could be either kind of separator.
    """
    # Points and commas outside of the digits are the currency's: `kr.`
    separators = re.findall(r"(?<=\d)\D+(?=\d)", text)
    *groups, last = re.findall(r"\d+", text)
    point = "." if groups and _is_fraction(last, separators, scale) else ""
    amount = f"{''.join(groups)}{point}{last}"
    return f"-{amount}" if "-" in text or "(" in text else amount


def _is_fraction(digits: str, separators: list[str], scale: int) -> bool:
    """Whether the digits after the last separator are decimals, and not thousands."""
    if len(digits) != _GROUP:
        return True
    if len(separators) > 1:
        return separators[-1] != separators[0]
    return scale == _GROUP or (scale != 0 and separators[0] == ".")


def _double_text(text: str, scale: int) -> str:
    return java_number(_amount(text, scale))


def _double_amount(text: str, scale: int) -> str:
    return f"{Decimal(repr(float(_amount(text, scale)))):.2f}"
