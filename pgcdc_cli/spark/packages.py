"""The table format's jars: which package to request from spark-submit, unless it is provided already."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.spark.pgcdc_merge.options import PACKAGES, SPARK, minor_version

DELTA, ICEBERG = PACKAGES["delta"][SPARK], PACKAGES["iceberg"][SPARK]
"""The packages for the Spark that pgcdc installs."""

# Dependencies of Delta's package that Spark has already, or that Delta needs only for other catalogs.
NOT_NEEDED = (
    "io.delta:delta-kernel-api",
    "io.delta:delta-kernel-defaults",
    "io.delta:delta-kernel-unitycatalog",
    "io.unitycatalog:unitycatalog-client",
    "io.unitycatalog:unitycatalog-hadoop",
    "com.google.code.findbugs:jsr305",
    "org.apache.logging.log4j:log4j-api",
    "org.apache.logging.log4j:log4j-core",
    "org.apache.logging.log4j:log4j-slf4j2-impl",
    "org.scala-lang:scala-library",
    "org.slf4j:slf4j-api",
)
_BRING_JARS = ("spark.jars", "spark.driver.extraClassPath")
_PROPERTY = re.compile(r"\s*([^#!\s=:][^\s=:]*)\s*[=:\s]\s*(.*?)\s*$")


def package_arguments(package: str, extra: Sequence[str], settings: Mapping[str, str]) -> list[str]:
    """Request a table format's package, in addition to the user's packages; `settings` are Spark's.

    Return nothing if the user provides the format.
    """
    if _is_brought(package, extra, settings):
        return []
    theirs = list(filter(None, [*values_of("--packages", extra), settings.get("spark.jars.packages")]))
    if theirs:
        return ["--packages", ",".join([package, *theirs])]
    return ["--packages", package, "--exclude-packages", ",".join(NOT_NEEDED)]


def _is_brought(package: str, extra: Sequence[str], settings: Mapping[str, str]) -> bool:
    name = artifact(package)
    brought = [settings.get(setting, "") for setting in (*_BRING_JARS, "spark.jars.packages")]
    return any(name in text for text in (*extra, *brought))


def artifact(package: str) -> str:
    """Return the prefix that the names of a package's jars share, without versions."""
    return re.split(r"-\d|_", package.split(":")[1])[0]


def jars_of(package: str) -> str | None:
    """Name the jars of a table format's package, separated by commas; None for another package."""
    if not any(package in packages.values() for packages in PACKAGES.values()):
        return None
    _, name, version = package.split(":")
    more = f",delta-storage-{version}.jar" if name.startswith("delta-") else ""
    return f"{name}-{version}.jar{more}"


def spark_version(home: Path) -> str | None:
    """Read the version of a Spark, such as 4.1.4, from its jars; None if they don't tell."""
    core = next(home.glob("jars/spark-core_*.jar"), None)
    return None if core is None else core.stem.partition("-core_")[2].partition("-")[2]


def check_version(home: Path, version: str | None, table_format: str) -> None:
    """Raise PgcdcError (USAGE) for a version of Spark for which no package of the format is known."""
    packages = PACKAGES[table_format]
    if version is None or minor_version(version) in packages:
        return
    known = " or ".join(packages)
    raise PgcdcError(
        ErrorKind.USAGE,
        f'could not use the Spark in "{home}": it is version {version}, not {known}',
        hint=f"set SPARK_HOME to a Spark {known}, or give the jars for it:"
        f" -- --packages GROUP:{artifact(packages[SPARK])}...",
    )


def values_of(option: str, arguments: Sequence[str]) -> Iterator[str]:
    """Yield an option's values, given as one argument or as two."""
    for argument, following in pairwise([*arguments, ""]):
        if argument == option:
            yield following
        elif argument.startswith(f"{option}="):
            yield argument.removeprefix(f"{option}=")


def spark_settings(extra: Sequence[str], home: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Read the settings given to spark-submit: `--conf`, `--properties-file`, else `spark-defaults.conf`."""
    defaults = Path(environment.get("SPARK_CONF_DIR", home / "conf")) / "spark-defaults.conf"
    files = [Path(name) for name in values_of("--properties-file", extra)]
    found = dict(_properties([defaults, *files][-1]))
    given = [*values_of("--conf", extra), *values_of("-c", extra)]
    return found | {name: value for name, equals, value in (text.partition("=") for text in given) if equals}


def _properties(file: Path) -> Iterator[tuple[str, str]]:
    """Read the pairs of a Java properties file; if it is missing, spark-submit reports that."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        match = _PROPERTY.match(line)
        if match is not None:
            yield match[1], match[2]
