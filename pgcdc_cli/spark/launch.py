"""Runs the bundled merge job by `spark-submit`, with a Java, the packages and the settings that it needs.

The job prints one JSON object as its last line of standard output, also when it fails. Everything else that
Spark says goes to a log, which is kept when the job fails.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.spark.java import java_settings

SCRIPT = Path(__file__).with_name("merge.py")
SPARK_VERSION = "4.1"
DELTA = "io.delta:delta-spark_4.1_2.13:4.4.0"

# Of what Delta's package asks for, Spark has these already, or Delta needs them for other catalogs only.
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
_UNRESOLVED = re.compile(r"unresolved dependency: ([^:\s]+:?[^:\s]*)")
_TELLING = re.compile(r"Exception|Error|[Cc]annot|[Ff]ailed")
_LOCAL_SETTINGS = {"spark.sql.shuffle.partitions": "8", "spark.ui.enabled": "false"}


@dataclass(frozen=True)
class MergeOptions:
    """What to merge where. `warehouse` is a directory or a URI of any file system that Hadoop knows.

    `skip_keyless` makes a table without a key a warning rather than an error. `verbose` copies Spark's output
    to standard error. `extra` goes to spark-submit as it is (`--packages`, `--jars`, `--conf`, ...).
    """

    input: str
    warehouse: str
    master: str = "local[*]"
    skip_keyless: bool = False
    verbose: bool = False
    extra: Sequence[str] = ()


@dataclass(frozen=True)
class TableMerge:
    """One table after the run. `segment` and `lsn` say how far it is merged, `version` is the Delta table's.

    The counts are those of this run: rows inserted, updated and deleted, and `unfit`: values that the table's
    type can't hold, which became NULL. `problem` says why the table was left where it was.
    """

    table: str
    path: str
    segment: int
    lsn: Lsn
    version: int | None
    inserted: int
    updated: int
    deleted: int
    unfit: int
    problem: str | None
    hint: str | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TableMerge":
        return cls(**{**data, "lsn": Lsn.parse(data["lsn"])})


@dataclass(frozen=True)
class MergeSummary:
    """What a run did.

    `segment` and `lsn` are the last that the directory has; every table without a problem is merged up to it.
    `warnings` are lines to show. `failure` is set if some tables could not be merged: show the rest, then
    raise it. `data` is the job's own JSON object, for --json.
    """

    segment: int
    lsn: Lsn
    tables: Sequence[TableMerge]
    warnings: Sequence[str]
    seconds: float
    failure: PgcdcError | None
    data: Mapping[str, Any] = field(repr=False)


def submit(options: MergeOptions) -> MergeSummary:
    """Run the merge and wait for its end.

    Raises SPARK if it could not be run or merged nothing: no spark-submit, no Java, a package that can't be
    fetched, a damaged segment, another merge under way. Raises USAGE where pyspark isn't installed.
    """
    with tempfile.TemporaryDirectory(prefix="pgcdc-spark-") as scratch:
        home = find_spark_home()
        environment = _environment(options, home, Path(scratch))
        command = _command(options, home)
        log = Path(scratch) / "log"
        status, output = _run(command, environment, log, options.verbose)
        return _summary(status, output, log)


def find_spark_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Find the Spark whose `bin/spark-submit` to run: SPARK_HOME, else the installed pyspark, else PATH.

    Raises USAGE if there is none.
    """
    if "SPARK_HOME" in environment:
        return _checked_home(Path(environment["SPARK_HOME"]))
    package = importlib.util.find_spec("pyspark")
    if package is not None and package.origin is not None:
        return Path(package.origin).parent
    on_path = shutil.which("spark-submit", path=environment.get("PATH", ""))
    if on_path is not None:
        return _checked_home(Path(on_path).resolve().parent.parent)
    raise PgcdcError(
        ErrorKind.USAGE,
        "could not find spark-submit: neither SPARK_HOME, nor pyspark, nor one on PATH",
        hint="pip install 'pgcdc-cli[spark]'",
    )


def _checked_home(home: Path) -> Path:
    if (home / "bin" / "spark-submit").is_file():
        return home
    raise PgcdcError(
        ErrorKind.USAGE,
        f'could not find spark-submit: "{home / "bin"}" has none',
        hint="set SPARK_HOME to a Spark 4.1, or unset it and: pip install 'pgcdc-cli[spark]'",
    )


def _environment(options: MergeOptions, home: Path, scratch: Path) -> dict[str, str]:
    settings: dict[str, str | None] = {"SPARK_HOME": str(home), **java_settings(scratch / "java")}
    if options.master.startswith("local"):
        # Otherwise workers take the first python3 on PATH, and file names outside ASCII need a UTF-8 locale.
        settings |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        settings["LC_ALL"] = "C.UTF-8"
    environment = {**os.environ, **settings}
    return {name: value for name, value in environment.items() if value is not None}


