"""PostgreSQL's types in lake tables: a column's Spark type, and the conversion from PostgreSQL's text.

A value that the Spark type can't hold becomes NULL, and is counted as unfit: NaN in a decimal, infinity,
years beyond 0001 to 9999, arrays of several dimensions.

| PostgreSQL | Spark |
|---|---|
| bool, int2, int4, int8, float4, float8, bytea | boolean, smallint, int, bigint, float, double, binary |
| numeric(p,s), p <= 38, 0 <= s <= p | decimal(p,s) |
| other numeric | string, or with `--decimal P,S` decimal(P,S) |
| date, timestamp, timestamptz | date, timestamp_ntz, timestamp; with `--infinity string` string |
| json, jsonb | string, or with `--variant` variant |
| arrays of built-in types and enums, declared with one dimension | array |
| anything else | string, as PostgreSQL prints it |

Values that ALTER TABLE converts at the source are not in the WAL, so rows without a change keep what they
had. It therefore matters which changes of a column's type leave the text of its values as it is.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .options import WIDEST_DECIMAL

_LONGER = frozenset({"varchar", "varbit", "time", "timetz", "timestamp", "timestamptz"})
"""Types that hold the same values, and more, with a larger modifier."""

_TIMES, _FULL = frozenset({"time", "timetz", "timestamp", "timestamptz"}), "6"
"""Types whose modifier is the number of digits after the seconds' point, and the one that means all."""

_SHOWN_OTHERWISE = frozenset({"bpchar", "inet", "bool"})
"""Types whose cast to text differs from their output: without trailing blanks, with a netmask, or `true`."""

_BY_SETTINGS = re.compile(
    "(date|timestamp|timestamptz|ts|tstz)((multi)?range)?|interval|money"
    "|reg(class|collation|config|dictionary|namespace|oper|operator|proc|procedure|role|type)"
)
"""Types whose text depends on the session: its time zone, styles, locale, or search path.

A session that runs ALTER TABLE rarely has the stream's time zone and search path.
"""

_SOURCE = re.compile(r"(.*?)(?:\((\d+)\))?(?:#(\d+))?", re.DOTALL)
"""What `source_type` returns."""


def source_type(pg_type: dict[str, Any]) -> str:
    """Name the type of a schema file's column, with its modifier: `bpchar(8)`, `varchar[](14)`.

    A type that isn't built in can be renamed, so its OID is added: `mood#16390`.
    """
    modifier = "" if pg_type["typmod"] < 0 else f"({pg_type['typmod']})"
    oid = f"#{pg_type['oid']}" if pg_type["oid"] > _LAST_BUILT_IN else ""
    return f"{pg_type['name']}{modifier}{oid}"


def keeps_values(old: str, new: str) -> bool:
    """Whether the text of every value stays the same when a type is changed to another without USING."""
    (old_name, old_modifier, old_oid), (new_name, new_modifier, new_oid) = map(_parts, (old, new))
    same = old_name == new_name if None in {old_oid, new_oid} else old_oid == new_oid
    if same:
        if new_modifier is None or old_modifier is None:
            return new_modifier is None
        grows = old_name.removesuffix("[]") in _LONGER and int(new_modifier) > int(old_modifier)
        return grows or new_modifier == old_modifier
    arrays = {name.endswith("[]") for name in (old_name, new_name)}
    before, now = (name.removesuffix("[]") for name in (old_name, new_name))
    as_text = now in {"text", "varchar", "citext"} and not _is_shown_otherwise(before)
    return len(arrays) == 1 and new_modifier is None and (as_text or (before, now) == ("jsonb", "json"))


def _is_shown_otherwise(name: str) -> bool:
    """Whether the cast to text of a type may differ from what the stream has."""
    return name in _SHOWN_OTHERWISE or _BY_SETTINGS.fullmatch(name) is not None


def keeps_keys(old: str, new: str) -> bool:
    """Whether the same is true of a key: the server refuses values that a shorter varchar can't hold."""
    name, _, _ = _parts(new)
    return keeps_values(old, name if name == "varchar" else new)


def keeps_numbers(old: str, new: str) -> bool:
    """Whether numerics stay equal: the server rounds to a smaller scale only, and refuses excess digits."""
    (old_name, before, _), (new_name, now, _) = map(_parts, (old, new))
    if (old_name, new_name) != ("numeric", "numeric") or before is None or now is None:
        return False
    return _digits(int(now))[1] >= _digits(int(before))[1]


