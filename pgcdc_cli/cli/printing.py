"""Print data on standard output, through a pager on a terminal, and messages on standard error.

Neither ever has a password, or control characters that a terminal would act on.
"""

import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Container, Iterable, Iterator, Sequence
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
"""The form of messages: `pgcdc: warning: ...`; with time and level in front; or a JSON object."""


def version_line() -> str:
    """Return the versions that matter for a bug report; libpq's only if it was imported: that is slow."""
    libraries = []
    if "psycopg" in sys.modules:
        from psycopg import pq

        libpq = pq.version()
        libraries.append(f"libpq {libpq // 10000}.{libpq % 10000}")
    libraries.append(f"Python {sys.version.split(maxsplit=1)[0]}")
    return f"pgcdc {__version__} ({', '.join(libraries)})"


def versions_json() -> str:
    """Return as JSON the versions of everything that takes part in a stream, and the protocols it knows."""
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
    """The state of messages: `verbosity` is the number of -v, or -1 with -q.

    Messages begin with `program`. `form` is `--log-format`, None if it wasn't given. `live`: the terminal
    shows a progress line, which the next message overwrites.
    """

    debug: bool = False
    verbosity: int = 0
    live: bool = False
    program: str = PROGRAM
    form: LogFormat | None = None

    @property
    def as_json(self) -> bool:
        """Whether each message is a JSON object on a line of its own."""
        return self.form == "json"


talk = Talk()


def wants_colour(stream: TextIO) -> bool:
    """Whether to use colour: on terminals, unless NO_COLOR (https://no-color.org) or TERM=dumb forbids it."""
    return not os.environ.get("NO_COLOR") and can_redraw(stream)


def can_redraw(stream: TextIO) -> bool:
    """Whether what was printed can be written over: on terminals, unless TERM=dumb says otherwise."""
    return os.environ.get("TERM") != "dumb" and stream.isatty()


def write(line: str) -> None:
    """Print one line of data, which the caller has escaped as its format demands. Raises OUTPUT."""
    try:
        sys.stdout.write(line + "\n")
    except UnicodeEncodeError:
        # A lone surrogate, which JSON can escape, stays escaped.
        write(line.encode(errors="backslashreplace").decode())
    except OSError as error:
        raise output_error(error) from error


def flush() -> None:
    """Flush standard output. Raises OUTPUT."""
    try:
        sys.stdout.flush()
    except OSError as error:
        raise output_error(error) from error


def output_error(error: OSError) -> Exception:
    """Make a PgcdcError OUTPUT of a failed write; BrokenPipeError (the reader is gone) stays as it is."""
    if isinstance(error, BrokenPipeError):
        return error
    reason = error.strerror or str(error)
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    hint = "make room and run again" if full else "check where standard output goes"
    return PgcdcError(ErrorKind.OUTPUT, f'could not write "standard output": {reason}', hint=hint)


def forget_output() -> None:
    """Redirect standard output to nowhere, so that what is in Python's buffer isn't tried again."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def log_times() -> None:
    """Add time and level to messages from now on, for the log of a run without an end.

    Not on a terminal, in systemd's journal, which records the time itself, or against --log-format.
    """
    if talk.form is None and not sys.stderr.isatty() and not _is_journal(sys.stderr):
        talk.form = "timed"


def _is_journal(stream: TextIO) -> bool:
    """Whether a stream is systemd's journal, by device and inode: systemd.exec(5), $JOURNAL_STREAM."""
    found = os.fstat(stream.fileno())
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def say(text: str) -> None:
    """Print a remark on standard error, unless -q."""
    if talk.verbosity >= 0:
        write_message("info", text)


def warn(text: str) -> None:
    """Print a warning on standard error, unless -q."""
    if talk.verbosity >= 0:
        write_message("warning", text)


def write_message(level: str, text: str) -> None:
    """Print a message on standard error, as one line without passwords."""
    if talk.as_json:
        _write_object(level, message=one_line(text))
    else:
        shown = "" if level == "info" and talk.form != "timed" else f"{level}: "
        write_on_stderr(f"{_start()}{shown}{one_line(text)}")


def _start() -> str:
    """Return the beginning of a message: the time if wanted, and the program's name."""
    return f"{_now()} {talk.program}: " if talk.form == "timed" else f"{talk.program}: "


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _write_object(level: str, **content: object) -> None:
    write_on_stderr(json.dumps({"time": _now(), "level": level, "program": talk.program, **content}))


