"""The command line `pgcdc`: its own options, and its commands, each imported when it is used."""

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from pgcdc_cli.cli import completion
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
from pgcdc_cli.cli.printing import RECVLOGICAL, LogFormat, talk, version_line, versions_json, write
from pgcdc_cli.ending_signals import early_hangup
from pgcdc_cli.errors import ErrorKind, PgcdcError

_QUOTES = re.compile(r"(?<!\w)'([^']*)'(?!\w)")

COMMANDS = {
    "demo": "See it all at work: server, load, files, Spark, proof.",
    "doctor": "Check for what would stop a stream or lose changes.",
    "slot": "Create, inspect, change and drop replication slots.",
    "publication": "Create, alter, drop, list and show publications.",
    "stream": "Stream a slot into files, each transaction exactly once.",
    "snapshot": "Write the current rows of tables, all as of one moment.",
    "recvlogical": "A drop-in for pg_recvlogical: same options, raw output.",
    "show": "Print what pgcdc wrote, in the order in which it happened.",
    "status": "Show a stream's progress: files, slot, merge.",
    "spark-submit": "Merge a directory into Delta or Iceberg tables.",
}
"""The top-level help's line for each command, in the order in which a new user needs them."""

_OF_RECVLOGICAL = {
    "--create-slot",
    "--start",
    "--drop-slot",
    "-P",
    "--plugin",
    "--enable-two-phase",
    "--enable-failover",
}
"""Options of pg_recvlogical that neither `pgcdc` nor `pgcdc stream` has."""

_EXTRA = re.compile(r"Got unexpected extra argument\(s\) \((.+)\)")

_WORDS = {
    "slot": ("the slot", "-S"),
    "tables": ("a table", "--table"),
    "add_table": ("a table", "--add-table"),
    "dbname": ("the database", "-d"),
}
"""What a word without an option may be, and its option, by the option's parameter."""

_OF_COMMANDS = {"-d", "--dbname", "--host", "-p", "--port", "-U", "--username", "-S", "--slot"}
"""Options that belong after a command's name."""

_OTHER_NAMES = {
    "cat": "pgcdc show",
    "logs": "pgcdc show --follow",
    "merge": "pgcdc spark-submit",
    "tail": "pgcdc show --follow",
    "version": "pgcdc --version",
}
"""Commands of other programs, and what does that here."""

_UNKNOWN = re.compile(r'No such command ["\'](.+)["\']\.?')

_REOPENING = {"stream", "recvlogical"}
"""Commands that reopen their file on SIGHUP."""

app = new_app(
    summary="PostgreSQL's changes in files, as JSON lines or Arrow, exactly once.",
    epilog=examples("pgcdc stream -d shop -S s --publication p -D changes --endpos now"),
)


@app.command(
    "help",
    cls=Command,
    # The top-level help lists the commands already.
    hidden=True,
    epilog=examples("pgcdc help", "pgcdc help stream", "pgcdc help slot create"),
)
def help_command(
    ctx: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="Name of the command.")] = None,
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
        ctx.fail("--json goes after a command's name, or with --version")


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


@app.callback()
def root(  # noqa: PLR0913, PLR0917 - a command's options
    version: Annotated[
        bool,
        typer.Option(
            "-V", "--version", callback=_print_version, help="Print the version; --json adds libraries."
        ),
    ] = False,
    version_json: Annotated[
        bool,
        typer.Option("--json", is_eager=True, hidden=True, help="With --version: as JSON, with libraries."),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", callback=_load_config, is_eager=True, help="Read default values from a TOML file."
        ),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", callback=_set_debug, help="Show tracebacks of errors.")
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "-v",
            "--verbose",
            count=True,
            callback=_set_verbose,
            show_default=False,
            help="Print more messages; twice, many more.",
        ),
    ] = 0,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", callback=_set_quiet, help="Print only errors.")
    ] = False,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(callback=_set_log_format, help="Message format; timed adds time and level."),
    ] = None,
) -> None:
    """Declare the options of all commands; their callbacks do the work."""


