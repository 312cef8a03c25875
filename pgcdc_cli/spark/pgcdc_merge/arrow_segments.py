"""Arrow segments, read by Python on the executors: local files by a data source that maps them into memory.

From other file systems, Spark reads each file's bytes with its own connectors and credentials; a file must
fit into an executor's memory.

The columns: op, lsn, commit_lsn, seq, xid, commit_ts, unchanged (names), old (true if an old row was sent,
else NULL), unfit (values that Arrow could not hold, as PostgreSQL's text), new0, new1, ... (the new row) and
old0, old3, ... (the old row's columns that are needed). A value whose Spark type is string is PostgreSQL's
text.

The classes run in Spark's Python workers, which need pyarrow, but nothing of pgcdc.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from .column_types import LakeColumn
from .hadoop_files import escaped

# Pickle the classes themselves, not the name of this module: workers needn't have it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # it has no annotations

Values: TypeAlias = "pa.Array[Any]"

_LEADING = 8
"""Columns before the row's: _op, _lsn, _commit_lsn, _commit_ts, _xid, _seq, _unchanged and _truncate."""

_MAGIC = b"ARROW1\0\0"
"""Begins a file; a stream follows."""

_MOST_PARTITIONS = 128
"""Limits the number of tasks: each costs some milliseconds, however little it reads."""

_META = (
    "op string, lsn bigint, commit_lsn bigint, seq bigint, xid bigint, commit_ts timestamp,"
    " unchanged array<string>"
)
_META_COLUMNS = ("_op", "_lsn", "_commit_lsn", "_seq", "_xid", "_commit_ts", "_unchanged")
_DAY = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, in days since 1970."""

_TRAILING = "old boolean, unfit map<string, string>"


def read_arrow(
    session: SparkSession, paths: Sequence[str], columns: Sequence[LakeColumn], old: Sequence[int]
) -> DataFrame:
    """Read files of one table version; `old` are the indexes of the old row's columns to read."""
    options = {"paths": list(paths), "types": [column.spark for column in columns], "old": list(old)}
    if all(path.startswith("file:") for path in paths):
        session.dataSource.register(ArrowSegments)
        texts = {name: json.dumps(value) for name, value in options.items()}
        return session.read.format(ArrowSegments.name()).options(**texts).load()
    schema = StructType.fromDDL(_fields(options))
    assert isinstance(schema, StructType)
    files = session.read.format("binaryFile").load(escaped(paths)).select("content")
    return _map_in_arrow(files, ArrowReader(options, schema).read_contents, schema)


def _map_in_arrow(rows: DataFrame, function: Callable[..., Any], schema: StructType) -> DataFrame:
    """Do what `DataFrame.mapInArrow` does; that requires pandas on the driver, which this doesn't need."""
    wrapped: Any = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    columns = wrapped(*(rows[name] for name in rows.columns))
    mapped = rows._jdf.mapInArrow(columns._jc, False, None)  # noqa: SLF001 - as mapInArrow itself
    return DataFrame(mapped, rows.sparkSession)


def _fields(options: dict[str, Any]) -> str:
    fields = [f"{value_column('new', index)} {spark}" for index, spark in enumerate(options["types"])]
    fields += [f"{value_column('old', index)} {options['types'][index]}" for index in options["old"]]
    return ", ".join([_META, _TRAILING, *fields])


def value_column(image: str, index: int) -> str:
    """Name the column for a value of an image, `new` or `old`."""
    return f"{image}{index}"


class ArrowSegments(DataSource):
    """Arrow files of one table version."""

    @classmethod
    def name(cls) -> str:
        return "pgcdc_arrow"

    def schema(self) -> str:
        return _fields(self._options())

    def reader(self, schema: StructType) -> "ArrowReader":
        return ArrowReader(self._options(), schema)

    def _options(self) -> dict[str, Any]:
        return {name: json.loads(value) for name, value in self.options.items()}


