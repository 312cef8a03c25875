"""Merges on a standalone Spark cluster with two workers, started by the command as by a user."""

import json
import os
import shutil
import subprocess
import tarfile
import time
import venv
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from merge_directories import FORMATS, Directory, merged_rows
from merge_histories import History, random_history
from merge_oracle import fold
from processes import PGCDC
from pyspark.sql import SparkSession
from spark_cluster import INTERPRETED, QUICK, Cluster

from pgcdc_cli.changes.table import ReplicaIdentity

pytestmark = pytest.mark.timeout(1200)

SMALL = {
    **INTERPRETED,
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    # Both executors are there before the first task.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    cluster = Cluster(folder)
    try:
        cluster.add_worker()
        cluster.add_worker()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def history() -> History:
    """The table's name is also that of a folder that the executors read."""
    return random_history("Käse 日本", ("a", "b"), ReplicaIdentity.DEFAULT, spaces=8)


@pytest.fixture(scope="module")
def unanswered(tmp_path_factory: pytest.TempPathFactory, history: History) -> Iterator[subprocess.Popen[str]]:
    """A merge whose master doesn't exist: Spark tries for a minute, while other tests run."""
    folder = tmp_path_factory.mktemp("unanswered")
    write(folder / "in", history, "jsonl")
    line = command("spark://127.0.0.1:1", folder, "--")
    ran = subprocess.Popen(**line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    yield ran
    ran.kill()
    ran.communicate()


def write(path: Path, history: History, *encodings: str) -> Directory:
    """Write one segment in each format."""
    directory = Directory(path, FORMATS[encodings[0]])
    commits = sorted({change.commit_lsn for change in history.changes})
    parts = [len(commits) * n // len(encodings) for n in range(len(encodings) + 1)]
    for (first, last), encoding in zip(pairwise(parts), encodings, strict=True):
        directory.encoding = FORMATS[encoding]
        some = set(commits[first:last])
        directory.segment([(history.table, [c for c in history.changes if c.commit_lsn in some])])
    return directory


def command(master: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Make the command line, with a properties file for spark-submit."""
    properties = folder / "spark.properties"
    properties.write_text("".join(f"{name} {value}\n" for name, value in SMALL.items()))
    line = [*PGCDC, "spark-submit", "--master", master]
    line += ["--input", "in", "--warehouse", "wh", *arguments]
    line += ["--properties-file", str(properties), "--driver-memory", "1g"]
    # Nothing of this machine's own: neither a Python for all, nor a locale.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "LC_ALL": "C", "COLUMNS": "1000"}
    return {"args": line, "cwd": folder, "env": environment}


def run(master: str, folder: Path, *arguments: str) -> tuple[int, str, str]:
    ran = subprocess.run(
        **command(master, folder, *arguments), capture_output=True, text=True, encoding="utf-8", check=False
    )
    return ran.returncode, ran.stdout, ran.stderr


def check_table(spark: SparkSession, folder: Path, history: History, lake: str = "delta") -> None:
    assert merged_rows(spark, folder / "wh", history.table, lake) == fold(history.changes, history.key)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    (log,) = (folder / "events").iterdir()
    return [event for event in map(json.loads, log.read_text().splitlines()) if event["Event"] == kind]


@pytest.mark.usefixtures("unanswered")
def test_only_arrow_files_need_a_python_on_the_executors(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, history: History
) -> None:
    """Also, the arguments after `--` reach Spark."""
    directory = write(tmp_path / "in", history, "jsonl.zst", "debezium")
    other = random_history("other", ("a", "b"), ReplicaIdentity.DEFAULT, spaces=1)
    directory.encoding = FORMATS["arrow"]
    directory.segment([(other.table, other.changes)])
    (tmp_path / "events").mkdir()
    theirs = {"enabled": "true", "dir": f"file:{tmp_path}/events", "rolling.enabled": "false"}
    given = [f"--conf=spark.eventLog.{name}={value}" for name, value in theirs.items()]
    given += ["--conf", "spark.eventLog.compress=false", "--conf", "spark.pyspark.python=/nowhere/python"]
    status, shown, said = run(cluster.url, tmp_path, "--", *given, "--name", "nightly merge")
    assert status == 14
    assert said.startswith(
        'pgcdc: error: could not merge "public.other": Cannot run program "/nowhere/python"'
    )
    assert "-- --conf spark.pyspark.python=PATH" in said
    assert shown.startswith("merged 1 table up to segment 3")
    check_table(spark, tmp_path, history)

    assert len(events(tmp_path, "SparkListenerExecutorAdded")) == 2
    (environment, *_) = events(tmp_path, "SparkListenerEnvironmentUpdate")
    properties = dict(environment["Spark Properties"])
    assert (properties["spark.app.name"], properties["spark.driver.memory"]) == ("nightly merge", "1g")
    assert properties["spark.scheduler.minRegisteredResourcesRatio"] == "1.0"


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """A Python environment with pyarrow, packed as by `tar -czf env.tar.gz -C env .`, beside `env` itself."""
    venv.create(tmp_path / "env", symlinks=True)
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "pyarrow.pth").write_text(f"{Path(pa.__file__).parent.parent}\n")
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as packed:
        packed.add(tmp_path / "env", ".")
    return "env.tar.gz#env"


def jar_of(spark: SparkSession, name: str) -> str:
    """Find a jar of the session's packages."""
    jars = spark.sparkContext.getConf().get("spark.jars", "")
    assert jars is not None
    return next(jar for jar in jars.split(",") if name in jar)


@pytest.mark.parametrize("lake", ["iceberg", pytest.param("delta", marks=pytest.mark.long)])
def test_arrow_files_are_read_by_a_python_that_comes_along(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, history: History, archive: str, lake: str
) -> None:
    """The lake's jars are given by option, as is needed without internet access."""
    write(tmp_path / "in", history, "arrow+zstd", "arrow")
    jars = {"iceberg": ["iceberg-spark-runtime"], "delta": ["delta-spark_", "delta-storage"]}
    given = ["--archives", archive, "--conf", "spark.pyspark.python=env/bin/python"]
    given += ["--jars", ",".join(jar_of(spark, name) for name in jars[lake])]
    status, shown, said = run(cluster.url, tmp_path, "--format", lake, "--", *given)
    assert (status, said) == (0, "")
    assert shown.startswith("merged 1 table up to segment 2")
    check_table(spark, tmp_path, history, lake)


@pytest.mark.parametrize("lake", ["iceberg", pytest.param("delta", marks=pytest.mark.long)])
def test_a_worker_that_is_killed(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, history: History, lake: str
) -> None:
    """Its tasks go to the other worker: this run merges all, or the next one if a step can't be repeated."""
    write(tmp_path / "in", history, "jsonl")
    line = command(cluster.url, tmp_path, "--format", lake, "--")
    with (tmp_path / "said").open("wb") as said:
        ran = subprocess.Popen(**line, stdout=said, stderr=said)
    while ran.poll() is None and not list((tmp_path / "wh").glob("public/**/*.parquet")):
        time.sleep(0.01)
    assert ran.poll() is None
    cluster.kill_worker()
    cluster.add_worker()
    assert ran.wait(600) in {0, 14}
    if ran.returncode:
        assert run(cluster.url, tmp_path, "--format", lake, "--")[0] == 0
    check_table(spark, tmp_path, history, lake)


@pytest.mark.long
def test_a_cluster_without_room_says_so(cluster: Cluster, tmp_path: Path, history: History) -> None:
    write(tmp_path / "in", history, "jsonl")
    large = ["--conf", "spark.executor.memory=8g", "--conf", "spark.scheduler.minRegisteredResourcesRatio=0"]
    ran = subprocess.Popen(
        **command(cluster.url, tmp_path, "--", *large), stderr=subprocess.PIPE, encoding="utf-8"
    )
    assert ran.stderr is not None
    with ran.stderr as said:
        assert said.readline().startswith("pgcdc: Spark is waiting for executors: ")
    ran.terminate()
    assert ran.wait(60) == 130


def test_a_master_that_is_not_there(unanswered: subprocess.Popen[str]) -> None:
    shown, said = unanswered.communicate(timeout=600)
    assert (unanswered.returncode, shown) == (14, "")
    remark, error, _hint = said.splitlines()
    assert remark == "pgcdc: Spark can't reach the master 127.0.0.1:1, and is trying again"
    assert error == "pgcdc: error: could not merge: the Spark master doesn't answer"
