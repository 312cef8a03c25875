"""Arrow values back into PostgreSQL's text: the inverse of `types.convert`."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from pgcdc_cli.types.kernels import Column
from pgcdc_cli.types.registry import PgType

_DAY = 86_400_000_000
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_NEEDS_QUOTES = frozenset('{}"\\ \t\n\r\v\f')


class Printer(NamedTuple):
    """`storage` is an Arrow type whose every value Python can hold, None for the column's own."""

    fits: Callable[[pa.DataType], bool]
    storage: pa.DataType | None
    text: Callable[[Any], str]


def pg_texts(column: Column, pg_type: PgType | None) -> list[str | None]:
    """Print each value as PostgreSQL does, None for null; `pg_type` tells how array elements are parted."""
    if isinstance(column, pa.ListArray):
        return _array_literals(column, pg_type)
    printer = next(printer for printer in _PRINTERS if printer.fits(column.type))
    values: Column = column if printer.storage is None else column.cast(printer.storage)
    return [None if value is None else printer.text(value) for value in values.to_pylist()]


def float_text(shortest: str, whole_digits: int) -> str:
    """Lay out the shortest digits of a float as PostgreSQL does (`to_chars` in d2s.c and f2s.c).

    A number of more than `whole_digits` digits before the point, or below 0.0001, has an exponent.
    """
    if shortest in _NOT_FINITE:
        return _NOT_FINITE[shortest]
    sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
    assert isinstance(exponent, int)
    figures = "".join(map(str, digits))
    magnitude = exponent + len(figures) - 1
    minus = "-" if sign else ""
    if figures != "0" and not -4 <= magnitude < whole_digits:
        point = "." if len(figures) > 1 else ""
        return f"{minus}{figures[0]}{point}{figures[1:]}e{magnitude:+03d}"
    if exponent >= 0:
        return minus + figures + "0" * exponent
    figures = figures.rjust(1 - exponent, "0")
    return f"{minus}{figures[:exponent]}.{figures[exponent:]}"


def _date(days: int) -> tuple[str, str]:
    """Year, month and day in the proleptic Gregorian calendar, and ` BC` for years before 1."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    # Years begin in March here, so that the leap day comes last: 153 days in every five months.
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = era * 400 + year_of_era + (month <= 2)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}", "" if year > 0 else " BC"


def date_text(days: int) -> str:
    """Print `2026-01-02` for days since 1970-01-01."""
    return "".join(_date(days))


def time_text(micros: int) -> str:
    """Print `23:59:59.5` for a time of day."""
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + (f".{fraction:06d}".rstrip("0") if fraction else "")


def timestamp_text(micros: int, zone: str = "") -> str:
    """Print `2026-01-02 03:04:05.5+00` for microseconds since 1970."""
    days, rest = divmod(micros, _DAY)
    date, era = _date(days)
    return f"{date} {time_text(rest)}{zone}{era}"


def _is_local(arrow: pa.DataType) -> bool:
    return isinstance(arrow, pa.TimestampType) and arrow.tz is None


_PRINTERS = (
    Printer(pa.types.is_boolean, None, lambda value: "t" if value else "f"),
    # Arrow prints the shortest digits that give the same float again, for float32, too.
    Printer(pa.types.is_float32, pa.string(), lambda text: float_text(text, 6)),
    Printer(pa.types.is_float64, pa.string(), lambda text: float_text(text, 15)),
    Printer(pa.types.is_decimal, None, lambda value: format(value, "f")),
    Printer(pa.types.is_binary, None, lambda value: "\\x" + str(value.hex())),
    Printer(pa.types.is_date32, pa.int32(), date_text),
    Printer(pa.types.is_time, pa.int64(), time_text),
    Printer(_is_local, pa.int64(), timestamp_text),
    Printer(pa.types.is_timestamp, pa.int64(), lambda micros: timestamp_text(micros, "+00")),
    Printer(lambda _: True, None, str),
)
"""The first that fits an Arrow type prints it."""


def _array_literals(column: "pa.ListArray[Any]", pg_type: PgType | None) -> list[str | None]:
    element = None if pg_type is None else pg_type.element
    delimiter = ";" if element is not None and element.name == "box" else ","
    texts = [_element(text, delimiter) for text in pg_texts(column.flatten(), element)]
    literals: list[str | None] = []
    start = 0
    for length in column.value_lengths().to_pylist():
        if length is None:
            literals.append(None)
        else:
            literals.append("{" + delimiter.join(texts[start : start + length]) + "}")
            start += length
    return literals


def _element(text: str | None, delimiter: str) -> str:
    """Quote where `array_out` in arrayfuncs.c does."""
    if text is None:
        return "NULL"
    if text and text.upper() != "NULL" and delimiter not in text and _NEEDS_QUOTES.isdisjoint(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
