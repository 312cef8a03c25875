"""Debezium's events as rows: an event's change, its place in history, and its values.

A changed key is a delete and a create (with a tombstone between) at the same LSN: two halves of one change.
Values that the create lacks (unchanged TOAST) are those of the row that was deleted there, if one was.

An event doesn't have its commit LSN, but the end LSN of the previous commit (`source.sequence`), which has
the same order; without a previous one, the file's name has the first commit LSN. Within a transaction,
`source.lsn` increases from change to change; only rows of a multi-insert share one.

Each column's values have a form, which the schema file names. It says how a JSON token's text becomes
PostgreSQL's value, or its text.

| form | token |
|---|---|
| plain | the value itself |
| number, double | digits, or Debezium's names of NaN and infinity |
| unscaled, variable | the unscaled value's two's complement in base64; or an object with scale and value |
| bytes, text | bytes in base64 or hex: of a value, or of its text |
| bit, bits | a boolean; or bytes in base64, the last bits first |
| days, time, timestamp | a count since 1970, or since midnight |
| zoned | ISO 8601 in UTC |
| interval | ISO 8601 |
| hstore | an object, or its text |
| array | an array of such tokens |
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .column_types import from_text, in_range
from .hadoop_files import escaped
from .merge_errors import MergeError
from .segments import ChangeFile, parsed_json, read_json, struct_of_texts
from .table_version import TableVersion

Form = dict[str, Any]

_SOURCE = "source struct<ts_ms: bigint, ts_us: bigint, sequence: string, txId: bigint, lsn: bigint>"
_OPERATIONS = {"c": "I", "u": "U", "d": "D", "t": "T", "r": "R"}
_FIRST_COMMIT = r"^[0-9]+-([0-9A-F]{16})-"
_REMEDIES = {
    "decimal.handling.mode": "string",
    "include.unknown.datatypes": "true",
    "interval.handling.mode": "string",
    "skipped.operations": "none",
    "time.precision.mode": "adaptive",
    "unavailable.value.placeholder": "TEXT, with a text that is nowhere else,",
    "value.converter.replace.null.with.default": "false",
}
"""Settings that make events exact, by the name of the property."""

_NIBBLES = "0123456789ABCDEF"
_CHUNK = 8
"""Hexadecimal digits that are converted at a time."""
_SHORT = 30
"""Hexadecimal digits of a number that is certainly below 10**37."""
_LIMB = 10**9
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, in days since 1970."""
_DAY = 86_400
_DAYS_OF_INFINITY = {
    "-2147472692": "infinity",
    "-2147472691": "-infinity",
    "-622191234": "infinity",
    "-625821272": "-infinity",
}
"""Debezium's constants for infinite dates; the last two are for snapshots."""
_SECONDS_OF_INFINITY = {"infinity": "9223372036825.2", "-infinity": "-9223372036832.4"}
_FIRST_SECOND, _END_SECOND = -210_866_803_200, 9_223_372_036_854
"""4714-11-24 BC, PostgreSQL's first day; and the end of Debezium's range of microseconds."""
_SHOWN_AS = {"NAN": "NaN", "POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity"}


def read_events(
    session: SparkSession, paths: list[str], version: TableVersion, old: Sequence[int]
) -> DataFrame:
    """Read events as a row's metadata, and the images `new` and `old` as structs of texts."""
    lines = read_json(session, paths, _schema(version, old))
    value = F.col("value") if _in_record(version) else F.struct("*")
    events = lines.select(_payload(version, value).alias("event"), "_metadata.file_name")
    changes = events.where("event.op IS NOT NULL").select("event.*", "file_name")
    return changes.select(
        F.col("after").alias("new"),
        F.col("before").alias("old"),
        _looked_up(_OPERATIONS, F.col("op")).alias("op"),
        F.col("source.lsn").alias("lsn"),
        F.coalesce(_previous_commit(), _first_commit()).alias("commit_lsn"),
        F.col("source.lsn").alias("seq"),
        F.col("source.txId").alias("xid"),
        F.timestamp_micros(F.coalesce("source.ts_us", F.col("source.ts_ms") * 1000)).alias("commit_ts"),
    )


