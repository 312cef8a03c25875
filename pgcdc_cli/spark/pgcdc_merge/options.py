"""The options of a merge, each named once: the launcher writes them as arguments, merge.py reads them.

Nothing here needs Spark, so that the launcher can import it without pyspark.
"""

import argparse
import re
from collections.abc import Collection, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

MERGE, CHANGELOG = "merge", "changelog"
"""What to keep of a table: its current rows, or every change to them."""

ANY, MODERN = "any", "modern"
"""Features that tables may require of readers: only those that all support, or newer ones, too."""

REPLACE, STOP = "replace", "stop"
"""What to do with a lake table's rows if its name belongs to another source table now."""

FORMAT_VERSION = 1
"""The summary's format version, as in all JSON that pgcdc writes."""

PROGRESS = "pgcdc-progress "
"""Prefix of a line of standard error that has a table's result as JSON."""

SPARK = "4.1"
"""The version of Spark that pgcdc installs."""

PACKAGES = {
    "delta": {
        SPARK: "io.delta:delta-spark_4.1_2.13:4.4.0",
        "4.0": "io.delta:delta-spark_4.0_2.13:4.4.0",
    },
    # Before 4.1, Spark doesn't tell Iceberg how many rows a MERGE changes.
    "iceberg": {SPARK: "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"},
}
"""The table formats, with the package of each for every version of Spark that it is used with."""

WIDEST_DECIMAL = 38
_DECIMAL = re.compile("([0-9]{1,2}),([0-9]{1,2})")


def minor_version(version: str | None) -> str:
    """Return Spark's version as `PACKAGES` has it: 4.1 for 4.1.4, "" if it isn't known."""
    return "" if version is None else version.rpartition(".")[0]


def package_for(table_format: str, version: str | None) -> str:
    """Return the package of a table format for this version of Spark, or for the one that pgcdc installs."""
    packages = PACKAGES[table_format]
    return packages.get(minor_version(version), packages[SPARK])


def parse_lsn(text: str) -> int:
    """Parse an LSN in PostgreSQL's text, `XXXXXXXX/XXXXXXXX`. Raises ValueError."""
    high, slash, low = text.partition("/")
    if not slash or not (0 < len(high) <= 8 and 0 < len(low) <= 8):
        raise ValueError(f'"{text}" is not an LSN, such as 0/1A2B3C8')
    return int(high, 16) << 32 | int(low, 16)


def parse_decimal(text: str) -> str:
    """Check `P,S`, a precision and a scale. Raises ValueError."""
    match = _DECIMAL.fullmatch(text)
    if match is None or not int(match[2]) <= int(match[1]) <= WIDEST_DECIMAL or int(match[1]) == 0:
        raise ValueError(f'"{text}" is not a precision and scale, such as 38,18')
    return f"{int(match[1])},{int(match[2])}"


def _option(help_text: str, **argument: Any) -> dict[str, Any]:  # noqa: ANN401 - as argparse's own
    """Describe a field as an option, for argparse."""
    return {"help": help_text, **argument}


