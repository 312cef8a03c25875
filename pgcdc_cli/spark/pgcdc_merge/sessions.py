"""Sessions of Spark's, one for each table that is merged."""

from pyspark.sql import SparkSession

from .lake import Lake

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.json.enableExactStringParsing": "true",
    "spark.sql.variant.allowDuplicateKeys": "true",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # By default ten thousand tasks list files, which takes minutes where there are few cores.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
}
"""What every session has."""

AT_ONCE = 4
"""Tables merged at the same time."""


def new_session(spark: SparkSession, lake: Lake) -> SparkSession:
    """A session whose settings and views are its own, so that tables can be merged at the same time."""
    session = spark.newSession()
    for name, value in {**SETTINGS, **lake.settings}.items():
        session.conf.set(name, value)
    return session
