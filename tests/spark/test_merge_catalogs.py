"""Tables that a catalog names: Iceberg's REST and JDBC catalogs, and Hive's metastore with Delta."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from merge_directories import FORMATS, Directory, merge_into
from merge_histories import History, random_history
from merge_oracle import fold
from proxy import Proxy
from pyspark.sql import DataFrame, SparkSession
from rest_catalog import rest_catalog
from servers import Database

from pgcdc_cli.changes.table import ReplicaIdentity

pytestmark = pytest.mark.timeout(1200)

CATALOG = "org.apache.iceberg.spark.SparkCatalog"


@pytest.fixture
def jdbc(database18: Database, proxy18: Proxy) -> dict[str, str]:
    """A database for a JDBC catalog."""
    uri = f"jdbc:postgresql://127.0.0.1:{proxy18.port}/{database18.name}"
    return {"uri": uri, "jdbc.user": "postgres", "jdbc.password": "none"}


@pytest.fixture
def rest(tmp_path: Path, jdbc: dict[str, str]) -> Iterator[str]:
    with rest_catalog(tmp_path, jdbc, f"file:{tmp_path}/tables", {}) as url:
        yield url


@pytest.fixture
def history() -> History:
    return random_history("Käse 日本", ("a", "b"), ReplicaIdentity.DEFAULT, spaces=4)


def texts(frame: DataFrame) -> Counter[tuple[str | None, ...]]:
    names = sorted(frame.columns)
    return Counter(map(tuple, frame.selectExpr(*(f"CAST(`{name}` AS STRING)" for name in names)).collect()))


def expected(history: History) -> Counter[tuple[str | None, ...]]:
    rows = fold(history.changes, history.key).values()
    return Counter(tuple(value for _, value in sorted(row.items())) for row in rows)


@pytest.mark.long
def test_iceberg_tables_in_a_rest_catalog(
    spark: SparkSession, tmp_path: Path, rest: str, history: History
) -> None:
    """Merged in two runs, the second of which follows what the first left in the catalog."""
    name = "spark.sql.catalog.served"
    for setting, value in {name: CATALOG, f"{name}.type": "rest", f"{name}.uri": rest}.items():
        # Sessions that are made later have what the context has.
        spark.sparkContext._jsc.sc().conf().set(setting, value)
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    for number, part in enumerate(history.parts(2), 1):
        directory.segment([(history.table, part)])
        summary = merge_into(
            spark, directory, tmp_path / "wh", format="iceberg", catalog="served", mode="both"
        )
        assert (summary["segment"], summary["error"]) == (number, None)
    session = spark.newSession()
    assert texts(session.table("served.public.`Käse 日本`")) == expected(history)
    assert session.table("served.public.`Käse 日本_changelog`").count() == len(history.changes)
