"""What reaches the user: data on standard output, on a terminal by way of the pager; talk on standard error.

Neither ever holds a password, or control characters that a terminal would obey.
"""

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import Literal, TextIO

from pgcdc_cli import __version__
from pgcdc_cli.errors import ErrorKind, PgcdcError, mask
from pgcdc_cli.formats.terminal import safe

PROGRAM = "pgcdc"
RECVLOGICAL = "pg_recvlogical"
"""The name under which pgcdc is that program."""

LogFormat = Literal["text", "timed", "json"]
"""`pgcdc: warning: ...`; the same behind the time, and the level of remarks, too; an object."""


def version_line() -> str:
    """Tell the versions that matter for a bug report; libpq's where it was used, for it is slow to import."""
    libraries = []
    if "psycopg" in sys.modules:
        from psycopg import pq

        libpq = pq.version()
        libraries.append(f"libpq {libpq // 10000}.{libpq % 10000}")
    libraries.append(f"Python {sys.version.split(maxsplit=1)[0]}")
    return f"pgcdc {__version__} ({', '.join(libraries)})"


def versions_json() -> str:
    """Tell the versions of all that takes part in a stream, and of the protocols it can speak, as JSON."""
    from importlib.metadata import version

    from psycopg import pq

    from pgcdc_cli.replication.commands import PROTOCOLS

    libpq = pq.version()
    content = {
        "pgcdc": __version__,
        "python": sys.version.split(maxsplit=1)[0],
        "libpq": f"{libpq // 10000}.{libpq % 10000}",
        **{name: version(name) for name in ("psycopg", "pyarrow", "numpy")},
        "protocols": list(PROTOCOLS),
    }
    return json.dumps(content)


@dataclass(slots=True)
class Talk:
    """How much to say: `verbosity` is the number of -v, or -1 with -q.

    `program` is what messages begin with. `form` is that of `--log-format`, None where it wasn't given.
    `live` while a line that will be rewritten stands on the terminal: what is said next overwrites it.
    """

    debug: bool = False
    verbosity: int = 0
    live: bool = False
    program: str = PROGRAM
    form: LogFormat | None = None

    @property
    def as_json(self) -> bool:
        """Whether each message is an object on a line of its own."""
        return self.form == "json"


talk = Talk()


def wants_colour(stream: TextIO) -> bool:
    """Decide on colour: for terminals, unless NO_COLOR (https://no-color.org) or TERM=dumb say otherwise."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def write(line: str) -> None:
    """Put out one line of data; it is escaped by who knows its format. Raises PgcdcError OUTPUT."""
    try:
        sys.stdout.write(line + "\n")
    except OSError as error:
        raise output_error(error) from error


def flush() -> None:
    """Hand everything written to the system; raises PgcdcError OUTPUT."""
    try:
        sys.stdout.flush()
    except OSError as error:
        raise output_error(error) from error


def output_error(error: OSError) -> Exception:
    """Turn a failed write into PgcdcError OUTPUT; a reader that went away stays a BrokenPipeError."""
    if isinstance(error, BrokenPipeError):
        return error
    reason = error.strerror or str(error)
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    hint = "make room and run again" if full else "check where standard output goes"
    return PgcdcError(ErrorKind.OUTPUT, f'could not write "standard output": {reason}', hint=hint)


def log_times() -> None:
    """Put time and level into what is said from now on, as the log of a run needs them that has no end.

    Not on a terminal, not in systemd's journal, which notes the time itself, and not against --log-format.
    """
    if talk.form is None and not sys.stderr.isatty() and not _is_journal(sys.stderr):
        talk.form = "timed"


def _is_journal(stream: TextIO) -> bool:
    """Tell by device and inode, as systemd.exec(5) says under $JOURNAL_STREAM."""
    found = os.fstat(stream.fileno())
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def say(text: str) -> None:
    """Put a remark on standard error, unless -q."""
    if talk.verbosity >= 0:
        write_message("info", text)


def warn(text: str) -> None:
    """Put a warning on standard error, unless -q."""
    if talk.verbosity >= 0:
        write_message("warning", text)


def write_message(level: str, text: str) -> None:
    """Put a message on standard error, one line, without passwords."""
    if talk.as_json:
        _write_object(level, message=one_line(text))
    else:
        shown = "" if level == "info" and talk.form != "timed" else f"{level}: "
        write_error(f"{_start()}{shown}{one_line(text)}")


def _start() -> str:
    """What a line of text begins with."""
    return f"{_now()} {talk.program}: " if talk.form == "timed" else f"{talk.program}: "


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write_object(level: str, **content: object) -> None:
    write_error(json.dumps({"time": _now(), "level": level, "program": talk.program, **content}))


def fail(error: PgcdcError) -> int:
    """Print an error and its hint; gives the exit status."""
    status = error.kind.rule.exit_status
    trace = mask("".join(traceback.format_exception(error)).rstrip()) if talk.debug else ""
    if talk.as_json:
        more = {"versions": version_line(), "traceback": trace} if talk.debug else {}
        hint = one_line(error.hint)
        _write_object("error", message=one_line(error.message), hint=hint, exit_status=status, **more)
        return status
    if talk.debug:
        write_error(version_line())
        write_error(trace)
    red, plain = ("\x1b[1;31m", "\x1b[0m") if wants_colour(sys.stderr) else ("", "")
    write_error(_start(), f"{red}error:{plain} ", one_line(error.message))
    # PostgreSQL's own programs, in whose place one of ours may stand, say who gives the hint; so does a log.
    named = talk.program != PROGRAM or talk.form == "timed"
    write_error(_start() if named else "", "hint: ", one_line(error.hint))
    return status


@contextmanager
def hints(by_kind: Mapping[ErrorKind, str]) -> Iterator[None]:
    """Give errors of these kinds a hint that fits the command."""
    try:
        yield
    except PgcdcError as error:
        error.hint = by_kind.get(error.kind, error.hint)
        raise


def one_line(text: str) -> str:
    """Make an error's text fit to be shown."""
    return safe(mask(" ".join(text.split())))


