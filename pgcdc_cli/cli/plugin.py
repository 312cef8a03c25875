"""What the server's plugin is asked for: the options, and what of them goes together."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pgcdc_cli.cli import units
from pgcdc_cli.cli.options import usage_error

if TYPE_CHECKING:
    from pgcdc_cli.formats.base import Format
    from pgcdc_cli.formats.raw import RawFormat

SERVER = "What the server sends"

ProtoVersion = Annotated[
    int | None,
    typer.Option(
        min=1, max=4, metavar="N", help="pgoutput's protocol. Default: the newest.", rich_help_panel=SERVER
    ),
]
Streaming = Annotated[
    Literal["off", "on", "parallel"] | None,
    typer.Option(
        help="Large transactions before they commit. Default: the server's best.", rich_help_panel=SERVER
    ),
]
TwoPhase = Annotated[
    bool,
    typer.Option("-t", "--two-phase", help="Prepared transactions at PREPARE.", rich_help_panel=SERVER),
]
TwoPhaseAt = Annotated[
    Literal["commit", "prepare"],
    typer.Option(
        help="Write their changes at COMMIT PREPARED, or at PREPARE (implies -t).", rich_help_panel=SERVER
    ),
]
Binary = Annotated[
    bool, typer.Option("--binary", help="Values in binary on the wire; same output.", rich_help_panel=SERVER)
]
Messages = Annotated[
    bool, typer.Option("--messages", help="Logical decoding messages, too.", rich_help_panel=SERVER)
]
Origin = Annotated[
    Literal["any", "none"] | None,
    typer.Option(help="none: only changes made on this server.", rich_help_panel=SERVER),
]
SpoolLimit = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        callback=units.checked(units.size),
        help="Stop where uncommitted transactions take more.",
        rich_help_panel=SERVER,
    ),
]
PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "-o", "--option", metavar="NAME=VALUE", help="For the server's plugin.", rich_help_panel=SERVER
    ),
]

OWN_OPTIONS = {
    "proto_version": "use --proto-version",
    "publication_names": "use --publication",
    "streaming": "use --streaming",
    "two_phase": "use --two-phase",
    "binary": "use --binary",
    "messages": "use --messages",
    "origin": "use --origin",
}
"""pgoutput's options that are options of pgcdc."""


def plugin_options(publications: list[str], given: list[str], *, raw: bool) -> Mapping[str, str]:
    """Options of START_REPLICATION that are the same for every server.

    Without publications only a raw stream of another plugin can be meant; it takes any option.
    """
    options = dict(_name_and_value(item) for item in given)
    if raw and not publications:
        return options
    if not publications:
        raise usage_error("--publication is missing")
    for name in options:
        if name in OWN_OPTIONS:
            raise usage_error(f"-o {name}: {OWN_OPTIONS[name]}")
    from pgcdc_cli.replication.commands import publication_names

    return options | {"publication_names": publication_names(publications)}


def check_two_phase(
    form: "type[Format | RawFormat]", *, at_prepare: bool, two_phase: bool, keeps: bool
) -> None:
    """Refuse what can't be done about prepared transactions; `keeps`: the output has a checkpoint."""
    if at_prepare and not form.capabilities.transactions:
        raise usage_error(f"--two-phase-at prepare: --format {form.name} can't tell how a transaction ended")
    if two_phase and not at_prepare and not keeps and form.decodes:
        raise usage_error(
            "--two-phase: nothing keeps a prepared transaction until it commits;"
            " use -f or -D, or --two-phase-at prepare"
        )


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise usage_error(f'-o: "{text}" is not NAME=VALUE')
    return name, value
