"""Convert values of Debezium's events back to PostgreSQL's text, as far as their form is known.

The form comes from the schema file in a directory with one folder per table, else from the Connect schema
beside the payload. Values whose form is unknown, or whose configuration lost information, stay as they are.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.formats.exact_json import Number, compact_json, parse_line
from pgcdc_cli.reader.arrow_reader import array_element, pg_texts
from pgcdc_cli.reader.restored_change import Value
from pgcdc_cli.types.pg_type import JsonKind, PgType, json_kind
from pgcdc_cli.types.to_arrow import numeric_precision

Form: TypeAlias = dict[str, Any]
"""How tokens are read back: `form` names the rule (None for none), the rest are its parameters."""

ConnectSchema: TypeAlias = Mapping[str, Any]

_SECOND = 1_000_000
_FIRST_SECOND, _END_SECOND = -210_866_803_200, 9_223_372_036_854
"""4714-11-24 BC, PostgreSQL's first day; and the end of Debezium's range of microseconds."""
_DAYS_OF_INFINITY = {
    -2147472692: "infinity",
    -2147472691: "-infinity",
    -622191234: "infinity",
    -625821272: "-infinity",
}
"""Debezium's constants for infinite dates; the last two are for snapshots."""
_TENTHS_OF_INFINITY = {92_233_720_368_252: "infinity", -92_233_720_368_324: "-infinity"}
"""Debezium's constants for infinite timestamps, in tenths of a second since 1970."""
_NUMBERS = {"NAN": "NaN", "POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity"}
_ZONED = re.compile(r"([+-]?)(\d+)(-\d\d-\d\d)T([\d:]+)(\.\d+)?Z")
_INTERVAL = re.compile(r"P(-?\d+)Y(-?\d+)M(-?\d+)DT(-?\d+)H(-?\d+)M(-?)(\d+)(\.\d+)?S")

_PLACEHOLDER = "__debezium_unavailable_value"
_UNAVAILABLE = frozenset(
    compact_json(token)
    for text in (_PLACEHOLDER, base64.b64encode(_PLACEHOLDER.encode()).decode())
    for token in (text, [text], {text: text}, compact_json({text: text}))
) | {compact_json(list(_PLACEHOLDER.encode()))}
"""Tokens of the default placeholder for unchanged TOAST values; used if the placeholder isn't known."""


@dataclass(frozen=True, slots=True)
class StoredField:
    """A column as written in its table's events; `unavailable` are tokens for unchanged TOAST values.

    `in_old` is whether the server sends its old value; None if unknown.
    """

    name: str
    form: Form | None
    kind: JsonKind
    unavailable: frozenset[str] = _UNAVAILABLE
    in_old: bool | None = None

    def read_as(self, other: "StoredField") -> "StoredField":
        """Return the same column with another's form."""
        return replace(self, form=other.form, kind=other.kind)

    def value(self, token: object) -> Value:
        """Read a token; without a rule, or if its rule fails, it stays as it is."""
        if token is None or self.form is None:
            return Value.as_it_stands(token)
        try:
            text = _text(token, self.form)
            if self.kind == "json":
                _check_json(text)
            return Value(self.kind, text)
        except (ValueError, TypeError, KeyError, ArithmeticError, pa.ArrowException):
            return Value.as_it_stands(token)

    def is_unavailable(self, token: object) -> bool:
        return token is not None and compact_json(token) in self.unavailable


def _check_json(text: str) -> None:
    """Raise ValueError if it is none: what stands for a required value that was not sent."""
    with suppress(RecursionError):
        parse_line(text)


def described_columns(table: TableSchema) -> dict[str, StoredField]:
    """Return the columns that a schema file describes, by field name."""
    assert table.events is not None
    found = {}
    for column in table.columns:
        said = table.events["columns"][column.name]
        if said is not None and "field" in said:
            found[said["field"]] = StoredField(
                column.name,
                _described_form(column.type, said),
                json_kind(column.type),
                _stand_ins(said["unavailable"]),
                column.in_replica_identity,
            )
    return found


def _described_form(pg_type: PgType, said: Form) -> Form | None:
    if said["form"] is None:
        return None
    if said["form"] == "array" and pg_type.element is not None:
        return {**said, "items": _described_form(pg_type.element, said["items"])}
    if json_kind(pg_type) == "float":
        return {"form": "float", "bits": 32 if pg_type.name == "float4" else 64}
    if said["form"] == "double":
        declared = numeric_precision(pg_type.typmod)
        return {**said, "scale": 0 if declared is None else declared.scale}
    return said


