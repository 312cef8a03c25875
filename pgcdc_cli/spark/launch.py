"""Runs the bundled merge job by `spark-submit`, with a Java, the packages and the settings that it needs.

The job prints one JSON object as its last line of standard output, also when it fails. Everything else that
Spark says goes to a log: WAREHOUSE/_pgcdc.log where that is a local directory, else kept when the job fails.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.spark.java import java_settings
from pgcdc_cli.spark.result import MergeSummary, read_result
from pgcdc_cli.spark.warehouse import keep_log, refuse_if_locked

SCRIPT = Path(__file__).with_name("merge.py")
SPARK_VERSION = "4.1"
DELTA = "io.delta:delta-spark_4.1_2.13:4.4.0"
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"

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
_PROGRESS = "pgcdc-progress "
_LOCALE = {"LC_ALL": "C.UTF-8"}
"""In others, Java may not be able to name files outside ASCII."""

_LOCAL_SETTINGS = {"spark.sql.shuffle.partitions": "8", "spark.ui.enabled": "false"}

# The driver runs here, with our Python, whatever the executors are told to run.
_CLUSTER_SETTINGS = {
    "spark.pyspark.driver.python": sys.executable,
    **{f"spark.executorEnv.{name}": value for name, value in _LOCALE.items()},
}


@dataclass(frozen=True)
class MergeOptions:
    """What to merge where. `warehouse` is a directory or a URI of any file system that Hadoop knows.

    `format` is delta or iceberg; `catalog` names one in which the tables have names. `mode` is merge,
    changelog or both; `tables` are patterns for `schema.table`, `retain` is in hours. `verbose` copies what
    Spark says to standard error. `extra` goes to spark-submit as it is (`--packages`, `--conf`, ...).
    """

    input: str
    warehouse: str
    master: str = "local[*]"
    format: str = "delta"
    catalog: str | None = None
    mode: str = "merge"
    tables: Sequence[str] = ()
    until: Lsn | None = None
    dry_run: bool = False
    metadata: bool = False
    soft_delete: bool = False
    compact: bool = False
    retain: int | None = None
    verbose: bool = False
    extra: Sequence[str] = ()

    @property
    def modes(self) -> tuple[str, ...]:
        return ("merge", "changelog") if self.mode == "both" else (self.mode,)

    def arguments(self) -> list[str]:
        """List the job's own arguments."""
        flags = {
            "--dry-run": self.dry_run,
            "--metadata": self.metadata,
            "--soft-delete": self.soft_delete,
            "--compact": self.compact,
        }
        return [
            f"--input={self.input}",
            f"--warehouse={self.warehouse}",
            f"--format={self.format}",
            *([] if self.catalog is None else [f"--catalog={self.catalog}"]),
            f"--mode={self.mode}",
            *(f"--table={pattern}" for pattern in self.tables),
            *([] if self.until is None else [f"--until={self.until}"]),
            *([] if self.retain is None else [f"--retain={self.retain}"]),
            *(flag for flag, given in flags.items() if given),
        ]


Tell = Callable[[Mapping[str, Any]], None]
"""Is told of each table that is done: `table`, `mode`, `done` of `of`, counts and `problem`."""


def submit(options: MergeOptions, tell: Tell | None = None) -> MergeSummary:
    """Run the merge and wait for its end.

    Raises SPARK if it could not be run or merged nothing: no spark-submit, no Java, a package that can't be
    fetched, a damaged segment. Raises LOCKED if another merge is under way, USAGE where pyspark isn't
    installed.
    """
    refuse_if_locked(options.warehouse)
    with tempfile.TemporaryDirectory(prefix="pgcdc-spark-") as scratch:
        home = find_spark_home()
        environment = _environment(options, home, Path(scratch))
        command = [*_command(options, home), *(["--progress"] if tell is not None else [])]
        log = Path(scratch) / "log"
        status, output = _run(command, environment, log, Listener(options.verbose, tell))
        kept = None if options.dry_run else keep_log(log, options.warehouse)
        summary = read_result(output)
        if summary is None:
            raise _spark_failure(status, log, kept)
        return summary


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
    settings: dict[str, str | None] = {"SPARK_HOME": str(home), **java_settings(scratch / "java"), **_LOCALE}
    if options.master.startswith("local"):
        # Otherwise workers take the first python3 on PATH.
        settings |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment = {**os.environ, **settings}
    return {name: value for name, value in environment.items() if value is not None}