def write_error(*parts: str) -> None:
    erase, talk.live = "\r\x1b[K" if talk.live else "", False
    sys.stderr.write(erase + "".join(parts) + "\n")


def human_bytes(count: int | None) -> str:
    """Print `1536` as `1.5 kB`, in PostgreSQL's units (1 kB = 1024 bytes); `-` for unknown."""
    if count is None:
        return "-"
    size, sign = float(abs(count)), "-" if count < 0 else ""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1024:
            return f"{sign}{size:.0f} {unit}" if unit == "bytes" else f"{sign}{size:.1f} {unit}"
        size /= 1024
    return f"{sign}{size:.1f} TB"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Container[str] = ()) -> list[str]:
    """Align lines, headings first, without trailing blanks; `numbers` heads what is set to the right."""
    cells = [list(headings), *([safe(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    justify = [str.rjust if heading in numbers else str.ljust for heading in headings]
    return [
        "  ".join(fit(cell, width) for fit, cell, width in zip(justify, row, widths, strict=True)).rstrip()
        for row in cells
    ]


def text_of(value: object) -> str | None:
    """Print what may be unknown."""
    return None if value is None else str(value)


def facts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Align `name  value` lines."""
    pairs = list(pairs)
    width = max(len(name) for name, _ in pairs)
    return [f"{name.ljust(width)}  {safe(value)}".rstrip() for name, value in pairs]


@contextmanager
def paged() -> Iterator[None]:
    """Let standard output go through the pager, if it is a terminal; wait until the reader has done.

    Where PAGER is empty or `cat`, or there is no such program, nothing happens. A reader who leaves early
    ends the `with` block without an error.
    """
    pager = _start_pager() if sys.stdout.isatty() else None
    if pager is None or pager.stdin is None:
        yield
        return
    flush()
    terminal = os.dup(1)
    before = signal.signal(signal.SIGINT, _interrupt_once)
    try:
        # Ctrl-C ends what comes, not the reading.
        with suppress(BrokenPipeError, KeyboardInterrupt):
            os.dup2(pager.stdin.fileno(), 1)
            yield
            flush()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _return_to(terminal)
        with suppress(BrokenPipeError):
            pager.stdin.close()
        pager.wait()
        signal.signal(signal.SIGINT, before)


def _interrupt_once(_number: int, _frame: FrameType | None) -> None:
    """End what comes; from then on the keys are the pager's alone, which must not be left behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _return_to(terminal: int) -> None:
    """Let standard output be the terminal again, without what the pager did not take."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    flush()
    os.dup2(terminal, 1)
    os.close(terminal)


def _start_pager() -> subprocess.Popen[bytes] | None:
    command = shlex.split(os.environ.get("PAGER", "less"))
    if not command or command == ["cat"]:
        return None
    # It ends at once where all fits the screen, and lets colours through, as git has it.
    settings = {"LESS": "FRX", **os.environ}
    with suppress(OSError):
        return subprocess.Popen(command, stdin=subprocess.PIPE, env=settings)  # noqa: S603 - the user's own
    return None