def _stand_ins(unavailable: str | None) -> frozenset[str]:
    """Return the tokens of a placeholder; for one that is no string, the schema file has its text."""
    return frozenset() if unavailable is None else frozenset([unavailable, compact_json(unavailable)])


def schema_column(name: str, schema: ConnectSchema | None) -> StoredField:
    """Make a column from its Connect schema, or without one."""
    form = None if schema is None else _connect_form(schema)
    return StoredField(name, form, "string" if schema is None else _kind(schema))


def _clock(form: str, per_second: int) -> Form:
    return {"form": form, "per_second": per_second}


_PLAIN: Form = {"form": "plain"}
_CONNECT = "org.apache.kafka.connect.data"
_TIME = "io.debezium.time"
_NAMED: dict[str, Form | None] = {
    "io.debezium.data.VariableScaleDecimal": {"form": "variable"},
    f"{_CONNECT}.Date": {"form": "days"},
    f"{_TIME}.Date": {"form": "days"},
    f"{_CONNECT}.Time": _clock("time", 1000),
    f"{_TIME}.Time": _clock("time", 1000),
    f"{_TIME}.MicroTime": _clock("time", _SECOND),
    f"{_CONNECT}.Timestamp": _clock("timestamp", 1000),
    f"{_TIME}.Timestamp": _clock("timestamp", 1000),
    f"{_TIME}.MicroTimestamp": _clock("timestamp", _SECOND),
    f"{_TIME}.ZonedTimestamp": {"form": "zoned"},
    f"{_TIME}.Interval": {"form": "interval"},
}
_BY_TYPE: dict[str, Form] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "boolean", "string"), _PLAIN),
    "float": {"form": "float", "bits": 32},
    "double": {"form": "float", "bits": 64},
    "bytes": {"form": "bytes", "encoding": "bytes"},
    "map": {"form": "hstore"},
}
_KINDS: dict[str, JsonKind] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), "number"),
    **dict.fromkeys(("float", "double"), "float"),
    "boolean": "bool",
}


def _connect_form(schema: ConnectSchema) -> Form | None:
    """Choose the rule by the semantic type name, else by the type."""
    name, type_, parameters = schema.get("name"), schema["type"], schema.get("parameters", {})
    if name in _NAMED:
        return _NAMED[name]
    if name == f"{_CONNECT}.Decimal":
        return {"form": "unscaled", "scale": int(parameters["scale"])}
    if type_ == "array" and name is None:
        items = _connect_form(schema["items"])
        return items and {"form": "array", "items": items}
    # Bit strings without a fixed length have lost their leading zeroes; vectors and points have no rule.
    return None if name is not None and type_ not in _KINDS and type_ != "string" else _BY_TYPE.get(type_)


def _kind(schema: ConnectSchema) -> JsonKind:
    if schema.get("name") == "io.debezium.data.Json":
        return "json"
    return "string" if schema.get("name") in _NAMED else _KINDS.get(schema["type"], "string")


def _text(token: Any, form: Form) -> str:  # noqa: ANN401 - any value of JSON
    return _FORMS[form["form"]](token, form)


def _plain(token: Any, _: Form) -> str:  # noqa: ANN401
    if isinstance(token, bool):
        return "t" if token else "f"
    return str(token) if isinstance(token, str) else compact_json(token)


def _number(token: str, _: Form) -> str:
    return _NUMBERS.get(token, str(token))


def _float(token: str, form: Form) -> str:
    """Print a float as PostgreSQL does, not as Java."""
    return _printed(float(token), pa.float32() if form["bits"] == 32 else pa.float64())


def _printed(value: float, arrow: pa.DataType) -> str:
    text: bytes = pg_texts(pa.array([value], arrow), None)[0].as_py()
    return text.decode()


def _double(token: str, form: Form) -> str:
    return f"{Decimal(token).quantize(Decimal(1).scaleb(-form['scale'])):f}"


def _unscaled(token: str, form: Form) -> str:
    # With decimal.format=numeric it is a number.
    return str(token) if isinstance(token, Number) else _decimal(token, form["scale"])


def _variable(token: Mapping[str, Any], _: Form) -> str:
    return _decimal(token["value"], int(token["scale"]))


def _decimal(unscaled: str, scale: int) -> str:
    """Decode a base64 two's complement; Decimal takes integers of any length."""
    value = int.from_bytes(base64.b64decode(unscaled, validate=True), "big", signed=True)
    return f"{Decimal((int(value < 0), Decimal(value).as_tuple().digits, -scale)):f}"