def _command(options: MergeOptions, home: Path) -> list[str]:
    settings = _LOCAL_SETTINGS if options.master.startswith("local") else _CLUSTER_SETTINGS
    return [
        str(home / "bin" / "spark-submit"),
        f"--master={options.master}",
        *(f"--conf={name}={value}" for name, value in settings.items()),
        *options.extra,
        *_package_arguments(options, home),
        str(SCRIPT),
        *options.arguments(),
        "--json",
    ]


def _package_arguments(options: MergeOptions, home: Path) -> list[str]:
    """Ask for the table format's package, unless the user or the Spark installation brings it."""
    package = {"delta": DELTA, "iceberg": ICEBERG}[options.format]
    artifact = package.split(":")[1].partition("-4.1")[0].partition("_")[0]
    if any(artifact in argument for argument in options.extra) or any(home.glob(f"jars/{artifact}*.jar")):
        return []
    _check_version(home, artifact)
    theirs = list(_values_of("--packages", options.extra))
    if theirs:
        return ["--packages", ",".join([package, *theirs])]
    return ["--packages", package, "--exclude-packages", ",".join(NOT_NEEDED)]


def _values_of(option: str, arguments: Sequence[str]) -> Iterator[str]:
    for argument, following in pairwise([*arguments, ""]):
        if argument == option:
            yield following
        elif argument.startswith(f"{option}="):
            yield argument.removeprefix(f"{option}=")


def _check_version(home: Path, artifact: str) -> None:
    core = next(home.glob("jars/spark-core_*.jar"), None)
    version = "" if core is None else core.stem.partition("-core_")[2].partition("-")[2]
    if core is not None and not version.startswith(f"{SPARK_VERSION}."):
        raise PgcdcError(
            ErrorKind.USAGE,
            f'could not use the Spark in "{home}": it is version {version}, not {SPARK_VERSION}',
            hint=f"set SPARK_HOME to a Spark 4.1, or give the jars for it: -- --packages GROUP:{artifact}...",
        )


@dataclass(frozen=True)
class Listener:
    """Reads what Spark says on standard error, line by line."""

    verbose: bool
    tell: Tell | None

    def copy(self, lines: IO[bytes], log: Path) -> None:
        """Put what is Spark's own into the log, and on standard error if asked."""
        with log.open("wb") as copy:
            for line in lines:
                text = line.decode(errors="replace")
                if text.startswith(_PROGRESS):
                    if self.tell is not None:
                        self.tell(json.loads(text.removeprefix(_PROGRESS)))
                    continue
                copy.write(line)
                if self.verbose:
                    sys.stderr.write(text)


def _run(command: list[str], environment: dict[str, str], log: Path, listener: Listener) -> tuple[int, str]:
    """Run a command; its standard error goes to the log, its standard output is returned with the status."""
    output = log.with_name("output")
    with output.open("wb") as stdout:
        process = subprocess.Popen(  # noqa: S603 - the command is built here, and no shell reads it
            command, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        try:
            with process.stderr as lines:
                listener.copy(lines, log)
            status = process.wait()
        finally:
            process.kill()
            process.wait()
    return status, output.read_text(errors="replace")


def _spark_failure(status: int, log: Path, kept: Path | None) -> PgcdcError:
    """Say why there is no result, by the last line of the log that tells it; the log is kept."""
    where = f"Spark's whole output is in {kept or _temporary_copy(log)}"
    lines = log.read_text(errors="replace").splitlines()
    missing = [match.group(1) for match in map(_UNRESOLVED.search, lines) if match]
    if missing:
        return PgcdcError(
            ErrorKind.SPARK,
            f"could not fetch the package {missing[0]}: Spark found it in no repository",
            hint=f"give the jars yourself: -- --jars FILE,...; {where}",
        )
    told = [line.strip() for line in lines if _TELLING.search(line)]
    reason = (told or [line.strip() for line in lines if line.strip()] or ["it printed nothing"])[-1]
    return PgcdcError(
        ErrorKind.SPARK,
        f"could not merge: spark-submit ended with status {status}: {reason[:300]}",
        hint=where,
    )


def _temporary_copy(log: Path) -> Path:
    descriptor, kept = tempfile.mkstemp(prefix="pgcdc-spark-", suffix=".log")
    os.close(descriptor)
    shutil.copyfile(log, kept)
    return Path(kept)
