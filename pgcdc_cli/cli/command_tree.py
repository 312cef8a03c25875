"""The layout of commands: their help, their environment variables, and the options that any command takes.

Typer 0.29 contains a private copy of Click. This module uses only what Typer's public classes inherit from
it: parameters with `opts`, `help`, `envvar`, `rich_help_panel`, and a context.
"""

import copy
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from pgcdc_cli.cli.printing import flush, warn, write
from pgcdc_cli.errors import ErrorKind, PgcdcError, nearest

ClickCommand: TypeAlias = Any
ClickContext: TypeAlias = Any
ClickError: TypeAlias = Any
ClickFormatter: TypeAlias = Any
ClickParameter: TypeAlias = Any

_PREFIX = "PGCDC_"
_OTHER_VARIABLES = frozenset({"PGCDC_COMPLETION_SECONDS"})
"""Variables that stand for no option."""

_OF_A_SERVICE = ("PGCDC_SERVICE_", "PGCDC_PORT_")
"""Variables that Kubernetes sets in each container if a service is called pgcdc."""

NOT_FROM_ENVIRONMENT = frozenset({"help", "version", "version_json", "password", "no_password"})
"""Options without environment variable and configuration: those that are actions, or ask for a password."""

ANYWHERE = frozenset({"config", "debug", "verbose", "quiet", "log_format"})
"""Options of `pgcdc` itself that may also follow the command's name."""


_NAMES = frozenset({"COMMAND", "DIR", "FILE", "NAME", "NEW", "OLD", "PATH", "SCHEMA"})
"""Placeholders in the help for values that are names."""

_PYDANTIC_MESSAGES = {
    re.compile("Input should be a valid boolean"): "is neither true nor false",
    re.compile("Input should be a valid integer"): "is not a whole number",
    re.compile("Input should be a valid number"): "is not a number",
    re.compile(r"Input should be greater than or equal to (\d+)"): r"is below \1",
    re.compile(r"Input should be less than or equal to (\d+)"): r"is above \1",
}
"""Pydantic's messages about a value, and ours."""

HELP_NAMES = {"help_option_names": ["-?", "--help"]}
"""Settings for a context without a parent to inherit them from."""


class Command(TyperCommand):
    """A command whose help groups options by panel, and whose usage errors name their command."""

    def parse_args(self, ctx: ClickContext, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            vars(error).update(ctx=ctx)
            raise

    def invoke(self, ctx: ClickContext) -> object:
        if not isinstance(self, Foreign):
            _warn_of_unknown_variables(ctx.find_root().command, self)
        try:
            return super().invoke(ctx)
        except PgcdcError as error:
            if error.hint == ErrorKind.USAGE.rule.hint:
                error.hint = f"see {ctx.command_path} --help"
            raise

    def get_help_option(self, ctx: ClickContext) -> ClickParameter:
        return _printing_help(super().get_help_option(ctx))

    def get_params(self, ctx: ClickContext) -> list[ClickParameter]:
        return list(map(_without_pydantic, super().get_params(ctx)))

    def collect_usage_pieces(self, ctx: ClickContext) -> list[str]:
        pieces = [str(self.options_metavar)]
        for parameter in self.get_params(ctx):
            if parameter.param_type_name == "argument":
                more = "..." if parameter.nargs != 1 else ""
                pieces.append(value_name(parameter) + more)
        return pieces

    def format_options(self, ctx: ClickContext, formatter: ClickFormatter) -> None:
        _format_parameters(self.get_params(ctx), ctx, formatter)


class Foreign(Command):
    """A command with another program's options: pgcdc's variables, configuration and options don't apply.

    `statuses` are its exit statuses, in place of those in `errors.py`.
    """

    statuses: ClassVar[dict[int, str]]


class Group(TyperGroup):
    """A group that shows its help if no command is given.

    `summaries` are the help's lines for commands that aren't imported for it.
    """

    summaries: Mapping[str, str] = MappingProxyType({})

    def list_commands(self, ctx: ClickContext) -> list[str]:  # noqa: ARG002 - the contract's
        return list(self.commands)

    def parse_args(self, ctx: ClickContext, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            sys.stderr.write(ctx.get_help() + "\n")
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: ClickContext, args: list[str]
    ) -> tuple[str | None, ClickCommand | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except typer.TyperException as error:
            vars(error).setdefault("possibilities", self._resembling(args[0]))
            raise

    def _resembling(self, word: str) -> list[str]:
        """List what may be meant by a word that is no command: a part of a name, or a member's name."""
        groups = [(name, getattr(command, "commands", {})) for name, command in self.commands.items()]
        begun = [name for name in self.commands if name.startswith(word)]
        members = [f"{name} {word}" for name, group in groups if word in group]
        only = next((found for found in (begun, members) if len(found) == 1), None)
        return only or nearest(word, list(self.commands), 1)

    def get_help_option(self, ctx: ClickContext) -> ClickParameter:
        return _printing_help(super().get_help_option(ctx))

    def get_params(self, ctx: ClickContext) -> list[ClickParameter]:
        return list(map(_without_pydantic, super().get_params(ctx)))

    def format_options(self, ctx: ClickContext, formatter: ClickFormatter) -> None:
        _format_parameters(self.get_params(ctx), ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: ClickContext, formatter: ClickFormatter) -> None:
        if not self.summaries:
            super().format_commands(ctx, formatter)
            return
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries.items()))

    def format_help_text(self, ctx: ClickContext, formatter: ClickFormatter) -> None:
        """Save two lines in the top-level help, which must fit a screen together with the prompt."""
        if ctx.parent is None:
            formatter.write(f"  {self.help}")
        else:
            super().format_help_text(ctx, formatter)

    def format_epilog(self, ctx: ClickContext, formatter: ClickFormatter) -> None:
        """Save two more lines."""
        if ctx.parent is None:
            formatter.write(f"  Example: {' '.join(example_lines(self))}\n")
        else:
            super().format_epilog(ctx, formatter)