def _schema(version: TableVersion, old: Sequence[int]) -> str:
    after = _struct(version, range(len(version.columns)))
    event = f"before {_struct(version, old)}, after {after}, {_SOURCE}, op string"
    assert version.events is not None
    if version.events.schemas:
        event = f"payload struct<{event}>"
    return f"value struct<{event}>" if _in_record(version) else event


def _in_record(version: TableVersion) -> bool:
    return version.events is not None and version.events.record == "full"


def _payload(version: TableVersion, value: Expression) -> Expression:
    return value.getField("payload") if version.events is not None and version.events.schemas else value


def _struct(version: TableVersion, indexes: Sequence[int]) -> str:
    assert version.events is not None
    return struct_of_texts(version.events.forms[index]["field"] for index in indexes)


def _previous_commit() -> Expression:
    """Read the first element of `["123","456"]` or `[null,"456"]`."""
    digits = F.regexp_extract(F.col("source.sequence"), r'^\["([0-9]+)"', 1)
    return F.when(digits != "", digits.cast("bigint"))


def _first_commit() -> Expression:
    return F.conv(F.regexp_extract("file_name", _FIRST_COMMIT, 1), 16, 10).cast("bigint")


def value(version: TableVersion, image: str, index: int) -> tuple[Expression, Expression]:
    """Decode a column's text in an image, `new` or `old`; also return whether there was one."""
    text = _text_of(version, image, index)
    return decoded(text, version.columns[index].spark, _form(version, index)), text.isNotNull()


def is_placeholder(version: TableVersion, index: int) -> Expression:
    """Whether the new row has the placeholder for an unchanged TOAST value in a column."""
    placeholder = _form(version, index)["unavailable"]
    if placeholder is None:
        return F.lit(False)
    alike = _text_of(version, "new", index) == F.lit(placeholder)
    return F.coalesce(F.col("op").isin("I", "U") & alike, F.lit(False))


def _text_of(version: TableVersion, image: str, index: int) -> Expression:
    return F.col(image).getField(_form(version, index)["field"])


def _form(version: TableVersion, index: int) -> Form:
    assert version.events is not None
    return version.events.forms[index]


def check_exact(table: str, version: TableVersion) -> None:
    """Raise MergeError for a column whose values can't be restored from its events."""
    if version.events is None:
        return
    for column, form in zip(version.columns, version.events.forms, strict=True):
        if form["form"] is None or (form["form"] == "array") != column.spark.startswith("array"):
            raise _inexact(table, f'column "{column.name}"', form.get("why", "Debezium's arrays are JSON"))


def check_losses(
    session: SparkSession, directory: str, losses: Sequence[ChangeFile], version: TableVersion
) -> None:
    """Raise MergeError if a change to the table is not, or not completely, in its event."""
    if not losses:
        return
    paths = [f"{directory}/{file.path}" for file in losses]
    schema = "schema string, `table` string, `column` string, lsn string, why string"
    ours = (F.col("schema") == version.schema) & (F.col("table") == version.name)
    loss = read_json(session, escaped(paths), schema).where(ours).orderBy("lsn").first()
    if loss is not None:
        what = "a change" if loss["column"] is None else f'a value of column "{loss["column"]}"'
        raise _inexact(version.display, f"{what} at {loss['lsn']}", loss["why"])


def _inexact(table: str, what: str, why: str) -> MergeError:
    found = next((name for name in _REMEDIES if name in why), None)
    remedy = "with --format jsonl or arrow" if found is None else f"with -c {found}={_REMEDIES[found]}"
    return MergeError(
        f'could not merge "{table}": {what} is not stored exactly in its events ({why})',
        f"stream {remedy} into a new directory",
    )


def decoded(text: Expression, spark: str, form: Form) -> Expression:
    """Convert a token's text to a lake table's type; NULL if the type can't hold the value."""
    return _FORMS[form["form"]](text, spark, form)


def _looked_up(values: Mapping[str, str], key: Expression) -> Expression:
    """Look up a text; NULL if there is no such key."""
    pairs = (F.lit(text) for pair in values.items() for text in pair)
    return F.element_at(F.create_map(*pairs), key)


