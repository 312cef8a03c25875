"""`pgcdc`: all its commands in one tree, and the one place where errors end a command."""

import gc
import io
import logging
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from pgcdc_cli.cli import (
    completion,
    demo,
    doctor,
    publication,
    recvlogical,
    show,
    slot,
    snapshot,
    spark_submit,
    status,
    stream,
)
from pgcdc_cli.cli.command_tree import (
    ClickCommand,
    ClickContext,
    ClickError,
    ClickParameter,
    Command,
    build,
    environment_variable,
    examples,
    long_name,
    new_app,
)
from pgcdc_cli.cli.printing import (
    PROGRAM,
    LogFormat,
    fail,
    flush,
    talk,
    version_line,
    versions_json,
    write,
    write_message,
)
from pgcdc_cli.errors import ErrorKind, PgcdcError

READER_GONE = 141
"""What a shell reports for a program that SIGPIPE ended: 128 + 13."""

INTERRUPTED = 130
"""The same for SIGINT, 128 + 2."""

GARBAGE = 20_000
"""Objects, more than before, after which Python looks for cycles among them; by itself after 700."""

_NAMES_HINT = "names are given in UTF-8, whatever the database's encoding; rename what has none there"

LEVELS = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}
"""The least level that is shown, by verbosity."""

_QUOTES = re.compile(r"(?<!\w)'([^']*)'(?!\w)")

_ORDER = (
    "demo",
    "doctor",
    "slot",
    "publication",
    "stream",
    "snapshot",
    "recvlogical",
    "show",
    "status",
    "spark-submit",
    "help",
)
"""As somebody meets them."""

app = new_app(
    summary="PostgreSQL's changes in files, as JSON lines or Arrow, exactly once.",
    epilog=examples("pgcdc stream -d shop -S s --publication p -D changes --endpos now"),
)
app.add_typer(slot.app, name="slot")
app.add_typer(publication.app, name="publication")
stream.register(app)
snapshot.register(app)
recvlogical.register(app)
show.register(app)
status.register(app)
spark_submit.register(app)
demo.register(app)
doctor.register(app)


@app.command(
    "help",
    cls=Command,
    # The first help shows the commands already.
    hidden=True,
    epilog=examples("pgcdc help", "pgcdc help stream", "pgcdc help slot create"),
)
def help_command(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="One or more words of it.")
    ] = None,
) -> None:
    """Show the help of a command, or of pgcdc itself."""
    context: ClickContext = ctx.find_root()
    for number, word in enumerate(words or ()):
        if not hasattr(context.command, "commands"):
            context.fail(f"No such command {' '.join((words or [])[: number + 1])!r}.")
        name, command, _ = context.command.resolve_command(context, [word])
        context = type(context)(command, info_name=name, parent=context)
    write(context.get_help())


def _print_version(ctx: typer.Context, value: bool) -> None:
    if value:
        write(versions_json() if ctx.params["version_json"] else version_line())
        raise typer.Exit
    if ctx.params["version_json"]:
        ctx.fail("--json stands behind a command's name, or goes with --version")


def _load_config(ctx: typer.Context, path: Path | None) -> None:
    if path is None:
        return
    from pgcdc_cli.cli.config_file import read_defaults

    root = ctx.find_root()
    defaults = read_defaults(path, root.command)
    root.default_map = defaults
    for word in ctx.command_path.split()[1:]:
        defaults = defaults.get(word, {})
    ctx.default_map = defaults


def _set_debug(value: bool | None) -> None:
    talk.debug = talk.debug or bool(value)


def _set_verbose(value: int | None) -> None:
    if value:
        talk.verbosity = value


def _set_quiet(value: bool | None) -> None:
    if value:
        talk.verbosity = -1


def _set_log_format(value: LogFormat | None) -> None:
    talk.form = value or talk.form


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


@app.callback()
def root(  # noqa: PLR0913, PLR0917 - a command's options
    version: Annotated[
        bool,
        typer.Option(
            "-V", "--version", callback=_print_version, help="Print the version; --json: of all parts."
        ),
    ] = False,
    version_json: Annotated[
        bool,
        typer.Option("--json", is_eager=True, hidden=True, help="With --version: as JSON, with libraries."),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", callback=_load_config, is_eager=True, help="Take defaults from a TOML file."
        ),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", callback=_set_debug, help="Show the traceback of an error.")
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "-v",
            "--verbose",
            count=True,
            callback=_set_verbose,
            show_default=False,
            help="Say more (twice: much more).",
        ),
    ] = 0,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", callback=_set_quiet, help="Say nothing but errors.")
    ] = False,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(callback=_set_log_format, help="On standard error; timed has time and level."),
    ] = None,
) -> None:
    """Take the options of all commands; their callbacks act."""


def root_command() -> ClickCommand:
    """Make the tree of all commands."""
    return build(app, _ORDER)


