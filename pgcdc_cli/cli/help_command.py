"""`pgcdc help`: the same as --help, for those who write it in front."""

from typing import Annotated

import typer

from pgcdc_cli.cli.command_tree import ClickContext, Command, examples
from pgcdc_cli.cli.printing import write


def register(app: typer.Typer) -> None:
    """Add `help`; hidden, since the first help shows the commands already."""
    app.command(
        "help",
        cls=Command,
        hidden=True,
        epilog=examples("pgcdc help", "pgcdc help stream", "pgcdc help slot create"),
    )(help_command)


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