def fail(error: PgcdcError, status: int | None = None) -> int:
    """Print an error and its hint; return the exit status, which is the kind's own unless it is given."""
    if error.kind is ErrorKind.OUTPUT:
        forget_output()
    status = error.kind.rule.exit_status if status is None else status
    trace = mask("".join(traceback.format_exception(error)).rstrip()) if talk.debug else ""
    if talk.as_json:
        more = {"versions": version_line(), "traceback": trace} if talk.debug else {}
        hint = one_line(error.hint)
        _write_object("error", message=one_line(error.message), hint=hint, exit_status=status, **more)
        return status
    if talk.debug:
        write_on_stderr(version_line())
        write_on_stderr(trace)
    red, plain = ("\x1b[1;31m", "\x1b[0m") if wants_colour(sys.stderr) else ("", "")
    write_on_stderr(_start(), f"{red}error:{plain} ", one_line(error.message))
    # PostgreSQL's programs, which pgcdc may replace, print their name before the hint; a log needs the time.
    named = talk.program != PROGRAM or talk.form == "timed"
    write_on_stderr(_start() if named else "", "hint: ", one_line(error.hint))
    return status


def one_line(text: str) -> str:
    """Make an error's text safe to show on one line."""
    return safe(mask(" ".join(text.split())))


def write_on_stderr(*parts: str) -> None:
    """Print a line on standard error as it is, in place of the progress line if there is one."""
    erase, talk.live = "\r\x1b[K" if talk.live else "", False
    write_as_far_as_possible(erase + "".join(parts) + "\n")


def write_as_far_as_possible(text: str) -> None:
    """Write on standard error.

    A log on a full disk, a log's reader that is gone, or a closed terminal must neither end a run nor change
    its exit status. Python keeps what it can't write, and tries again with the next message.
    """
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def counted(count: int, noun: str) -> str:
    """Format `1 row`, `1,000 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def human_bytes(count: int | None) -> str:
    """Format `1536` as `1.5 kB`, in PostgreSQL's units (1 kB = 1024 bytes); `-` if unknown."""
    if count is None:
        return "-"
    size, sign = float(abs(count)), "-" if count < 0 else ""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1024:
            return f"{sign}{size:.0f} {unit}" if unit == "bytes" else f"{sign}{size:.1f} {unit}"
        size /= 1024
    return f"{sign}{size:.1f} TB"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Container[str] = ()) -> list[str]:
    """Align rows under headings, without trailing spaces; the columns named in `numbers` to the right."""
    cells = [list(headings), *([safe(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headings))]
    justify = [str.rjust if heading in numbers else str.ljust for heading in headings]
    return [
        "  ".join(fit(cell, width) for fit, cell, width in zip(justify, row, widths, strict=True)).rstrip()
        for row in cells
    ]


def fitted(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    dispensable: Iterable[str],
    numbers: Container[str] = (),
) -> list[str]:
    """Make a table; on a narrow terminal without some of the dispensable columns, in their order."""
    lines = table(headings, rows, numbers)
    for name in dispensable:
        if fits(lines):
            break
        left_out = headings.index(name)
        headings, *rows = ([*row[:left_out], *row[left_out + 1 :]] for row in (headings, *rows))
        lines = table(headings, rows, numbers)
    return lines


def fits(lines: Iterable[str]) -> bool:
    """Whether no line would wrap; anywhere but on a terminal, none does."""
    return not sys.stdout.isatty() or max(map(len, lines)) <= shutil.get_terminal_size().columns


def text_of(value: object) -> str | None:
    """Convert to text; None stays None."""
    return None if value is None else str(value)


def facts(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Align `name  value` lines."""
    pairs = list(pairs)
    width = max(len(name) for name, _ in pairs)
    return [f"{name.ljust(width)}  {safe(value)}".rstrip() for name, value in pairs]


@contextmanager
def paged() -> Iterator[None]:
    """Pipe standard output through the pager if it is a terminal; wait until the user leaves the pager.

    If PAGER is empty or `cat`, or there is no such program, output isn't paged; nor is it on a dumb terminal,
    of which less complains, unless PAGER is set. A user who leaves early ends the `with` block without an
    error.
    """
    pager = _start_pager() if sys.stdout.isatty() else None
    if pager is None or pager.stdin is None:
        yield
        return
    flush()
    terminal = os.dup(1)
    before = signal.signal(signal.SIGINT, _interrupt_once)
    try:
        # Ctrl-C ends the output, not the pager.
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
    """End the output; ignore further interrupts, since we must wait for the pager to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _return_to(terminal: int) -> None:
    """Restore the terminal as standard output, and discard what the pager did not read."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    flush()
    os.dup2(terminal, 1)
    os.close(terminal)


def _start_pager() -> subprocess.Popen[bytes] | None:
    command = shlex.split(os.environ.get("PAGER", "less" if can_redraw(sys.stdout) else ""))
    if not command or command == ["cat"]:
        return None
    # As git does: less exits at once if everything fits the screen, and lets colours through.
    settings = {"LESS": "FRX", **os.environ}
    with suppress(OSError):
        return subprocess.Popen(command, stdin=subprocess.PIPE, env=settings)  # noqa: S603 - the user's own
    return None