class NoPandas:
    """Finds no pandas: PyArrow would import it at its first array, and double the time of a start."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> None:
        """Leave all other modules to those who look for them next."""
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def main() -> None:
    """Run the command line of this process, and end it with the exit status."""
    _take_names_as_utf8()
    _write_as_utf8()
    # Before NumPy is imported: it would start threads for linear algebra, of which there is none here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.meta_path.insert(0, NoPandas())
    # What is imported stays: to search it for garbage, at first again and again and once more at exit, would
    # take a quarter of a short run.
    gc.set_threshold(GARBAGE)
    # Whoever ignores it hands that down, and then the system keeps no exit status of commands that we start.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = run(sys.argv[1:], Path(sys.argv[0]).name)
    gc.freeze()
    sys.exit(status)


def _take_names_as_utf8() -> None:
    """Start over in Python's UTF-8 mode where the locale is another: folders are named as the tables are.

    In Latin-1 some names could not be written, and others not be found again from another locale.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "PYTHONUTF8": "1"})  # noqa: S606 - ourselves


def _write_as_utf8() -> None:
    """Print as into files, whatever PYTHONIOENCODING says: in another encoding some text could not be."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(encoding="utf-8", errors=output.errors)


def run(arguments: list[str], program: str = PROGRAM) -> int:
    """Run one command line; gives the exit status, and lets nothing escape but SystemExit.

    Under the name pg_recvlogical pgcdc is that program.
    """
    _stand_in_for_closed_streams()
    _log_to_stderr()
    talk.program = PROGRAM
    try:
        _heed_interrupts()
        if program == recvlogical.PROGRAM:
            status = _invoke(root_command().commands["recvlogical"], program, arguments)
        elif arguments[:1] == [completion.COMMAND]:
            status = completion.complete(root_command(), arguments[1:])
        else:
            status = _invoke(root_command(), PROGRAM, arguments)
        flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        status = READER_GONE
    except PgcdcError as error:
        _forget_output_if_gone(error)
        status = fail(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, a user gets one line
        status = fail(_argument_error(error, arguments) or _unexpected(error))
    return status


def _heed_interrupts() -> None:
    """Let SIGINT be a KeyboardInterrupt again; it stays ignored where whoever started us has it so."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stand_in_for_closed_streams() -> None:
    """Let no file that is opened later become standard output; writing to a closed one fails."""
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


def _invoke(command: ClickCommand, name: str, arguments: list[str]) -> int:
    try:
        with command.make_context(name, arguments) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except typer.TyperException as error:
        raise _usage_error(error) from error
    return 0


def _argument_error(error: Exception, arguments: list[str]) -> PgcdcError | None:
    """Say so of a name that is no UTF-8, which Python keeps as surrogates until it is sent to the server."""
    odd = error.object[error.start] if isinstance(error, UnicodeEncodeError) else ""
    if not odd or not any(odd in argument for argument in arguments):
        return None
    byte = os.fsencode(odd).hex()
    message = f"could not read the command line: a name has the byte 0x{byte}, which is not UTF-8"
    return PgcdcError(ErrorKind.USAGE, message, hint=_NAMES_HINT)


def _unexpected(error: Exception) -> PgcdcError:
    wrapped = PgcdcError(ErrorKind.UNEXPECTED, f"could not go on: unexpected {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _usage_error(error: typer.TyperException) -> PgcdcError:
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "pgcdc"
    return PgcdcError(ErrorKind.USAGE, f"could not {_complaint(error)}", hint=f"see {where} --help")


def _complaint(error: ClickError) -> str:
    """Say what is wrong with which option, and where the option came from."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        reason = _sentence_end(getattr(error, "message", "") or str(error))
        return f"read the command line: {reason}{_meant(error)}"
    if not error.message:
        return f"read the command line: {_name(parameter)} is missing"
    source = error.ctx.get_parameter_source(parameter.name)
    if source is not None and source.name == "ENVIRONMENT":
        return f"read the environment: {environment_variable(parameter)}: {_sentence_end(error.message)}"
    if source is not None and source.name == "DEFAULT_MAP":
        return f'read the configuration file: "{long_name(parameter)}": {_sentence_end(error.message)}'
    return f"read the command line: {_name(parameter)}: {_sentence_end(error.message)}"


def _meant(error: ClickError) -> str:
    """Name the option that one which doesn't exist resembles most; of commands, Typer does that itself."""
    nearest = next(iter(getattr(error, "possibilities", None) or ()), None)
    return "" if nearest is None else f'. Did you mean "{nearest}"?'


def _name(parameter: ClickParameter) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return "/".join(parameter.opts)


def _sentence_end(message: str) -> str:
    """Click's sentence as the end of ours."""
    message = message.strip().removeprefix("Value error, ").rstrip(".")
    message = _QUOTES.sub(r'"\1"', message)
    return message[:1].lower() + message[1:]


def _forget_output_if_gone(error: PgcdcError) -> None:
    if error.kind is ErrorKind.OUTPUT:
        _forget_output()


def _forget_output() -> None:
    """Let Python not try again at exit to write what can't be written; if not even that opens, it may."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
