"""Column defaults, as `PostgresDefaultValueConverter` of Debezium 2.5.4 parses them.

Expressions are not evaluated: a function call has a constant in its place, `'a' || 'b'` is its first literal,
and anything else must be a plain value. Each type has a reader, which converts that text to wire text, or
returns None where Java would refuse it. A type without a reader has no default.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal, InvalidOperation

import numpy as np

from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.formats.debezium.types.kind import Kind
from pgcdc_cli.formats.debezium.types.temporal import timestamptz
from pgcdc_cli.types import kernels
from pgcdc_cli.types.pg_type import PgType
from pgcdc_cli.types.to_arrow import numeric_precision

# Java's "." matches none of these line terminators.
_LITERAL = re.compile("'([^\n\r\x85\u2028\u2029]*?)'")
_FUNCTION = re.compile("[(]?[A-Za-z0-9_.]+\\([^\n\r\x85\u2028\u2029]*\\)")
_CURRENT = frozenset(["current_timestamp", "current_time", "current_date", "localtime", "localtimestamp"])
_JAVA_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_JAVA_SPECIAL = re.compile(r"[+-]?(NaN|Infinity)")
_CLOCK = re.compile(r"\d\d:\d\d(:\d\d(\.\d+)?)?")
_HOUR_AND_MINUTE = re.compile(r"\d\d:\d\d")
_MOMENT = re.compile(
    r"(?P<day>\d{4,}-\d\d-\d\d)(?: (?P<clock>\d\d:\d\d:\d\d(?:\.\d+)?))?"
    r"(?P<zone>[+-]\d\d[\d:]*)?(?P<era> BC)?"
)
_FRACTION = re.compile(r"\.(\d*?)0*(?!\d)")
_ANY_LENGTH = Context(prec=20_000)
_UUID = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_RADIX_2 = re.compile(r"[+-]?[01]{1,31}")

Read = Callable[[str, int], str | None]
"""Converts the default's text, with the column's typmod, to wire text."""


@dataclass(frozen=True, slots=True)
class _Reader:
    generated: str
    read: Read


def default_token(kind: Kind, type_: PgType, expression: str | None) -> bytes | None:
    """Write a column's default as a token; None if it has none that Debezium can read."""
    if expression is None or kind.schema["type"] in {"struct", "array"}:
        return None
    if type_.category == "enum":
        return _token(kind, _label(expression, type_.name))
    reader = _READERS.get(type_.name)
    if reader is None:
        return None
    text = _text(expression, reader.generated)
    if text is None:
        return None
    return _bits(kind, text) if type_.name == "bit" else _odd_moment(kind, text) or _read(kind, type_, text)


def _text(expression: str, generated: str) -> str | None:
    if _FUNCTION.match(expression) or expression.lower() in _CURRENT:
        return generated
    if "'" in expression:
        literal = _LITERAL.search(expression)
        return literal[1] if literal else None
    return None if expression.startswith("NULL::") else expression


def _label(expression: str, type_name: str) -> str | None:
    """Read a plain literal of the type, written without a schema; its doubled quotes stay doubled."""
    literal = expression.removesuffix(f"::{type_name}")
    quoted = literal != expression and len(literal) > 1 and literal[0] == literal[-1] == "'"
    return literal[1:-1] if quoted else None


def _read(kind: Kind, type_: PgType, text: str) -> bytes | None:
    found = _READERS[type_.name].read(text, type_.typmod)
    fraction = _FRACTION.search(found or "")
    if fraction and type_.name == "timestamptz" and type_.typmod == 0:
        # With a precision of 0, Java's formatter prints all digits that there are.
        kind = timestamptz(len(fraction[1]), snapshot=False)
    return _token(kind, found)


