"""One Spark session for all tests."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from merge_directories import FORMATS, Directory
from pyspark.sql import SparkSession
from spark_cluster import INTERPRETED, QUICK

from pgcdc_cli.spark.launch import java_settings
from pgcdc_cli.spark.packages import DELTA, ICEBERG, NOT_NEEDED
from pgcdc_cli.spark.pgcdc_merge.job import LAKES
from pgcdc_cli.spark.pgcdc_merge.lake import SETTINGS, STATIC

_SETTINGS = {
    **LAKES["delta"].extensions,
    **STATIC,
    **SETTINGS,
    "spark.sql.extensions": ",".join(f.extensions["spark.sql.extensions"] for f in LAKES.values()),
    "spark.jars.packages": f"{DELTA},{ICEBERG}",
    "spark.jars.excludes": ",".join(NOT_NEEDED),
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def _catalog(warehouse: Path) -> dict[str, str]:
    """Settings of the Iceberg catalog `shop`, as one that is not the job's own."""
    name = "spark.sql.catalog.shop"
    implementation = "org.apache.iceberg.spark.SparkCatalog"
    return {name: implementation, f"{name}.type": "hadoop", f"{name}.warehouse": f"file:{warehouse}"}


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    changed = java_settings(tmp_path_factory.mktemp("java"))
    changed |= {"PYSPARK_PYTHON": sys.executable, "LC_ALL": "C.UTF-8", "SPARK_HOME": None}
    changed |= {"JDK_JAVA_OPTIONS": QUICK}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changed.items():
            if value is None:
                patch.delenv(name, raising=False)
            else:
                patch.setenv(name, value)
        builder = SparkSession.builder.master("local[2]")
        settings = _SETTINGS | _catalog(tmp_path_factory.mktemp("catalog"))
        settings |= {} if request.config.getoption("--long") else INTERPRETED
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """An empty directory of JSON lines."""
    return Directory(tmp_path / "in", FORMATS["jsonl"])


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "wh"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Ignore a warning: PySpark leaves the sockets by which it collects rows to the garbage collector."""
    item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(autouse=True)
def plans_of_large_merges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--long`, merge the few rows of a test by the plans made for many."""
    if request.config.getoption("--long"):
        monkeypatch.setattr("pgcdc_cli.spark.pgcdc_merge.job.FEW_ROWS", 0)
        monkeypatch.setattr("pgcdc_cli.spark.pgcdc_merge.delta_rewrite.SMALL", -1)


@pytest.fixture(autouse=True)
def sockets_closed_here() -> Iterator[None]:
    """Collect PySpark's sockets while their warning is ignored, not during another test."""
    yield
    gc.collect()