@dataclass(frozen=True)
class MergeOptions:
    """What to merge, and where to; `warehouse` is a directory or a URI of any file system of Hadoop.

    `until` is an LSN, `tables` are patterns for `schema.table`, `decimal` is a precision and a scale, such as
    38,18. `follow` is in seconds (None: merge once), `retain` in hours (None: keep for ever). Without
    `readers` new tables are for any reader, and existing ones stay as they are.
    """

    input: str = field(metadata=_option("what pgcdc stream -D wrote", metavar="DIR"))
    warehouse: str = field(metadata=_option("where the tables are: DIR/schema/table", metavar="DIR"))
    format: str = field(default="delta", metadata=_option("the tables' format", choices=tuple(PACKAGES)))
    catalog: str | None = field(
        default=None, metadata=_option("name the tables in this catalog", metavar="NAME")
    )
    mode: str = field(default=MERGE, metadata=_option("what to keep", choices=(MERGE, CHANGELOG, "both")))
    tables: Sequence[str] = field(
        default=(), metadata=_option("only matching tables: schema.table", metavar="PATTERN", action="append")
    )
    until: int | None = field(
        default=None,
        metadata=_option("only segments that end there or before", metavar="LSN", type=parse_lsn),
    )
    dry_run: bool = field(default=False, metadata=_option("say what would be done"))
    metadata: bool = field(default=False, metadata=_option("add _pgcdc_lsn and _pgcdc_commit_ts"))
    soft_delete: bool = field(default=False, metadata=_option("keep deleted rows, with _pgcdc_deleted"))
    infinity: str = field(
        default="null", metadata=_option("what infinite dates become, or all", choices=("null", "string"))
    )
    decimal: str | None = field(
        default=None, metadata=_option("type of unlimited numerics", metavar="P,S", type=parse_decimal)
    )
    variant: bool = field(default=False, metadata=_option("json and jsonb become VARIANT"))
    missing_toast: str = field(
        default="error", metadata=_option("if no earlier change has a value", choices=("error", "null"))
    )
    readers: str | None = field(
        default=None, metadata=_option("who is to read the tables", choices=(ANY, MODERN))
    )
    recreated: str = field(
        default=REPLACE,
        metadata=_option("if a name now belongs to another table", choices=(REPLACE, STOP)),
    )
    follow: float | None = field(
        default=None,
        metadata=_option("stay, and look this often for segments", metavar="SECONDS", type=float),
    )
    compact: bool = field(default=False, metadata=_option("write small files together"))
    retain: int | None = field(
        default=None, metadata=_option("remove what only older versions need", metavar="HOURS", type=int)
    )

    @property
    def modes(self) -> tuple[str, ...]:
        return (MERGE, CHANGELOG) if self.mode == "both" else (self.mode,)

    def selects(self, table: str) -> bool:
        """Whether a table, given as `schema.table`, is among those to merge."""
        return not self.tables or any(fnmatchcase(table, pattern) for pattern in self.tables)

    def unmatched(self, tables: Collection[str]) -> list[str]:
        """List the patterns that match none of these tables."""
        return [p for p in self.tables if not any(fnmatchcase(table, p) for table in tables)]

    def arguments(self) -> list[str]:
        """Write the options that differ from their defaults as arguments of merge.py."""
        given = ((_flag(option), getattr(self, option.name), option.default) for option in fields(self))
        return [text for flag, value, default in given if value != default for text in _texts(flag, value)]


def _flag(option: Field[Any]) -> str:
    return "--table" if option.name == "tables" else f"--{option.name.replace('_', '-')}"


def _texts(flag: str, value: object) -> list[str]:
    if value is True:
        return [flag]
    if isinstance(value, list | tuple):
        return [f"{flag}={item}" for item in value]
    if flag == "--until" and isinstance(value, int):
        value = f"{value >> 32:X}/{value & 0xFFFFFFFF:X}"
    return [f"{flag}={value}"]


def parser() -> argparse.ArgumentParser:
    """Make the parser of merge.py's command line; the last three options are not of `MergeOptions`."""
    parser = argparse.ArgumentParser(prog="merge.py", description="Merge pgcdc's segments into lake tables.")
    for option in fields(MergeOptions):
        argument = {"dest": option.name, **option.metadata}
        if option.default is False:
            argument["action"] = "store_true"
        elif option.default is MISSING:
            argument["required"] = True
        else:
            argument["default"] = option.default or None
        parser.add_argument(_flag(option), **argument)
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    parser.add_argument("--launcher", metavar="FILE", help="keep running while this file is locked")
    parser.add_argument("--progress", action="store_true", help="report each table on standard error")
    return parser


def merge_options(parsed: dict[str, Any]) -> MergeOptions:
    """Make options from the parser's result."""
    return MergeOptions(**{**parsed, "tables": tuple(parsed["tables"] or ())})