def _parts(source: str) -> tuple[str, str | None, str | None]:
    """Split a source type into name, modifier, and OID."""
    found = _SOURCE.fullmatch(source)
    assert found is not None
    name, modifier, oid = found.groups()
    return name, None if name in _TIMES and modifier == _FULL else modifier, oid


_SIMPLE = {
    16: "boolean",
    17: "binary",
    20: "bigint",
    21: "smallint",
    23: "int",
    700: "float",
    701: "double",
    1082: "date",
    1114: "timestamp_ntz",
    1184: "timestamp",
}
_NUMERIC = 1700
_TEMPORAL = frozenset({1082, 1114, 1184})
_JSON = frozenset({114, 3802})
_BOX = 603
_LAST_BUILT_IN = 9999
"""Higher OIDs are not assigned by hand, so they differ between servers (`src/include/access/transam.h`)."""

# Types of fixed length are never stored out of line (TOAST), so their values are always sent:
# bool, int8, int2, int4, oid, float4, float8, date, time, timestamp, timestamptz, interval, timetz, uuid.
_FIXED = frozenset({16, 20, 21, 23, 26, 700, 701, 1082, 1083, 1114, 1184, 1186, 1266, 2950})

# Spark types that don't hold all values of the PostgreSQL type.
_BOUNDED = ("decimal", "date", "timestamp", "array")

INFINITY, DECIMAL, VARIANT = "--infinity", "--decimal", "--variant"

BACKSLASH, QUOTE = "\x00b", "\x00q"
"""Replace escapes while a text is split; PostgreSQL's text never has the character zero."""


@dataclass(frozen=True)
class Choices:
    """The types that a run chooses: `infinity` makes dates and timestamps strings.

    `decimal` is the type of numerics that are strings by default; `variant` applies to json and jsonb.
    """

    infinity: bool = False
    decimal: str = "string"
    variant: bool = False


DEFAULTS = Choices()
_OPTIONS = {
    INFINITY: Choices(infinity=True),
    DECIMAL: Choices(decimal="decimal"),
    VARIANT: Choices(variant=True),
}


@dataclass(frozen=True)
class LakeColumn:
    """A table's column; types are written as by `DataType.simpleString`.

    `lake` is its type in the lake table; `spark` is the type of its values until they are written, which is
    string if only the write finds out whether they fit (see values.py). `option` is the option that chooses
    its type. `in_old`: the server sends it with every old row. `may_be_unsent`: an update may come without
    its value (unchanged TOAST). `source` is its type at the source (see `source_type`), None if it no longer
    exists there.
    """

    name: str
    spark: str
    lake: str
    option: str | None
    is_json: bool
    delimiter: str
    in_old: bool
    may_be_unsent: bool
    source: str | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any], choices: Choices, *, full: bool) -> "LakeColumn":
        """Read a schema file's column; `full` is replica identity FULL."""
        pg_type = data["type"]
        element = pg_type["element"]
        until_written = replace(DEFAULTS, infinity=choices.infinity)
        return cls(
            data["name"],
            spark_type(pg_type, data["dimensions"], until_written),
            spark_type(pg_type, data["dimensions"], choices),
            _option(pg_type, data["dimensions"]),
            pg_type["oid"] in _JSON,
            ";" if element is not None and element["oid"] == _BOX else ",",
            full or data["replica_identity"],
            pg_type["oid"] not in _FIXED and pg_type["category"] != "enum",
            source_type(pg_type),
        )

    @property
    def bounded(self) -> bool:
        """Whether some values don't fit; also true of dates as strings, since events don't have all."""
        return self.spark.startswith(_BOUNDED) or self.option == INFINITY

    @property
    def late(self) -> bool:
        """Whether its values get the lake table's type only when they are written."""
        return self.spark != self.lake


def spark_type(pg_type: dict[str, Any], dimensions: int, choices: Choices = DEFAULTS) -> str:
    """Choose the Spark type of a PostgreSQL type, given as in a schema file."""
    element = pg_type["element"]
    if element is not None and dimensions <= 1 and _is_splittable(element):
        # Iceberg can't merge into tables that have arrays of variants.
        return f"array<{spark_type(element, 0, replace(choices, variant=False))}>"
    if pg_type["oid"] == _NUMERIC:
        return _decimal(pg_type["typmod"]) or choices.decimal
    if pg_type["oid"] in _JSON and choices.variant:
        return "variant"
    if pg_type["oid"] in _TEMPORAL and choices.infinity:
        return "string"
    return _SIMPLE.get(pg_type["oid"], "string")


def _option(pg_type: dict[str, Any], dimensions: int) -> str | None:
    """Find the option that changes a type; None if none does."""
    usual = spark_type(pg_type, dimensions)
    differing = (name for name, one in _OPTIONS.items() if spark_type(pg_type, dimensions, one) != usual)
    return next(differing, None)


