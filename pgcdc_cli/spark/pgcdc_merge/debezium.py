"""Debezium's events as rows: which event is which change, where it stands, and what it says.

A changed key is a delete and a create (and a tombstone between) at one place in the WAL: the two halves of
one change. What a create lacks was the row's that was deleted there, if one was.

An event doesn't tell its commit LSN, but the end of the commit before it (`source.sequence`), which is in the
same order; where there was none, the name of its file tells the first one's. Within a transaction
`source.lsn` goes up from change to change; only rows inserted together share one.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .columns import Column
from .errors import MergeError
from .forms import decoded, one_of
from .jsonstrings import read_json
from .segments import DataFile, TableVersion

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
"""What makes events exact, by what the configuration calls it."""


def read_events(
    session: SparkSession, paths: list[str], version: TableVersion, old: Sequence[int]
) -> DataFrame:
    """Read events with the columns of a row's metadata, and the images `new` and `old` as texts."""
    lines = read_json(session, paths, _schema(version, old))
    value = F.col("value") if _in_record(version) else F.struct("*")
    events = lines.select(_payload(version, value).alias("event"), "_metadata.file_name")
    told = events.where("event.op IS NOT NULL").select("event.*", "file_name")
    return told.select(
        F.col("after").alias("new"),
        F.col("before").alias("old"),
        one_of(_OPERATIONS, F.col("op")).alias("op"),
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


def _struct(version: TableVersion, places: Sequence[int]) -> str:
    assert version.events is not None
    names = (version.events.forms[place]["field"].replace("`", "``") for place in places)
    return f"struct<{', '.join(f'`{name}`: string' for name in names)}>"


def _previous_commit() -> Expression:
    """Read the first part of `["123","456"]` or `[null,"456"]`."""
    digits = F.regexp_extract(F.col("source.sequence"), r'^\["([0-9]+)"', 1)
    return F.when(digits != "", digits.cast("bigint"))


def _first_commit() -> Expression:
    return F.conv(F.regexp_extract("file_name", _FIRST_COMMIT, 1), 16, 10).cast("bigint")


def value(version: TableVersion, image: str, place: int) -> Expression:
    """Decode a column's text; NULL where it was not sent."""
    column, form = version.columns[place], _form(version, place)
    text = F.col(image).getField(form["field"])
    return decoded(text, column.spark, form)


def text(version: TableVersion, image: str, place: int) -> Expression:
    return F.col(image).getField(_form(version, place)["field"])


def unsent(version: TableVersion, place: int) -> Expression:
    """Whether a column of the new row holds the placeholder of a value that was not sent."""
    placeholder = _form(version, place)["unavailable"]
    if placeholder is None:
        return F.lit(False)
    alike = text(version, "new", place) == F.lit(placeholder)
    return F.coalesce(F.col("op").isin("I", "U") & alike, F.lit(False))


def _form(version: TableVersion, place: int) -> dict[str, object]:
    assert version.events is not None
    return version.events.forms[place]


def halves_of_moves(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Mark what may be half of a changed key: every delete, and a create that lacks a value."""
    lacks = [F.col(f"l{place}") for place, column in enumerate(columns) if column.may_lack]
    lacking = reduce(Expression.__or__, lacks, F.lit(False))
    half = (F.col("op") == "D") | ((F.col("op") == "I") & lacking)
    return rows.withColumn("moved", F.col("moved") | half)


def check_exact(table: str, version: TableVersion) -> None:
    """Raise a MergeError for a column whose values can't be read back from its events."""
    if version.events is None:
        return
    for column, form in zip(version.columns, version.events.forms, strict=True):
        if form["form"] is None or (form["form"] == "array") != column.spark.startswith("array"):
            raise _inexact(table, f'column "{column.name}"', form.get("why", "Debezium's arrays are JSON"))


def check_losses(
    session: SparkSession, directory: str, losses: Sequence[DataFile], version: TableVersion
) -> None:
    """Raise a MergeError if a change to the table is not, or not all, in its event."""
    if not losses:
        return
    paths = [f"{directory}/{file.path}" for file in losses]
    lines = session.read.schema("schema string, `table` string, `column` string, lsn string, why string")
    ours = (F.col("schema") == version.schema) & (F.col("table") == version.name)
    loss = lines.json(paths).where(ours).orderBy("lsn").first()
    if loss is not None:
        what = "a change" if loss["column"] is None else f'a value of column "{loss["column"]}"'
        raise _inexact(version.display, f"{what} at {loss['lsn']}", loss["why"])


def _inexact(table: str, what: str, why: str) -> MergeError:
    found = next((name for name in _REMEDIES if name in why), None)
    remedy = "with --format jsonl or arrow" if found is None else f"with -c {found}={_REMEDIES[found]}"
    return MergeError(
        f'could not merge "{table}": {what} is not exactly in its events ({why})',
        f"stream {remedy} into a new directory",
    )