def root_command() -> ClickCommand:
    """Build the tree of all commands."""
    return build(app, COMMANDS, _command)


def _command(name: str) -> ClickCommand:
    """Import a command, or a group of them. Raises KeyboardInterrupt if SIGHUP came and ends this one."""
    if name not in _REOPENING:
        early_hangup.end()
    alone = new_app()
    import_module(f"pgcdc_cli.cli.{name.replace('-', '_')}").register(alone)
    return typer.main.get_group(alone).commands[name]


def run_command(arguments: list[str], program: str) -> int:
    """Run a command line, and return its exit status. Raises PgcdcError and KeyboardInterrupt."""
    root = root_command()
    if program == RECVLOGICAL:
        return _invoke(root.commands["recvlogical"], program, arguments)
    if arguments[:1] == [completion.COMMAND]:
        return completion.complete(root, arguments[1:])
    return _invoke(root, program, arguments)


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


def _usage_error(error: typer.TyperException) -> PgcdcError:
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "pgcdc"
    message = getattr(error, "message", "")
    hint = _option_hint(getattr(error, "option_name", None), where, error)
    unknown, extra = _UNKNOWN.fullmatch(message), _EXTRA.fullmatch(message)
    if unknown is not None and unknown[1] in _OTHER_NAMES:
        hint = f"that is {_OTHER_NAMES[unknown[1]]}; {hint}"
    if extra is not None:
        hint = "; ".join([*_likely_options(context, extra[1].split()), hint])
    return PgcdcError(ErrorKind.USAGE, f"could not {_complaint(error)}", hint=hint)


def _option_hint(option: str | None, where: str, error: typer.TyperException) -> str:
    """Say where an option belongs that the command doesn't have, or has with another meaning."""
    see = f"see {where} --help"
    if option == "-h":
        return f"-h is the server's host; help is at: {where} -? or {where} --help"
    if option in _OF_RECVLOGICAL and where in {"pgcdc", "pgcdc stream"}:
        vars(error).update(possibilities=None)
        meant = "a publication is given by --publication; " if option == "-P" else ""
        return f"{meant}pgcdc recvlogical takes pg_recvlogical's options; for those of {where}, {see}"
    if option in _OF_COMMANDS and where == "pgcdc":
        vars(error).update(possibilities=None)
        return f"it goes after the command's name: pgcdc COMMAND {option}; {see}"
    if option == "--format" and _has_json(error):
        vars(error).update(possibilities=None)
        return f"--json prints JSON; {see}"
    if option in {"-S", "--slot"} and where.startswith("pgcdc slot "):
        vars(error).update(possibilities=None)
        return f"the slot's name needs no option: {where} NAME; {see}"
    return see


def _has_json(error: typer.TyperException) -> bool:
    context = getattr(error, "ctx", None)
    return context is not None and any(one.name == "json" for one in context.command.params)


def _likely_options(context: ClickContext, words: list[str]) -> Iterator[str]:
    """Yield what words too many may be: what the command takes by an option, and wasn't given."""
    takes = {one.name: one for one in context.command.params}
    named = any(one.param_type_name == "argument" for one in takes.values())
    for name, (what, option) in _WORDS.items():
        if name not in takes or context.params.get(name):
            continue
        if takes[name].multiple or not (named or len(words) > 1):
            yield f"if it is {what}: {' '.join(f'{option} {shlex.quote(word)}' for word in words)}"


def _complaint(error: ClickError) -> str:
    """Say what is wrong with which option, and where its value comes from."""
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
    """Suggest an option or command that resembles an unknown one."""
    nearest = next(iter(getattr(error, "possibilities", None) or ()), None)
    return "" if nearest is None else f'. Did you mean "{nearest}"?'


def _name(parameter: ClickParameter) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return "/".join(parameter.opts)


def _sentence_end(message: str) -> str:
    """Turn Click's sentence into the end of ours."""
    message = message.strip().removeprefix("Value error, ").rstrip(".")
    message = _QUOTES.sub(r'"\1"', message)
    return message[:1].lower() + message[1:]