def _token(kind: Kind, text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        [found] = kind.to_json(kernels.binary([text])).to_pylist()
    except (ValueError, ArithmeticError, PgcdcError):
        return None
    return found


def _odd_moment(kind: Kind, text: str) -> bytes | None:
    return _ODD_MOMENTS.get(kind.schema.get("name", ""), {}).get(text)


def _bits(kind: Kind, text: str) -> bytes | None:
    """Read a boolean for bit(1); a single digit as a number; in any other text only the ones count."""
    if kind.schema["type"] == "boolean":
        digits = int(text, 2) if _RADIX_2.fullmatch(text) else None
        return None if digits is None else b"true" if digits else b"false"
    if len(text) == 1:
        return b'"AQ=="' if text == "1" else b'"AA=="'
    return _token(kind, re.sub("[^1]", "0", text))


_DAYS = {"infinity": b"169560311", "-infinity": b"-170999002"}
_ODD_MOMENTS = {
    "io.debezium.time.Date": _DAYS,
    "org.apache.kafka.connect.data.Date": _DAYS,
    "io.debezium.time.IsoDate": {"infinity": b'"+999999999-12-31Z"', "-infinity": b'"-999999999-01-01Z"'},
    "io.debezium.time.NanoTime": {"24:00:00": b"86399999999999"},
    "io.debezium.time.IsoTime": {"24:00:00": b'"23:59:59.999999999Z"'},
    "io.debezium.time.MicroTimestamp": {
        "infinity": b"-9223372036853775810",
        "-infinity": b"-9223372036854775808",
    },
    "io.debezium.time.NanoTimestamp": {
        "infinity": b"7852397722631405567",
        "-infinity": b"-3028005206664544256",
    },
    "io.debezium.time.IsoTimestamp": {
        "infinity": b'"+999999999-12-31T23:59:59.999999999Z"',
        "-infinity": b'"-999999999-01-01T00:00:00Z"',
    },
}
"""By schema name: tokens of defaults that become Java's greatest or least date or time."""


def _as_it_is(text: str, _: int) -> str:
    return text


def _integer(bits: int) -> Read:
    def read(text: str, _: int) -> str | None:
        if not re.fullmatch(r"[+-]?\d{1,20}", text):
            return None
        value = int(text)
        return str(value) if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None

    return read


def _float(text: str, _: int) -> str | None:
    text = text.strip()
    if _JAVA_SPECIAL.fullmatch(text):
        return "NaN" if "NaN" in text else text.removeprefix("+")
    return text if _JAVA_DECIMAL.fullmatch(text) else None


def _single(text: str, typmod: int) -> str | None:
    """Round to single precision, since the literal isn't."""
    found = _float(text, typmod)
    special = found is None or _JAVA_SPECIAL.fullmatch(found)
    return found if special else str(np.float32(found))


def _numeric(text: str, typmod: int) -> str | None:
    """Refuse a fraction longer than the scale, unless the further digits are zeroes, as Java does."""
    if not _JAVA_DECIMAL.fullmatch(text):
        return None
    value, declared = Decimal(text), numeric_precision(typmod)
    if declared is None:
        return f"{value:f}"
    try:
        exact = value.quantize(Decimal(1).scaleb(-(declared.scale % 2048)), context=_ANY_LENGTH)
    except InvalidOperation:
        return None
    return f"{exact:f}" if exact == value else None


def _boolean(text: str, _: int) -> str:
    return "t" if text.lower() == "true" else "f"


def _uuid(text: str, _: int) -> str | None:
    return text.lower() if _UUID.fullmatch(text) else None


def _clock(text: str, _: int) -> str | None:
    """Read a time of day; 24:00 becomes the last microsecond before it."""
    text = f"{text}:00" if _HOUR_AND_MINUTE.fullmatch(text) else text
    return "23:59:59.999999" if text == "24:00:00" else text


def _moment(text: str, _: int) -> str | None:
    """Read a timestamp; a time alone is on 1970-01-01; Java's zoned timestamps can't hold infinity."""
    if _CLOCK.fullmatch(text):
        return f"1970-01-01 {text}"
    match = _MOMENT.fullmatch(text)
    return match and f"{match['day']} {match['clock'] or '00:00:00'}{match['era'] or ''}"


def _zoned_moment(text: str, typmod: int) -> str | None:
    """Read a timestamp with time zone; without one it is in UTC."""
    moment, given = _moment(text, typmod), _MOMENT.fullmatch(text)
    if moment is None or moment.endswith(" BC"):
        return moment and f"{moment.removesuffix(' BC')}+00 BC"
    zone = given and given["zone"]
    return f"{_in_utc(moment, zone) if zone else moment}+00"


def _in_utc(moment: str, zone: str) -> str:
    """Shift a timestamp to UTC; one that Python's calendar lacks stays as it is."""
    second, point, fraction = moment.partition(".")
    try:
        shifted = datetime.fromisoformat(second + zone).astimezone(UTC)
    except (ValueError, OverflowError):
        return moment
    return f"{shifted.replace(tzinfo=None).isoformat(' ')}{point}{fraction}"


def _day(text: str, _: int) -> str | None:
    return "1970-01-01" if _CLOCK.fullmatch(text) else text


_READERS = {
    "bit": _Reader("00", _as_it_is),
    "varbit": _Reader("0", lambda text, _: re.sub("[^1]", "0", text)),
    "bool": _Reader("false", _boolean),
    "bpchar": _Reader("", _as_it_is),
    "varchar": _Reader("", _as_it_is),
    "text": _Reader("", _as_it_is),
    "numeric": _Reader("0.0", _numeric),
    "float4": _Reader("0.0", _single),
    "float8": _Reader("0.0", _float),
    "int2": _Reader("0", _integer(16)),
    "int4": _Reader("0", _integer(32)),
    "int8": _Reader("0", _integer(64)),
    "json": _Reader("{}", _as_it_is),
    "jsonb": _Reader("{}", _as_it_is),
    "xml": _Reader("", _as_it_is),
    "uuid": _Reader("00000000-0000-0000-0000-000000000000", _uuid),
    "date": _Reader("1970-01-01", _day),
    "time": _Reader("00:00:00", _clock),
    "timestamp": _Reader("1970-01-01 00:00:00", _moment),
    "timestamptz": _Reader("1970-01-01 00:00:00+00", _zoned_moment),
    "interval": _Reader("00:00:00", _as_it_is),
}
