"""HDFS and YARN on loopback: Hadoop's mini clusters in one Java, with one data node and two node managers."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from java_servers import fetched, java, running, spark_jars

from pgcdc_cli.spark.launch import find_spark_home

_PACKAGES = (
    "org.apache.hadoop:hadoop-client-minicluster:3.4.2",
    "org.bouncycastle:bcpkix-jdk18on:1.78.1",
    "javax.xml.bind:jaxb-api:2.3.1",
)
_SPARKS = ("hadoop-client-*.jar", "log4j-*.jar", "slf4j-api-*.jar", "jul-to-slf4j-*.jar")
_LEFT_TO_SPARK = ("hadoop-client-api", "hadoop-client-runtime", "slf4j-api")
_REFLECTION = "--add-opens=java.base/java.lang=ALL-UNNAMED"

_SERVERS = {
    "dfs.replication": "1",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "yarn.minicluster.yarn.nodemanager.resource.memory-mb": "3072",
    # What this machine has is not what the tests are about.
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
}
_CLIENTS = (
    "fs.defaultFS",
    "dfs.replication",
    "yarn.resourcemanager.address",
    "yarn.resourcemanager.scheduler.address",
    "yarn.resourcemanager.webapp.address",
)
"""The settings that a client of the cluster needs."""

_EXECUTOR = b"YarnCoarseGrainedExecutorBackend"
_PROPERTY = "<property><name>{}</name><value>{}</value></property>"


class HadoopCluster:
    """HDFS at `url`; `configuration` is the folder that HADOOP_CONF_DIR names."""

    def __init__(self, jvm: Any, folder: Path) -> None:
        self._jvm, self._folder = jvm, folder
        settings = jvm.org.apache.hadoop.conf.Configuration()
        for name, value in {**_SERVERS, "hdfs.minidfs.basedir": str(folder / "dfs")}.items():
            settings.set(name, value)
        dfs = jvm.org.apache.hadoop.hdfs.MiniDFSCluster.Builder(settings).numDataNodes(1).build()
        dfs.waitClusterUp()
        yarn = jvm.org.apache.hadoop.yarn.server.MiniYARNCluster("pgcdc", 2, 1, 1)
        yarn.init(jvm.org.apache.hadoop.yarn.conf.YarnConfiguration(settings))
        yarn.start()
        assert yarn.waitForNodeManagersToConnect(60_000)
        self._files, self._yarn, self._dfs = dfs.getFileSystem(), yarn, dfs
        self.url = str(dfs.getURI().toString())
        self.configuration = folder / "conf"
        self.configuration.mkdir()
        found = yarn.getConfig()
        lines = [_PROPERTY.format(name, escape(found.get(name))) for name in _CLIENTS]
        for name in ("core-site.xml", "yarn-site.xml"):
            (self.configuration / name).write_text(f"<configuration>{''.join(lines)}</configuration>")

    @property
    def environment(self) -> dict[str, str]:
        return {"HADOOP_CONF_DIR": str(self.configuration)}

    @property
    def extra(self) -> list[str]:
        """Arguments for spark-submit: two small executors."""
        home = str(Path(shutil.which(java(self._folder)) or "").resolve().parents[1])
        settings = {
            "spark.yarn.jars": f"local:{find_spark_home()}/jars/*",
            "spark.yarn.appMasterEnv.JAVA_HOME": home,
            "spark.executorEnv.JAVA_HOME": home,
            "spark.pyspark.python": sys.executable,
            "spark.executor.memory": "512m",
            "spark.yarn.am.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
        }
        return ["--num-executors=2", *(f"--conf={name}={value}" for name, value in settings.items())]

    def upload(self, folder: Path, target: str) -> None:
        """Replace a directory of HDFS by a local one."""
        path = self._jvm.org.apache.hadoop.fs.Path
        self._files.delete(path(target), True)
        self._files.copyFromLocalFile(path(f"file:{folder}"), path(target))

    def count(self, folder: str) -> int:
        """Count the files below a folder."""
        path = self._jvm.org.apache.hadoop.fs.Path(folder)
        return int(self._files.getContentSummary(path).getFileCount()) if self._files.exists(path) else 0

    def kill_executor(self) -> bool:
        """Kill an executor; return whether there was one."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                line = (process / "cmdline").read_bytes()
                if _EXECUTOR in line and str(self._folder).encode() in line and b"bash" not in line[:20]:
                    os.kill(int(process.name), signal.SIGKILL)
                    return True
        return False

    def stop(self) -> None:
        self._yarn.stop()
        self._dfs.shutdown()


@contextmanager
def hadoop_cluster(folder: Path) -> Iterator[HadoopCluster]:
    """Start the servers; at the end stop them and all that they run."""
    own = [jar for jar in fetched(*_PACKAGES) if not any(name in jar for name in _LEFT_TO_SPARK)]
    options = ["-Xmx768m", _REFLECTION, f"-Dtest.build.data={folder}/data"]
    with running([*own, *spark_jars(*_SPARKS)], folder, *options) as jvm:
        cluster = HadoopCluster(jvm, folder)
        try:
            yield cluster
        finally:
            cluster.stop()