def _plain(text: Expression, spark: str, _: Form) -> Expression:
    return text if spark == "string" else text.cast(spark)


def _number(text: Expression, spark: str, _: Form) -> Expression:
    if spark != "string":
        return from_text(text, spark)
    return F.coalesce(_looked_up(_SHOWN_AS, text), text)


def _double(text: Expression, spark: str, _: Form) -> Expression:
    return text.try_cast(spark)


def _unscaled(text: Expression, spark: str, form: Form) -> Expression:
    return _numeric(F.hex(F.unbase64(text)), F.lit(form["scale"]), spark)


def _variable(text: Expression, spark: str, _: Form) -> Expression:
    parts = parsed_json(text, "scale int, value string")
    return _numeric(F.hex(F.unbase64(parts["value"])), parts["scale"], spark)


def _numeric(digits: Expression, scale: Expression, spark: str) -> Expression:
    """Convert two's complement in hex: inverting a negative number's digits gives its distance from -1."""
    negative = F.substr(digits, F.lit(1), F.lit(1)) >= "8"
    positive = F.when(negative, F.translate(digits, _NIBBLES, _NIBBLES[::-1])).otherwise(digits)
    sign = F.when(negative, "-").otherwise("")
    if spark != "string":
        shown = F.concat(sign, _short(positive, negative).cast("string"), F.lit("E-"), scale.cast("string"))
        return shown.try_cast(spark)
    short = _short(F.substr(positive, F.lit(1), F.lit(_SHORT)), negative).cast("string")
    long = _long(positive, negative)
    return F.concat(sign, _pointed(F.when(F.length(digits) <= _SHORT, short).otherwise(long), scale))


def _short(digits: Expression, one_more: Expression) -> Expression:
    """Convert up to 32 hexadecimal digits of a number below 10**38."""
    padded = F.lpad(digits, 4 * _CHUNK, "0")
    total = one_more.cast("decimal(38,0)")
    for chunk in range(4):
        part = F.conv(F.substr(padded, F.lit(chunk * _CHUNK + 1), F.lit(_CHUNK)), 16, 10)
        total = total + part.cast("decimal(10,0)") * F.lit(Decimal(16 ** (_CHUNK * (3 - chunk))))
    return total


def _long(digits: Expression, one_more: Expression) -> Expression:
    """Convert any number of hexadecimal digits, in limbs of nine decimal digits, the lowest first."""
    width = F.ceil(F.length(digits) / F.lit(4)).cast("int") * 4
    chunks = F.regexp_extract_all(F.lpad(digits, width, "0"), F.lit("(.{4})"), F.lit(1))
    numbers = F.transform(chunks, lambda chunk: F.conv(chunk, 16, 10).cast("bigint"))
    zero = F.array(F.lit(0).cast("bigint"))
    limbs = F.aggregate(numbers, zero, lambda limbs, number: _times_plus(limbs, F.lit(1 << 16), number))
    limbs = _times_plus(limbs, F.lit(1), one_more.cast("bigint"))
    shown = F.transform(F.reverse(limbs), lambda limb: F.lpad(limb.cast("string"), 9, "0"))
    return F.regexp_replace(F.array_join(shown, ""), "^0+(?=.)", "")


def _times_plus(limbs: Expression, factor: Expression, number: Expression) -> Expression:
    """Multiply, then add, with a carry from limb to limb."""
    start = F.struct(F.array().cast("array<bigint>").alias("done"), number.cast("bigint").alias("carry"))

    def step(state: Expression, limb: Expression) -> Expression:
        value = limb * factor + state["carry"]
        low = F.array_append(state["done"], F.pmod(value, F.lit(_LIMB).cast("bigint")))
        return F.struct(low.alias("done"), F.floor(value / F.lit(_LIMB)).cast("bigint").alias("carry"))

    return F.aggregate(
        limbs,
        start,
        step,
        lambda state: F.when(state["carry"] == 0, state["done"]).otherwise(
            F.array_append(state["done"], state["carry"])
        ),
    )


