"""Defaults from a TOML file: options by their long names, for every command or in a command's own section.

dbname = "shop"

[stream]
slot = "shop"
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from pgcdc_cli.cli.command_tree import (
    NOT_FROM_ENVIRONMENT,
    ClickCommand,
    ClickParameter,
    Foreign,
    long_name,
)
from pgcdc_cli.errors import ErrorKind, PgcdcError

LARGEST = 1 << 20
"""Characters of a file, at most: a device such as /dev/zero has no end."""

Defaults: TypeAlias = dict[str, Any]
"""Click's default_map: values by parameter name; those of a member command are under its name."""


def read_defaults(path: Path, root: ClickCommand) -> Defaults:
    """Read a file and check it against the command tree. Raises USAGE, which names what is wrong."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise _bad_file(path, f"it has more than {LARGEST >> 20} MB")
        content = tomllib.loads(text)
    except OSError as error:
        reason = error.strerror or str(error)
        hint = "check --config, and the file's permissions"
        raise PgcdcError(ErrorKind.USAGE, f'could not read "{path}": {reason}', hint=hint) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _bad_file(path, str(error)) from error
    except RecursionError as error:
        raise _bad_file(path, "it is nested too deeply") from error
    except ValueError as error:
        # Python reads no such integer, and says how to have it do so.
        raise _bad_file(path, "a number has thousands of digits") from error
    try:
        return _defaults(root, content, "", {})
    except ValueError as error:
        raise _bad_file(path, str(error)) from error


def _bad_file(path: Path, reason: str) -> PgcdcError:
    return PgcdcError(
        ErrorKind.USAGE,
        f'could not read "{path}": {reason}',
        hint="options have their long names there, a command's own under [command]: see pgcdc(1)",
    )


def _defaults(
    command: ClickCommand, content: Mapping[str, Any], prefix: str, inherited: Defaults
) -> Defaults:
    """Combine a section's values with those of the sections around it, for a command and its members."""
    members = getattr(command, "commands", {})
    sections = {name: value for name, value in content.items() if isinstance(value, dict)}
    given = {name: value for name, value in content.items() if name not in sections}
    options = _options_below(command)
    _refuse_unknown(sections, members, prefix, "command")
    _refuse_unknown(given, options, prefix, "option")
    own = {name: _value(options[name], value, f'"{prefix}{name}"') for name, value in given.items()}
    values = {**inherited, **own}
    defaults: Defaults = {
        option.name: values[long_name(option)] for option in _options(command) if long_name(option) in values
    }
    # Skip commands without options: `help` is both a command and an option.
    for name, member in members.items():
        if not _options_below(member):
            continue
        defaults[name] = _defaults(member, sections.get(name, {}), f"{prefix}{name}.", values)
    return defaults


def _refuse_unknown(given: Iterable[str], known: Iterable[str], prefix: str, kind: str) -> None:
    for name in given:
        if name not in set(known):
            raise ValueError(f'no such {kind}: "{prefix}{name}"')


def _options(command: ClickCommand) -> list[ClickParameter]:
    if isinstance(command, Foreign):
        return []
    return [
        parameter
        for parameter in command.params
        if parameter.param_type_name == "option"
        and parameter.name not in NOT_FROM_ENVIRONMENT | {"config"}
        and parameter.expose_value
    ]


def _options_below(command: ClickCommand) -> dict[str, ClickParameter]:
    """Return the options of a command and its members by name: a group's section applies to all of them."""
    options: dict[str, ClickParameter] = {}
    for member in getattr(command, "commands", {}).values():
        options |= _options_below(member)
    return options | {long_name(option): option for option in _options(command)}


def _value(option: ClickParameter, value: object, name: str) -> bool | str | list[str]:
    """Convert a value to what the command line would give: text, a list of texts, or a flag's boolean."""
    if option.is_flag and not option.count:
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false")
        return value
    if option.multiple:
        return [_text(item, name) for item in (value if isinstance(value, list) else [value])]
    return _text(value, name)


def _text(value: object, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{name} must be text or a number")  # noqa: TRY004 - a wrong file, not a wrong call
    text = str(value)
    if "\0" in text:
        raise ValueError(f"{name} has a NUL, which no name and no path can have")
    return text
