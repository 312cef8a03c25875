"""The process of the command `pgcdc`, and the one place where errors end it."""

import gc
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from pgcdc_cli.cli.printing import (
    PROGRAM,
    RECVLOGICAL,
    fail,
    flush,
    forget_output,
    talk,
    version_line,
    write,
    write_message,
)
from pgcdc_cli.ending_signals import ENDINGS, Handler, early_ending
from pgcdc_cli.errors import INTERRUPTED, READER_GONE, ErrorKind, PgcdcError

GARBAGE = 100_000
"""New objects after which Python's garbage collector runs; its default is 700."""

_NAMES_HINT = "names are given in UTF-8, whatever the database's encoding; rename what UTF-8 can't represent"
_LACKING = (
    "it lacks memory or threads: raise the limit (ulimit -v, ulimit -u, or its container's), and run again"
)

_LACKS = ("can't start new thread", "failed to map segment")
"""What Python says of a thread, and the dynamic linker of a library, for which there is no room."""

LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}
"""The lowest log level that is shown, by verbosity."""


class LineHandler(logging.Handler):
    """`pgcdc: warning: ...`, one line each, without passwords."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= LEVELS[min(talk.verbosity, 2)]:
            write_message(record.levelname.lower(), record.getMessage())


def _log_to_stderr() -> None:
    log = logging.getLogger("pgcdc")
    log.handlers = [LineHandler()]
    log.propagate = False
    log.setLevel(logging.DEBUG)


class NoPandas:
    """Hides pandas: PyArrow would import it with its first array, which doubles the startup time."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> None:
        """Raise ModuleNotFoundError for pandas; leave other modules to the next finders."""
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def main() -> None:
    """Run the command line of this process, and end it with the exit status."""
    _take_names_as_utf8()
    _write_as_utf8()
    # Before NumPy is imported: it would start threads for linear algebra, which pgcdc doesn't use.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.meta_path.insert(0, NoPandas())
    # Imported modules stay in memory. Collecting garbage among them, repeatedly during imports and once more
    # at exit, would take a quarter of a short run.
    gc.set_threshold(GARBAGE)
    # If the parent process ignores SIGCHLD, that is inherited, and exit statuses of our commands are lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = run(sys.argv[1:], Path(sys.argv[0]).name)
    # What is left to do would otherwise end with a traceback.
    _swap_endings(early_ending, signal.SIG_DFL)
    gc.freeze()
    sys.exit(status)


def _take_names_as_utf8() -> None:
    """Start over in Python's UTF-8 mode if the locale isn't UTF-8: folders are named like tables.

    In Latin-1 some names could not be written, and others not be found again from another locale.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.execve(sys.executable, _command_line(), {**os.environb, b"PYTHONUTF8": b"1"})  # noqa: S606 - ourselves


def _command_line() -> list[bytes] | list[str]:
    """Return this process's command line as it was given.

    In an encoding of several bytes, such as EUC-JP, Python's text of it can't always be turned back.
    """
    try:
        return Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return sys.orig_argv


def _write_as_utf8() -> None:
    """Print as into files, whatever PYTHONIOENCODING says: in another encoding some text could not be."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(encoding="utf-8", errors=output.errors)


def run(arguments: list[str], program: str = PROGRAM) -> int:
    """Run one command line and return the exit status; no exception but SystemExit escapes.

    If `program` is pg_recvlogical, pgcdc behaves as that program.
    """
    _stand_in_for_closed_streams()
    _log_to_stderr()
    talk.program = PROGRAM
    try:
        early_ending.came = False
        _swap_endings(signal.SIG_DFL, early_ending)
        status = _run(arguments, program)
        flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
        # `python -m` would end with SIGINT if the last code that was made of a text was interrupted, as a
        # dataclass may be during an import.
        exec("")  # noqa: S102 - it does nothing
    except BrokenPipeError:
        forget_output()
        status = READER_GONE
    except PgcdcError as error:
        status = fail(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, a user gets one line
        # Before 3.12, Python wraps what interrupts a class that is being made, as during an import.
        interrupted = isinstance(error.__cause__, KeyboardInterrupt)
        status = INTERRUPTED if interrupted else fail(_argument_error(error, arguments) or _unexpected(error))
    return status


def _run(arguments: list[str], program: str) -> int:
    if program != RECVLOGICAL and arguments in (["-V"], ["--version"]):
        # Without Typer, which takes several times as long to import.
        write(version_line())
        return 0
    from pgcdc_cli.cli.root_command import run_command

    return run_command(arguments, RECVLOGICAL if program == RECVLOGICAL else PROGRAM)


def _swap_endings(before: Handler, after: Handler) -> None:
    """Handle ending signals differently, except those that the parent process has ignored.

    `early_ending` raises KeyboardInterrupt, which cancels what the server is asked to do, and restores the
    terminal.
    """
    for number in ENDINGS:
        if signal.getsignal(number) is before:
            signal.signal(number, after)


def _stand_in_for_closed_streams() -> None:
    """Open replacements for closed standard streams, so that no file opened later takes their place.

    Writing to a standard output that was closed still fails.
    """
    for number, name, access in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_RDONLY),
        (2, "stderr", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, access)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _argument_error(error: Exception, arguments: list[str]) -> PgcdcError | None:
    """Make an error for an argument that isn't UTF-8, whose bytes Python keeps as surrogates."""
    odd = error.object[error.start] if isinstance(error, UnicodeEncodeError) else ""
    if not odd or not any(odd in argument for argument in arguments):
        return None
    byte = os.fsencode(odd).hex()
    message = f"could not read the command line: a name has the byte 0x{byte}, which is not UTF-8"
    return PgcdcError(ErrorKind.USAGE, message, hint=_NAMES_HINT)


def _unexpected(error: Exception) -> PgcdcError:
    lacking = isinstance(error, MemoryError) or any(one in str(error) for one in _LACKS)
    wrapped = PgcdcError(
        ErrorKind.UNEXPECTED,
        f"could not continue: unexpected {type(error).__name__}: {error}",
        hint=_LACKING if lacking else None,
    )
    wrapped.__cause__ = error
    return wrapped