def _pointed(digits: Expression, scale: Expression) -> Expression:
    """Insert the point before the last `scale` digits."""
    shown = F.lpad(digits, F.greatest(F.length(digits), scale + 1), "0")
    whole = F.substr(shown, F.lit(1), F.length(shown) - scale)
    fraction = F.substr(shown, F.length(shown) - scale + 1)
    return F.when(scale == 0, shown).otherwise(F.concat(whole, F.lit("."), fraction))


def _octets(text: Expression, encoding: str) -> Expression:
    if encoding == "hex":
        return F.unhex(text)
    return F.unbase64(F.translate(text, "-_", "+/") if encoding == "base64-url-safe" else text)


def _bytes(text: Expression, _: str, form: Form) -> Expression:
    return _octets(text, form["encoding"])


def _text(text: Expression, _: str, form: Form) -> Expression:
    return F.decode(_octets(text, form["encoding"]), "UTF-8")


def _bit(text: Expression, _spark: str, _: Form) -> Expression:
    return F.when(text == "true", "1").when(text == "false", "0")


def _bits(text: Expression, _: str, form: Form) -> Expression:
    octets = F.reverse(F.regexp_extract_all(F.hex(F.unbase64(text)), F.lit("(..)"), F.lit(1)))
    shown = F.array_join(F.transform(octets, lambda octet: F.lpad(F.conv(octet, 16, 2), 8, "0")), "")
    return F.right(F.concat(F.lit("0" * form["length"]), shown), F.lit(form["length"]))


def _days(text: Expression, spark: str, _: Form) -> Expression:
    days = text.cast("int")
    if spark == "string":
        shown = _with_era(F.date_from_unix_date(days).cast("string"))
        return F.coalesce(_looked_up(_DAYS_OF_INFINITY, text), shown)
    return F.when(days.between(_FIRST_DAY, _LAST_DAY), F.date_from_unix_date(days))