def _is_splittable(element: dict[str, Any]) -> bool:
    """Whether an array's delimiter is known: enums and built-in types have those of `pg_type.typdelim`."""
    return bool(element["category"] == "enum" or element["oid"] <= _LAST_BUILT_IN)


def _decimal(typmod: int) -> str | None:
    if typmod < 0:
        return None
    precision, scale = _digits(typmod)
    return f"decimal({precision},{scale})" if 0 <= scale <= precision <= WIDEST_DECIMAL else None


def _digits(typmod: int) -> tuple[int, int]:
    """Decode typmod: (precision << 16 | scale of 11 bits, signed) + 4 (`src/backend/utils/adt/numeric.c`)."""
    return (typmod - 4) >> 16, (((typmod - 4) & 0x7FF) ^ 1024) - 1024


def from_text(text: Expression, spark: str, delimiter: str = ",") -> Expression:
    """Convert PostgreSQL's text output; NULL if the type can't hold the value."""
    if spark.startswith("array<"):
        return _array(text, spark[6:-1], delimiter)
    if spark == "string":
        return text
    if spark == "binary":
        return F.unhex(F.substr(text, F.lit(3)))
    if spark.startswith("decimal"):
        return _from_digits(text, spark)
    if spark.startswith(("date", "timestamp")):
        # Only years of four digits: Spark would read "0044-03-15 BC" as a date AD.
        usual = (F.substr(text, F.lit(5), F.lit(1)) == "-") & ~text.endswith("BC")
        # The session's time zone is UTC; without an explicit zone, parsing is faster.
        short = F.when(text.endswith("+00"), F.left(text, F.length(text) - 3)).otherwise(text)
        return F.when(usual, (short if spark == "timestamp" else text).try_cast(spark))
    return text.cast(spark)


def _from_digits(text: Expression, spark: str) -> Expression:
    """Convert a numeric; digits are counted first, since Spark silently rounds excess digits."""
    scale = int(spark[:-1].partition(",")[2])
    point = F.instr(text, ".")
    return F.when((point == 0) | (F.length(text) - point <= scale), text.try_cast(spark))


def same_text(value: Expression, column: LakeColumn) -> Expression:
    """Make equal numerics equal texts, so that they can be compared as keys."""
    return without_zeros(value) if column.late and column.lake.startswith("decimal") else value


def without_zeros(text: Expression) -> Expression:
    """Strip a numeric's trailing zeroes, so that equal ones are equal texts."""
    return F.when(text.contains("."), F.rtrim(F.rtrim(text, F.lit("0")), F.lit("."))).otherwise(text)


def _array(text: Expression, element: str, delimiter: str) -> Expression:
    """Split an array's text (PostgreSQL manual, "Array Input and Output Syntax")."""
    plain = F.replace(F.replace(text, F.lit("\\\\"), F.lit(BACKSLASH)), F.lit('\\"'), F.lit(QUOTE))
    inside = F.substr(plain, F.lit(2), F.length(plain) - 2)
    items = F.regexp_extract_all(inside, F.lit(f'"[^"]*"|[^{delimiter}"]+'), F.lit(0))
    values = F.transform(items, lambda item: from_text(_unquoted(item), element))
    unfit = F.exists(
        F.arrays_zip(items.alias("item"), values.alias("value")),
        lambda pair: (pair["item"] != "NULL") & pair["value"].isNull(),
    )
    one_dimension = text.startswith("{") & ~text.startswith("{{")
    return F.when(one_dimension & ~unfit, values)


def _unquoted(item: Expression) -> Expression:
    inside = F.substr(item, F.lit(2), F.length(item) - 2)
    unescaped = F.replace(F.replace(inside, F.lit(QUOTE), F.lit('"')), F.lit(BACKSLASH), F.lit("\\"))
    return F.when(item.startswith('"'), unescaped).when(item != "NULL", item)


def in_range(value: Expression, spark: str) -> Expression:
    """Make dates and timestamps NULL outside the years 1 to 9999, for which Spark guarantees nothing."""
    if spark.startswith(("date", "timestamp")):
        first, last = F.lit("0001-01-01").cast(spark), F.lit("9999-12-31 23:59:59.999999").cast(spark)
        return F.when(value.between(first, last), value)
    if spark.startswith("array<") and spark[6:-1].startswith(("date", "timestamp")):
        unfit = F.exists(value, lambda item: item.isNotNull() & in_range(item, spark[6:-1]).isNull())
        return F.when(~unfit, value)
    return value
