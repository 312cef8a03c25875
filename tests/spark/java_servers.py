"""Servers that are Java libraries: tests drive each in a Java process of its own, with jars fetched by Ivy.

Spark has Ivy and py4j among its jars, so that neither a JDK nor Maven is needed.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from spark_cluster import QUICK

from pgcdc_cli.spark.launch import find_spark_home, java_settings

_MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
<info organisation="pgcdc" module="tests"/><dependencies defaultconf="default->compile,runtime,master">
{}</dependencies></ivy-module>
"""
_DEPENDENCY = """<dependency org="{}" name="{}" rev="{}">{}</dependency>
"""
_CLASSIFIED = '<artifact name="{}"/><artifact name="{}" type="jar" m:classifier="{}"/>'
_CACHE = Path.home() / ".ivy2.5.2" / "cache"
"""Where spark-submit keeps what it fetches, too."""

_LEFT_OUT = '<exclude org="{}" module="{}"/>'


def java(folder: Path) -> str:
    """Find the Java that the command would run; a wrapper that it may need is written below `folder`."""
    home = {**os.environ, **java_settings(folder / "java")}.get("JAVA_HOME")
    return "java" if home is None else f"{home}/bin/java"


def spark_jars(*patterns: str) -> list[str]:
    """List the jars of Spark whose names match a pattern."""
    return [str(jar) for pattern in patterns for jar in find_spark_home().glob(f"jars/{pattern}")]


def fetched(*packages: str, without: Sequence[str] = ()) -> list[str]:
    """Fetch `GROUP:ARTIFACT:VERSION[:CLASSIFIER]` and all it depends on; skip the test where that fails.

    A classifier's jar is fetched besides the main one. `without` lists `GROUP:ARTIFACT`s to leave out.
    """
    dependencies = "".join(map(_dependency, packages))
    dependencies += "".join(_LEFT_OUT.format(*one.split(":")) for one in without)
    with tempfile.TemporaryDirectory() as folder:
        module, paths = Path(folder, "ivy.xml"), Path(folder, "paths")
        module.write_text(_MODULE.format(dependencies))
        ivy = os.pathsep.join(spark_jars("ivy-*.jar"))
        program = [java(Path(folder)), "-cp", ivy, "org.apache.ivy.Main", "-cache", str(_CACHE)]
        wanted = ["-ivy", str(module), "-types", "jar", "bundle", "-cachepath", str(paths)]
        ran = subprocess.run([*program, *wanted], capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            pytest.skip(f"could not fetch {', '.join(packages)}: {_cause(ran.stdout + ran.stderr)}")
        return paths.read_text().strip().split(os.pathsep)


def _dependency(package: str) -> str:
    group, artifact, version, *classifier = package.split(":")
    more = _CLASSIFIED.format(artifact, artifact, classifier[0]) if classifier else ""
    return _DEPENDENCY.format(group, artifact, version, more)


def _cause(said: str) -> str:
    """Find the line that says what is missing."""
    lines = [line.strip() for line in said.splitlines()]
    return next((line for line in lines if "UNRESOLVED" in line or "not found" in line), lines[-1])


@contextmanager
def running(jars: Sequence[str], folder: Path, *options: str) -> Iterator[Any]:
    """Run a Java with these jars; yield py4j's view of its classes, and shut it down at the end."""
    with (folder / "java.log").open("w") as log:
        port = launch_gateway(
            classpath=os.pathsep.join(jars),
            javaopts=[*QUICK.split(), *options],
            java_path=java(folder),
            die_on_exit=True,
            redirect_stdout=log,
            redirect_stderr=log,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
        try:
            yield gateway.jvm
        finally:
            gateway.shutdown()