def _timestamp(text: Expression, spark: str, form: Form) -> Expression:
    count, per_second, shown = text.cast("bigint"), form["per_second"], spark == "string"
    first, end = (_FIRST_SECOND, _END_SECOND) if shown else (_FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY)
    usual = F.when((count >= first * per_second) & (count < end * per_second), count)
    # The session's time zone is UTC.
    converted = F.timestamp_micros(usual * (1_000_000 // per_second)).cast(spark)
    if not shown:
        return converted
    infinite = {str(int(Decimal(count) * per_second)): name for name, count in _SECONDS_OF_INFINITY.items()}
    return F.coalesce(_looked_up(infinite, text), _with_era(converted))


def _with_era(text: Expression, zone: str = "") -> Expression:
    """Print a year before 1 or after 9999 as PostgreSQL does; Spark and ISO 8601 write a sign."""

    def part(number: int) -> Expression:
        return F.regexp_extract(text, r"^([+-]?)(\d+)(-.*)$", number)

    before = (part(1) == "-") | (part(2) == "0000")
    year = (part(2).try_cast("int") + F.when(before, 1).otherwise(0)).cast("string")
    padded = F.lpad(year, F.greatest(F.length(year), F.lit(4)), "0")
    usual = text.rlike("^[0-9]{4}-") & ~text.startswith("0000")
    far = F.concat(padded, part(3), F.when(before, f"{zone} BC").otherwise(zone))
    return F.when(usual, F.concat(text, F.lit(zone))).otherwise(far)


def _time(text: Expression, _: str, form: Form) -> Expression:
    count, per_second = text.cast("bigint"), F.lit(form["per_second"])
    seconds = F.floor(count / per_second).cast("bigint")
    parts = [F.floor(seconds / 3600), F.floor(seconds / 60) % 60, seconds % 60]
    clock = F.concat_ws(":", *(F.lpad(part.cast("bigint").cast("string"), 2, "0") for part in parts))
    return F.concat(
        clock, _fraction(F.lpad((count % per_second).cast("string"), len(str(form["per_second"])) - 1, "0"))
    )


def _fraction(digits: Expression) -> Expression:
    trimmed = F.regexp_replace(digits, "0+$", "")
    return F.when(trimmed == "", "").otherwise(F.concat(F.lit("."), trimmed))


def _zoned(text: Expression, spark: str, _: Form) -> Expression:
    if spark == "string":
        clock = F.regexp_replace(F.translate(text, "TZ", " "), r"\.0*$|(\.[0-9]*[1-9])0+$", "$1")
        return F.when(text.endswith("infinity"), text).otherwise(_with_era(clock, "+00"))
    return in_range(from_text(text, spark), spark)


_MICROS_WIDTH = len(".999999")
_INTERVAL = r"^P(-?\d+)Y(-?\d+)M(-?\d+)DT(-?\d+)H(-?\d+)M(-?)(\d+)(\.\d+)?S$"


def _interval(text: Expression, _spark: str, _: Form) -> Expression:
    """Print an interval as `EncodeInterval` in datetime.c does with IntervalStyle postgres."""

    def group(number: int) -> Expression:
        return F.regexp_extract(text, _INTERVAL, number)

    shown, before = F.lit(""), F.lit(False)
    for number, unit in ((1, "year"), (2, "mon"), (3, "day")):
        count = group(number).cast("bigint")
        name = F.when(count == 1, f" {unit}").otherwise(f" {unit}s")
        blank, plus = F.when(shown != "", " ").otherwise(""), F.when(before & (count > 0), "+").otherwise("")
        shown = F.when(count == 0, shown).otherwise(F.concat(shown, blank, plus, group(number), name))
        before = F.when(count == 0, before).otherwise(count < 0)
    # Floating-point arithmetic may have left nine digits; an interval has six.
    fraction = F.rpad(F.round(F.concat(F.lit("0"), group(8)).cast("decimal(10,9)"), 6).cast("string"), 8, "0")
    fraction = F.regexp_replace(F.substring(fraction, 2, 7), "0+$", "")
    fraction = F.when(F.length(group(8)) > _MICROS_WIDTH, fraction).otherwise(group(8))
    clock = [
        F.lpad(
            F.ltrim(group(number), F.lit("-")),
            F.greatest(F.lit(2), F.length(F.ltrim(group(number), F.lit("-")))),
            "0",
        )
        for number in (4, 5, 7)
    ]
    minus = group(4).startswith("-") | group(5).startswith("-") | (group(6) == "-")
    sign = F.when(minus, "-").when(before, "+").otherwise("")
    time = F.concat(sign, F.concat_ws(":", *clock), fraction)
    nothing = F.concat(*(group(number) for number in (4, 5, 7, 8))).rlike("^-?0*-?0*$")
    blank = F.when(shown != "", " ").otherwise("")
    whole = F.when(nothing & (shown != ""), shown).otherwise(F.concat(shown, blank, time))
    return F.when(text.isNotNull(), whole)


def _hstore(text: Expression, _spark: str, _: Form) -> Expression:
    """Print pairs as `hstore_out` does: shorter keys first."""

    def order(one: Expression, other: Expression) -> Expression:
        longer = F.octet_length(one["key"]) - F.octet_length(other["key"])
        return F.when(longer != 0, longer).when(one["key"] < other["key"], -1).otherwise(1)

    def shown(pair: Expression) -> Expression:
        return F.concat(_quoted(pair["key"]), F.lit("=>"), F.coalesce(_quoted(pair["value"]), F.lit("NULL")))

    pairs = F.map_entries(parsed_json(text, "map<string, string>"))
    return F.array_join(F.transform(F.array_sort(pairs, order), shown), ", ")


def _quoted(text: Expression) -> Expression:
    escaped = F.replace(F.replace(text, F.lit("\\"), F.lit("\\\\")), F.lit('"'), F.lit('\\"'))
    return F.concat(F.lit('"'), escaped, F.lit('"'))


def _array(text: Expression, spark: str, form: Form) -> Expression:
    items = parsed_json(text, "array<string>")
    values = F.transform(items, lambda item: decoded(item, spark[6:-1], form["items"]))
    unfit = F.exists(
        F.arrays_zip(items.alias("item"), values.alias("value")),
        lambda pair: pair["item"].isNotNull() & pair["value"].isNull(),
    )
    return F.when(~unfit, values)


_FORMS: dict[str, Callable[[Expression, str, Form], Expression]] = {
    "plain": _plain,
    "number": _number,
    "double": _double,
    "unscaled": _unscaled,
    "variable": _variable,
    "bytes": _bytes,
    "text": _text,
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
