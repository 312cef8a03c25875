"""Tables that a catalog names: Iceberg's REST and JDBC catalogs, and Hive's metastore with Delta."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from java_servers import fetched
from merge_commands import MergeCommand, selected
from merge_directories import FORMATS, Directory, merge_into
from merge_histories import History, random_history
from merge_oracle import fold
from proxy import Proxy
from pyspark.sql import DataFrame, SparkSession
from rest_catalog import CATALOG, POSTGRES_DRIVER, jdbc_settings, rest_catalog
from servers import Database

from pgcdc_cli.changes.table import ReplicaIdentity
from pgcdc_cli.spark.packages import DELTA, ICEBERG, NOT_NEEDED
from pgcdc_cli.spark.pgcdc_merge.delta import DeltaLake

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def jdbc(database18: Database, proxy18: Proxy) -> dict[str, str]:
    """A database for a JDBC catalog."""
    return jdbc_settings(database18, proxy18)


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


def in_order(row: dict[str, Any]) -> tuple[str | None, ...]:
    return tuple(None if value is None else str(value) for _, value in sorted(row.items()))


def expected(history: History) -> Counter[tuple[str | None, ...]]:
    rows = fold(history.changes, history.key).values()
    return Counter(tuple(value for _, value in sorted(row.items())) for row in rows)


@pytest.mark.long
def test_iceberg_tables_in_a_rest_catalog(
    spark: SparkSession, tmp_path: Path, rest: str, history: History
) -> None:
    """In two runs: the second starts from what the first left in the catalog."""
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


@pytest.mark.long
def test_iceberg_tables_in_a_jdbc_catalog(tmp_path: Path, jdbc: dict[str, str], history: History) -> None:
    """With the driver's package given to spark-submit; another Spark finds the table by its name."""
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    directory.segment([(history.table, history.changes)])
    fetched(POSTGRES_DRIVER)
    settings = {"": CATALOG, ".type": "jdbc", ".warehouse": f"file:{tmp_path}/tables"}
    settings |= {f".{name}": value for name, value in jdbc.items()}
    extra = [f"--conf=spark.sql.catalog.shop{name}={value}" for name, value in settings.items()]
    extra += ["--packages", POSTGRES_DRIVER]
    options = ("--format", "iceberg", "--catalog", "shop", "--mode", "both")
    assert MergeCommand("in", "wh", tmp_path, options, extra).run()["segment"] == 1
    extra[-1] += f",{ICEBERG}"
    rows = selected("SELECT * FROM shop.public.`Käse 日本`", tmp_path, *extra)
    assert Counter(map(in_order, rows)) == expected(history)


@pytest.mark.long
def test_delta_tables_in_hives_metastore(tmp_path: Path) -> None:
    """With Derby, which comes with Spark; another Spark finds the table by its name."""
    history = random_history("orders", ("a", "b"), ReplicaIdentity.DEFAULT, spaces=4)
    directory = Directory(tmp_path / "in", FORMATS["jsonl"])
    directory.segment([(history.table, history.changes)])
    database = f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true"
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": database,
    }
    extra = [f"--conf={name}={value}" for name, value in settings.items()]
    options = ("--catalog", "spark_catalog", "--mode", "both")
    assert MergeCommand("in", "wh", tmp_path, options, extra).run()["segment"] == 1
    extra += [f"--conf={name}={value}" for name, value in DeltaLake.extensions.items()]
    package = ["--packages", DELTA, "--exclude-packages", ",".join(NOT_NEEDED)]
    rows = selected("SELECT * FROM public.orders", tmp_path, *extra, *package)
    assert Counter(map(in_order, rows)) == expected(history)
