"""Values that neither the changes nor the table have, where they are to be NULL (`--missing-toast null`)."""

from functools import reduce

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from .extras import Extras
from .fold import lacking, lacks_any
from .segments import TableVersion


def count_missing(folded: DataFrame, version: TableVersion, known: DataFrame | None, extras: Extras) -> int:
    """Count them; `known` has the table's columns as n0, n1, ..., None if nothing of it counts."""
    if not lacking(version):
        return 0
    rows = folded.where(lacks_any(version))
    if extras.soft_delete:
        rows = rows.where("NOT deleted")
    nothing: dict[int, Expression] = dict.fromkeys(lacking(version), F.lit(True))
    if known is not None:
        rows = _with_known(rows, version, known)
        for place in nothing:
            kept = version.columns[place].bounded or extras.soft_delete
            unknown = F.lit(False) if kept else F.col(f"t{place}").isNull()
            nothing[place] = F.col("found").isNull() | unknown
    cells = (F.when(F.col(f"l{place}") & none, 1).otherwise(0) for place, none in nothing.items())
    found = rows.agg(F.sum(reduce(Expression.__add__, cells)).alias("missing")).first()
    return 0 if found is None else found["missing"] or 0


def _with_known(rows: DataFrame, version: TableVersion, known: DataFrame) -> DataFrame:
    """Add the table's values, as t0, t1, ..., to rows that were there when the range began."""
    key = version.key or ()
    columns = [F.col(f"n{place}").alias(f"t{place}") for place in sorted({*key, *lacking(version)})]
    same = [F.col(f"k{number}") == F.col(f"t{place}") for number, place in enumerate(key)]
    were_there = F.col("origin").isNull()
    kept = known.select(*columns, F.lit(True).alias("found"))
    return rows.join(kept, reduce(Expression.__and__, same) & were_there, "left")


def as_null(folded: DataFrame, version: TableVersion) -> DataFrame:
    """Take nothing from the table for rows that were not there when the range began."""
    there = F.col("origin").isNull()
    return folded.withColumns({f"l{place}": F.col(f"l{place}") & there for place in lacking(version)})