def _printing_help(option: ClickParameter) -> ClickParameter:
    """Let --help print like everything else: a failure to write raises OUTPUT."""
    option.callback = _print_help
    return option


def _print_help(ctx: ClickContext, _option: ClickParameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        write(ctx.get_help())
        flush()
        raise typer.Exit


def _format_parameters(
    parameters: list[ClickParameter], ctx: ClickContext, formatter: ClickFormatter
) -> None:
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in parameters:
        record = parameter.get_help_record(ctx)
        if record is not None:
            is_argument = parameter.param_type_name == "argument"
            name = value_name(parameter) if is_argument else record[0]
            repeatable = "  [repeatable]" if getattr(parameter, "multiple", False) else ""
            sections.setdefault(panel(parameter), []).append((name, record[1] + repeatable))
    for name in sorted(sections, key=_section_order):
        with formatter.section(name):
            formatter.write_dl(sections[name])


def panel(parameter: ClickParameter) -> str:
    """Return the heading of a parameter in the help."""
    if parameter.param_type_name == "argument":
        return "Arguments"
    return parameter.rich_help_panel or "Options"


def _section_order(name: str) -> int:
    return {"Arguments": 0, "Options": 1}.get(name, 2)


def new_app(*, summary: str | None = None, epilog: str | None = None) -> typer.Typer:
    """Make a Typer application without Rich (slow to import), with `-?` for help, since -h is the host."""
    return typer.Typer(
        cls=Group,
        # The group does it itself.
        suggest_commands=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings=HELP_NAMES,
        help=summary,
        epilog=epilog,
    )


def examples(*lines: str) -> str:
    r"""Make a command's epilog; `\b` keeps Click from reflowing its lines."""
    heading = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join(["\b", heading, *(f"  {line}" for line in lines)])


def example_lines(command: ClickCommand) -> list[str]:
    """Return the command lines that were given to `examples`."""
    return [line.strip() for line in (command.epilog or "").splitlines()[2:]]


class LazyCommands(Mapping[str, ClickCommand]):
    """A group's commands, each built when it is first used, so that nothing waits for the others' imports."""

    def __init__(self, names: Iterable[str], make: Callable[[str], ClickCommand]) -> None:
        self._made: dict[str, ClickCommand | None] = dict.fromkeys(names)
        self._make = make

    def __getitem__(self, name: str) -> ClickCommand:
        if self._made[name] is None:
            self._made[name] = self._make(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def build(
    app: typer.Typer, summaries: Mapping[str, str], import_command: Callable[[str], ClickCommand]
) -> ClickCommand:
    """Build the command tree, with a variable for every option, and the `ANYWHERE` options on every command.

    `summaries` are the help's lines for commands that are imported when they are used. The app's own commands
    come after them, and have no line.
    """
    root: ClickCommand = typer.main.get_command(app)
    own = root.commands
    _name_variables(root)
    anywhere = [parameter for parameter in root.params if parameter.name in ANYWHERE]

    def make(name: str) -> ClickCommand:
        made = own[name] if name in own else import_command(name)
        for _, command in walk(made):
            if not isinstance(command, Foreign):
                _name_variables(command)
                command.params.extend(map(_behind_command, anywhere))
        return made

    root.commands, root.summaries = LazyCommands([*summaries, *own], make), summaries
    return root


def _name_variables(command: ClickCommand) -> None:
    for parameter in command.params:
        parameter.envvar = environment_variable(parameter)
        parameter.show_envvar = False


def _without_pydantic(parameter: ClickParameter) -> ClickParameter:
    """Let Typer convert a parameter's value only if it has to: for that, it imports Pydantic."""
    parameter.process_value = partial(_process_value, parameter)
    return parameter


def _process_value(parameter: ClickParameter, ctx: ClickContext, value: object) -> object:
    if _is_empty_name(parameter, value) and not isinstance(ctx.command, Foreign):
        raise typer.BadParameter("the name is empty", ctx=ctx, param=parameter)
    if _item_type(parameter) is Path:
        value = _as_path(value)
    if not _is_converted(parameter, value):
        try:
            return type(parameter).process_value(parameter, ctx, value)
        except typer.BadParameter as error:
            error.message = _in_our_words(error.message, value)
            raise
    return value if parameter.callback is None else parameter.callback(ctx, parameter, value)


def _in_our_words(message: str, value: object) -> str:
    """Say what is wrong with a value, where Pydantic's message says only what it should be."""
    for theirs, ours in _PYDANTIC_MESSAGES.items():
        if match := theirs.match(message):
            return f'"{value}" {match.expand(ours)}'
    return message


def _is_empty_name(parameter: ClickParameter, value: object) -> bool:
    """Whether a name is empty, as when a script's variable isn't set.

    As a path it would be the current folder. An empty user name is left to libpq.
    """
    given = value if isinstance(value, list | tuple) else (value,)
    return "" in given and value_name(parameter) in _NAMES and parameter.name != "username"


def _item_type(parameter: ClickParameter) -> Any:  # noqa: ANN401 - a type or a form, such as Literal["a"]
    annotation = parameter.type_descriptor.annotation
    return get_args(annotation)[0] if parameter.type_descriptor.is_list else annotation


def _as_path(value: object) -> object:
    """Convert a text, or several, to paths."""
    if isinstance(value, str):
        return Path(value)
    return tuple(map(_as_path, value)) if isinstance(value, list | tuple) else value


def _is_converted(parameter: ClickParameter, value: object) -> bool:
    if value is None or value == ():
        return not parameter.required
    described = parameter.type_descriptor
    if described.is_choice or described.parameter_info.parser is not None:
        return not described.is_list and value in choices(parameter)
    items = value if described.is_list and isinstance(value, list | tuple) else (value,)
    return all(isinstance(item, _item_type(parameter)) for item in items)


def walk(
    command: ClickCommand, path: tuple[str, ...] = ("pgcdc",)
) -> Iterator[tuple[tuple[str, ...], ClickCommand]]:
    """Yield every command with the words that call it, a group before its members."""
    yield path, command
    for name, member in getattr(command, "commands", {}).items():
        yield from walk(member, (*path, name))


def environment_variable(parameter: ClickParameter) -> str | None:
    """Return an option's environment variable: `PGCDC_STATUS_INTERVAL` for --status-interval."""
    if parameter.param_type_name != "option" or parameter.name in NOT_FROM_ENVIRONMENT:
        return None
    return _PREFIX + long_name(parameter).upper().replace("-", "_")


def long_name(parameter: ClickParameter) -> str:
    """Return an option's name as a configuration file has it: `status-interval`."""
    return next(str(option)[2:] for option in parameter.opts if option.startswith("--"))


def value_name(parameter: ClickParameter) -> str:
    """Return the placeholder of an option's value, such as `FILE` or `jsonl|arrow`; empty for a flag."""
    if parameter.param_type_name == "option" and (parameter.is_flag or parameter.count):
        return ""
    return str(parameter.metavar or "|".join(choices(parameter)) or parameter.name.upper())


def choices(parameter: ClickParameter) -> list[str]:
    """List the values that a parameter can have; empty if it isn't limited to some."""
    return [str(choice) for choice in parameter.type_descriptor.choices or ()]


def summary(command: ClickCommand) -> str:
    """Return the first paragraph of a command's help, without its full stop."""
    return " ".join((command.help or "").partition("\n\n")[0].split()).rstrip(".")


def _warn_of_unknown_variables(root: ClickCommand, command: Command) -> None:
    """Warn about mistyped variables. All commands are imported for one that isn't of `command`."""
    given = {name for name, value in os.environ.items() if value and name.startswith(_PREFIX)}
    given = {name for name in given - _OTHER_VARIABLES if not name.startswith(_OF_A_SERVICE)}
    unknown = given - set(map(environment_variable, [*root.params, *command.params]))
    if not unknown:
        return
    others = [other for _, other in walk(root) if not isinstance(other, Foreign)]
    known = {environment_variable(option) for other in others for option in other.params}
    endings = [name.removeprefix(_PREFIX) for name in known if name is not None]
    for name in sorted(unknown - known):
        near = nearest(name.removeprefix(_PREFIX), sorted(endings), 1)
        meant = f"; did you mean {_PREFIX}{near[0]}?" if near else ""
        warn(f"environment variable {name} is of no option, and has no effect{meant}")


def _behind_command(parameter: ClickParameter) -> ClickParameter:
    """Copy an option to a command: hidden from its help, and without reading the defaults again."""
    twin = copy.copy(parameter)
    twin.hidden, twin.expose_value, twin.envvar, twin.default = True, False, None, None
    return twin


def usage_error(reason: str) -> typer.BadParameter:
    """Make a usage error to raise inside a command; the hint then names the command's help."""
    return typer.BadParameter(reason)


def refuse_unmatched(patterns: Sequence[str]) -> None:
    """Raise USAGE if patterns of --table match nothing: after the work is done, or if there is none."""
    named = ", ".join(f'"{pattern}"' for pattern in patterns)
    if named:
        raise PgcdcError(
            ErrorKind.USAGE,
            f"could not find {named}: no table with changes matches --table",
            hint="a pattern is like schema.table, with * and ?, in quotes: 'public.*'",
        )