def _command(options: MergeOptions, home: Path) -> list[str]:
    local = options.master.startswith("local")
    return [
        str(home / "bin" / "spark-submit"),
        f"--master={options.master}",
        *(f"--conf={name}={value}" for name, value in _LOCAL_SETTINGS.items() if local),
        *options.extra,
        *_package_arguments(options.extra, home),
        str(SCRIPT),
        f"--input={options.input}",
        f"--warehouse={options.warehouse}",
        "--json",
        *(["--skip-keyless"] if options.skip_keyless else []),
    ]


def _package_arguments(extra: Sequence[str], home: Path) -> list[str]:
    """Ask for Delta's package, unless the user or the Spark installation brings Delta."""
    if any("delta-spark" in argument for argument in extra) or any(home.glob("jars/delta-spark*.jar")):
        return []
    _check_version(home)
    theirs = list(_values_of("--packages", extra))
    if theirs:
        return ["--packages", ",".join([DELTA, *theirs])]
    return ["--packages", DELTA, "--exclude-packages", ",".join(NOT_NEEDED)]


def _values_of(option: str, arguments: Sequence[str]) -> Iterator[str]:
    for argument, following in pairwise([*arguments, ""]):
        if argument == option:
            yield following
        elif argument.startswith(f"{option}="):
            yield argument.removeprefix(f"{option}=")


def _check_version(home: Path) -> None:
    core = next(home.glob("jars/spark-core_*.jar"), None)
    version = "" if core is None else core.stem.partition("-core_")[2].partition("-")[2]
    if core is not None and not version.startswith(f"{SPARK_VERSION}."):
        raise PgcdcError(
            ErrorKind.USAGE,
            f'could not use the Spark in "{home}": it is version {version}, not {SPARK_VERSION}',
            hint="set SPARK_HOME to a Spark 4.1, or give its Delta: -- --packages GROUP:delta-spark_...",
        )


def _run(command: list[str], environment: dict[str, str], log: Path, verbose: bool) -> tuple[int, str]:
    """Run a command; its standard error goes to the log, its standard output is returned with the status."""
    output = log.with_name("output")
    with output.open("wb") as stdout:
        process = subprocess.Popen(  # noqa: S603 - the command is built here, and no shell reads it
            command, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE
        )
        try:
            _copy_output(process, log, verbose)
            status = process.wait()
        finally:
            process.kill()
            process.wait()
    return status, output.read_text(errors="replace")


def _copy_output(process: "subprocess.Popen[bytes]", log: Path, verbose: bool) -> None:
    assert process.stderr is not None
    with process.stderr as lines, log.open("wb") as copy:
        for line in lines:
            copy.write(line)
            if verbose:
                sys.stderr.write(line.decode(errors="replace"))


def _summary(status: int, output: str, log: Path) -> MergeSummary:
    data = _last_object(output)
    if data is None:
        raise _spark_failure(status, log)
    error = data["error"]
    failure = None if error is None else PgcdcError(ErrorKind.SPARK, error["message"], hint=error["hint"])
    if failure is not None and data["segment"] is None:
        raise failure
    return MergeSummary(
        data["segment"],
        Lsn.parse(data["lsn"]),
        tuple(map(TableMerge.from_json, data["tables"])),
        tuple(data["warnings"]),
        data["seconds"],
        failure,
        data,
    )


def _last_object(output: str) -> dict[str, Any] | None:
    """Find the job's result: a JSON object that stands on a line of its own."""
    for line in reversed(output.splitlines()):
        if line.startswith('{"format_version"'):
            found: dict[str, Any] = json.loads(line)
            return found
    return None


def _spark_failure(status: int, log: Path) -> PgcdcError:
    """Say why there is no result, by the last line of the log that tells it; the log is kept."""
    descriptor, kept = tempfile.mkstemp(prefix="pgcdc-spark-", suffix=".log")
    os.close(descriptor)
    shutil.copyfile(log, kept)
    lines = log.read_text(errors="replace").splitlines()
    missing = [match.group(1) for match in map(_UNRESOLVED.search, lines) if match]
    if missing:
        return PgcdcError(
            ErrorKind.SPARK,
            f"could not fetch the package {missing[0]}: Spark found it in no repository",
            hint=f"give the jars yourself: -- --jars FILE,...; Spark's whole output is in {kept}",
        )
    told = [line.strip() for line in lines if _TELLING.search(line)]
    reason = (told or [line.strip() for line in lines if line.strip()] or ["it printed nothing"])[-1]
    return PgcdcError(
        ErrorKind.SPARK,
        f"could not merge: spark-submit ended with status {status}: {reason[:300]}",
        hint=f"Spark's whole output is in {kept}",
    )