class ArrowReader(DataSourceReader):
    """Reads each file as one partition; several files if there are many."""

    def __init__(self, options: dict[str, Any], schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        paths = self._options["paths"]
        size = -(-len(paths) // _MOST_PARTITIONS)
        return [InputPartition(paths[at : at + size]) for at in range(0, len(paths), size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for path in partition.value:
            with pa.memory_map(path.removeprefix("file:")) as file:
                yield from self._read_file(file)

    def read_contents(self, files: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Read files given by their bytes, the only column."""
        for some in files:
            for content in some.column(0):
                yield from self._read_file(pa.BufferReader(content.as_buffer()))

    def _read_file(self, file: pa.NativeFile) -> Iterator[pa.RecordBatch]:
        target = to_arrow_schema(self._schema)
        if file.read(len(_MAGIC)) != _MAGIC:
            file.seek(0)  # a stream, as earlier versions wrote
        with pa.ipc.open_stream(file) as stream:
            for batch in stream:
                yield self._arrange(batch, target)

    def _arrange(self, batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
        old = batch.column("_old")
        sent = pc.if_else(old.is_valid(), True, pa.scalar(None, pa.bool_()))
        meta = [batch.column(name) for name in _META_COLUMNS]
        new = [batch.column(_LEADING + index) for index in range(len(self._options["types"]))]
        before = [pc.struct_field(old, [index]) for index in self._options["old"]]
        arrays = [*meta, sent, batch.column("_unfit"), *new, *before]
        converted = [_convert(array, field.type) for array, field in zip(arrays, target, strict=True)]
        return pa.RecordBatch.from_arrays(converted, schema=target)


def _convert(array: Values, target: pa.DataType) -> Values:
    """Cast a column; values that become text are printed as PostgreSQL prints them."""
    if array.type == target:
        return array
    if isinstance(array, pa.ListArray) and isinstance(target, pa.ListType):
        values = _convert(array.values, target.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=target, mask=array.is_null())
    converted: Values = _text(array) if pa.types.is_string(target) else array.cast(target)
    return converted


def _text(array: Values) -> Values:
    """Print values as PostgreSQL does, with time zone UTC."""
    kind = array.type
    if pa.types.is_list(kind):
        return pa.array([_array_text(item.values) if item.is_valid else None for item in array], pa.string())
    if pa.types.is_boolean(kind):
        letters: Values = pc.if_else(array, "t", "f")
        return letters
    if pa.types.is_binary(kind):
        return pa.array(
            [None if item is None else f"\\x{item.hex()}" for item in array.to_pylist()], pa.string()
        )
    if pa.types.is_temporal(kind):
        return _temporal_text(array)
    if pa.types.is_floating(kind):
        return pc.replace_substring_regex(array.cast(pa.string()), r"e-(\d)$", r"e-0\1")
    return array.cast(pa.string())


def _temporal_text(array: Values) -> Values:
    kind = array.type
    if pa.types.is_date(kind):
        return _with_era(array.cast(pa.string()), array.cast(pa.int32()).cast(pa.int64()), 1, "")
    text = array.cast(pa.timestamp("us") if pa.types.is_timestamp(kind) else kind).cast(pa.string())
    zone = "+00" if pa.types.is_timestamp(kind) and kind.tz else ""
    text = pc.replace_substring_regex(text, r"(\.0+|(\.\d*[1-9])0+)?$", r"\2" + zone)
    return _with_era(text, array.cast(pa.int64()), _DAY, zone) if pa.types.is_timestamp(kind) else text


def _with_era(text: Values, counts: Values, per_day: int, zone: str) -> Values:
    """Print years before 1 or after 9999 as PostgreSQL does; `counts` are days or microseconds since 1970."""
    first, end = (pa.scalar(day * per_day, pa.int64()) for day in (_FIRST_DAY, _LAST_DAY + 1))
    far: Values = pc.or_(pc.less(counts, first), pc.greater_equal(counts, end))
    if not pc.any(far).as_py():
        return text
    triples: Any = zip(text.to_pylist(), counts.to_pylist(), far.to_pylist(), strict=True)
    shown = [_far_text(count, per_day, zone) if odd else usual for usual, count, odd in triples]
    return pa.array(shown, pa.string())


def _far_text(count: int, per_day: int, zone: str) -> str:
    days, micros = divmod(count, per_day)
    year, month, day = _civil(days)
    clock = ""
    if per_day > 1:
        seconds, fraction = divmod(micros, 1_000_000)
        clock = f" {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        clock += f".{fraction:06}".rstrip("0") if fraction else ""
    before = year <= 0
    return f"{1 - year if before else year:04}-{month:02}-{day:02}{clock}{zone}{' BC' if before else ''}"


def _civil(days: int) -> tuple[int, int, int]:
    """Compute year, month and day in the proleptic Gregorian calendar; 1 BC is year 0."""
    # Years begin in March, so that the leap day comes last: 153 days in every five months.
    cycle, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    number = month + 3 if month < 10 else month - 9
    return year + cycle * 400 + (number <= 2), number, day - (153 * month + 2) // 5 + 1


def _array_text(values: Values) -> str:
    """Print a list as `array_out` does: a one-dimensional array in a column declared with more dimensions."""
    return "{" + ",".join(map(_element_text, _text(values).to_pylist())) + "}"


def _element_text(text: str | None) -> str:
    if text is None:
        return "NULL"
    if text == "" or text.upper() == "NULL" or any(c in '{},"\\;' or c.isspace() for c in text):
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text