def _octets(token: str, form: Form) -> bytes:
    if form["encoding"] == "hex":
        return bytes.fromhex(token)
    altchars = b"-_" if form["encoding"] == "base64-url-safe" else None
    return base64.b64decode(token, altchars, validate=True)


def _bytes(token: str, form: Form) -> str:
    return "\\x" + _octets(token, form).hex()


def _bytes_text(token: str, form: Form) -> str:
    return _octets(token, form).decode()


def _bit(token: bool, _: Form) -> str:
    return str(int(token))


def _bits(token: str, form: Form) -> str:
    return f"{int.from_bytes(base64.b64decode(token, validate=True), 'little'):0{int(form['length'])}b}"


def _days(token: str, _: Form) -> str:
    days = int(token)
    return _DAYS_OF_INFINITY.get(days) or _printed(days, pa.date32())


def _time(token: str, form: Form) -> str:
    seconds, rest = divmod(int(token), form["per_second"])
    fraction = f".{rest * _SECOND // form['per_second']:06}".rstrip("0").rstrip(".")
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"


def _timestamp(token: str, form: Form) -> str:
    count, per_second = int(token), form["per_second"]
    infinite = _TENTHS_OF_INFINITY.get(count * 10 // per_second)
    if infinite is not None:
        return infinite
    if not _FIRST_SECOND <= count // per_second < _END_SECOND:
        raise ValueError("beyond PostgreSQL's timestamps")
    return _printed(count * _SECOND // per_second, pa.timestamp("us"))


def _zoned(token: str, _: Form) -> str:
    """Print as PostgreSQL does: an era for ISO 8601's sign, and a fraction without zeroes at the end."""
    found = _ZONED.fullmatch(token)
    if found is None:
        return str(token)
    sign, year, day, clock, fraction = found.groups()
    before = sign == "-" or int(year) == 0
    shown = f"{int(year) + before:04}{day} {clock}{(fraction or '').rstrip('0').rstrip('.')}+00"
    return f"{shown} BC" if before else shown


def _interval(token: str, _: Form) -> str:
    """Print an interval as `EncodeInterval` in datetime.c does with IntervalStyle postgres."""
    found = _INTERVAL.fullmatch(token)
    if found is None:
        raise ValueError("no interval")
    *counts, hours, minutes, minus, seconds, fraction = found.groups()
    shown, before = list[str](), False
    for text, unit in zip(counts, ("year", "mon", "day"), strict=True):
        count = int(text)
        if count:
            shown.append(f"{'+' if before and count > 0 else ''}{count} {unit}{'' if count == 1 else 's'}")
            before = count < 0
    # Floating-point arithmetic may have left nine digits; an interval has six.
    rest = f"{Decimal(fraction or 0):.6f}".removeprefix("0").rstrip("0").rstrip(".")
    negative = "-" in (hours[0], minutes[0], minus)
    clock = f"{abs(int(hours)):02}:{abs(int(minutes)):02}:{int(seconds):02}{rest}"
    if clock != "00:00:00" or not shown:
        shown.append(("-" if negative else "+" if before else "") + clock)
    return " ".join(shown)


def _hstore(token: Any, _: Form) -> str:  # noqa: ANN401 - an object, or its text
    """Print pairs as `hstore_out` does: shorter keys first."""
    pairs: Mapping[str, str | None] = json.loads(token) if isinstance(token, str) else token
    ordered = sorted(pairs.items(), key=lambda pair: (len(pair[0].encode()), pair[0].encode()))
    return ", ".join(f"{_quoted(key)}=>{'NULL' if one is None else _quoted(one)}" for key, one in ordered)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _array(token: Sequence[object], form: Form) -> str:
    items = form["items"]
    texts = [array_element(None if item is None else _text(item, items), ",") for item in token]
    return "{" + ",".join(texts) + "}"


_FORMS: dict[str, Callable[[Any, Form], str]] = {
    "plain": _plain,
    "number": _number,
    "float": _float,
    "double": _double,
    "unscaled": _unscaled,
    "variable": _variable,
    "bytes": _bytes,
    "text": _bytes_text,
    "bit": _bit,
    "bits": _bits,
    "days": _days,
    "time": _time,
    "timestamp": _timestamp,
    "zoned": _zoned,
    "interval": _interval,
    "hstore": _hstore,
    "array": _array,
}
