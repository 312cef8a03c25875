"""`pgcdc slot`: create, inspect, change and drop replication slots."""

import json as json_text
import sys
from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pgcdc_cli.cli import units
from pgcdc_cli.cli.command_tree import Command, examples, new_app, usage_error
from pgcdc_cli.cli.connection_options import connecting
from pgcdc_cli.cli.printing import facts, say, warn, write
from pgcdc_cli.cli.slot_view import slot_content, slot_lines, slot_table
from pgcdc_cli.cli.watch import Interval, Watch, repeat
from pgcdc_cli.errors import ErrorKind, PgcdcError, hints

if TYPE_CHECKING:
    from pgcdc_cli.catalog import Catalog, Slot
    from pgcdc_cli.replication.connection import ReplicationConnection

app = new_app(
    summary="Create, inspect, change and drop replication slots.",
    epilog=examples("pgcdc slot create shop_slot -d shop", "pgcdc slot list -d shop"),
)


def register(root: typer.Typer) -> None:
    """Add `slot` with its members."""
    root.add_typer(app, name="slot")


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the slot.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")]


@app.command("create", cls=Command, epilog=examples("pgcdc slot create shop_slot -d shop"))
@connecting
def create(  # noqa: PLR0913 - a command's options
    name: Name,
    *,
    conninfo: str,
    plugin: Annotated[
        str, typer.Option("-P", "--plugin", metavar="NAME", help="Logical decoding plugin.")
    ] = "pgoutput",
    two_phase: Annotated[
        bool, typer.Option("-t", "--two-phase", help="Send prepared transactions at PREPARE.")
    ] = False,
    failover: Annotated[
        bool, typer.Option("--failover", help="Synchronize the slot to standbys (PostgreSQL 17).")
    ] = False,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Accept an existing slot of the same plugin.")
    ] = False,
    json: Json = False,
) -> None:
    """Create a logical replication slot.

    Prints its name and its consistent point: every transaction that commits after it will be streamed. Create
    the publication first: it must exist at every point of the WAL that the slot reads.
    """
    from pgcdc_cli.replication.commands import check_slot_name
    from pgcdc_cli.replication.connection import ReplicationConnection

    check_slot_name(name)
    exists = (
        f"if it will do: --if-not-exists; else choose another name, or drop it first: pgcdc slot drop {name}"
    )
    try:
        with hints({ErrorKind.SLOT_EXISTS: exists}), ReplicationConnection(conninfo) as connection:
            created, position = connection.create_slot(name, plugin, two_phase=two_phase, failover=failover)
    except PgcdcError as error:
        if not if_not_exists or error.kind is not ErrorKind.SLOT_EXISTS:
            raise
        slot = _existing(conninfo, name, plugin)
        created, position = name, slot.position(f'create slot "{name}"')
        say(f'slot "{name}" already exists')
        _warn_of_missing(slot, two_phase=two_phase, failover=failover)
    if json:
        write(json_text.dumps({"slot": created, "consistent_point": str(position)}))
    else:
        write(f"{created} {position}")


def _existing(conninfo: str, name: str, plugin: str) -> "Slot":
    """Find an existing slot that will do. Raises SLOT_EXISTS if it doesn't, or the error of its state."""
    slot, database = _find_from(conninfo, name)
    reason = None
    if slot.plugin is None:
        reason = "it exists, and is a physical slot"
    elif slot.temporary:
        reason = "it exists, and is a temporary slot of another session"
    elif slot.plugin != plugin:
        reason = f"one exists whose plugin is {slot.plugin}"
    elif slot.database != database:
        reason = f'one exists in database "{slot.database}"'
    if reason is not None:
        raise PgcdcError(
            ErrorKind.SLOT_EXISTS,
            f'could not create slot "{name}": {reason}',
            hint=f"choose another name, or drop it with: pgcdc slot drop {name}",
        )
    _check_is_own(slot, "create")
    _check_not_lost(slot, "create")
    return slot


def _warn_of_missing(slot: "Slot", *, two_phase: bool, failover: bool) -> None:
    """Warn if an existing slot lacks what it was to be created with."""
    if failover and not slot.failover:
        warn(f'slot "{slot.name}" has no failover: pgcdc slot alter {slot.name} --failover changes that')
    if two_phase and not slot.two_phase:
        warn(f'slot "{slot.name}" is not two-phase: pgcdc stream --two-phase changes that')


@app.command("drop", cls=Command, epilog=examples("pgcdc slot drop shop_slot -d shop --if-exists"))
@connecting
def drop(
    name: Name,
    *,
    conninfo: str,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Succeed if there is no such slot.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the slot is no longer in use.")] = False,
    yes: Yes = False,
) -> None:
    """Drop a replication slot, and release the WAL that it retains.

    Asks first if standard input and standard error are terminals, unless --yes is given; elsewhere it drops
    the slot without a question.
    """
    from pgcdc_cli.replication.connection import ReplicationConnection

    in_the_way = {
        ErrorKind.SLOT_ACTIVE: f"stop what is reading it (see pgcdc slot show {name}), or add --wait",
    }
    try:
        with hints(in_the_way), ReplicationConnection(conninfo) as connection:
            slot = _slot_seen_by(connection, name)
            droppable = wait or slot.active_pid is None
            if droppable and not yes and sys.stdin.isatty() and sys.stderr.isatty():
                _ask(f'Drop slot "{name}" and the changes that are still to be read from it?')
            if wait and slot.active_pid is not None:
                say(f'slot "{name}" is active for PID {slot.active_pid}: waiting for its end')
            connection.drop_slot(name, wait=wait)
    except PgcdcError as error:
        if not if_exists or error.kind is not ErrorKind.SLOT_MISSING:
            raise
        say(f'slot "{name}" does not exist')


def _slot_seen_by(connection: "ReplicationConnection", name: str) -> "Slot":
    from pgcdc_cli.catalog import Catalog

    catalog = Catalog(connection.here)
    with catalog.over(connection.own_session):
        return _named(catalog, name)


@app.command("peek", cls=Command, epilog=examples("pgcdc slot peek shop_slot -d shop --limit 10"))
@connecting
def peek(
    name: Name,
    *,
    conninfo: str,
    publication: Annotated[
        list[str] | None,
        typer.Option("--publication", metavar="NAME", help="Publication to read. Default: all of them."),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, help="Transactions to print; of raw output, all.")
    ] = 100,
    file_format: Annotated[
        Literal["pretty", "jsonl", "raw"], typer.Option("--format", help="Output format.")
    ] = "pretty",
    json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
) -> None:
    """Print a slot's next changes without consuming them.

    Reads a temporary copy of the slot up to the current end of the WAL; the slot's next reader still gets all
    of it. Changes of pgoutput are decoded, and invalid text is escaped; the output of other plugins is
    printed as it is.
    """
    from pgcdc_cli.catalog import Catalog
    from pgcdc_cli.cli.stream import stream

    file_format = "jsonl" if json else file_format
    slot = _find(conninfo, name)
    raw = slot.plugin != "pgoutput" or file_format == "raw"
    remedies: dict[ErrorKind, str] = {}
    if publication is None and slot.plugin == "pgoutput":
        with Catalog(conninfo) as catalog:
            publication = _publications(catalog)
        if not publication:
            raise PgcdcError(
                ErrorKind.PUBLICATION,
                f'could not peek at slot "{name}": this database has no publication',
                hint=f"the slot's are in database {slot.database}: choose it with -d, or create one with:"
                " pgcdc publication create NAME",
            )
        if len(publication) > 1:
            # One may be newer than the slot's changes, or not go together with another one.
            remedies[ErrorKind.PUBLICATION] = _CHOOSE_HINT
    with hints(remedies):
        stream(
            conninfo=conninfo,
            slot=name,
            publication=publication,
            file_format="raw" if raw else file_format,
            peek=True,
            endpos="now",
            # Raw output has no transactions to count.
            max_transactions=None if raw else str(limit),
            no_loop=True,
            progress=False,
            invalid_text=None if raw else "escape",
        )


_CHOOSE_HINT = "name the publication with which the slot is read: --publication NAME"


def _publications(catalog: "Catalog") -> list[str]:
    """Return all publications whose names can be sent to the server."""
    names = [one.name for one in catalog.publications()]
    unnameable = catalog.missing_publications(names)
    for name in unnameable:
        warn(f'publication "{name}" is left out: its name is not valid text')
    return [name for name in names if name not in unnameable]


@app.command("advance", cls=Command, epilog=examples("pgcdc slot advance shop_slot -d shop --to now"))
@connecting
def advance(
    name: Name,
    *,
    conninfo: str,
    to: Annotated[
        str,
        typer.Option(
            metavar="LSN|now",
            callback=units.checked(units.end_position),
            help="New position; now: the current end of the WAL.",
        ),
    ],
    yes: Yes = False,
) -> None:
    """Move a slot forward, and skip the changes in between for good.

    Prints its name and new position. A directory that was streamed from this slot will find a gap. A position
    beyond the end of the WAL is refused. Asks first; if standard input is no terminal, --yes is needed.
    """
    from pgcdc_cli.catalog import Catalog

    target = units.end_position(to)
    with Catalog(conninfo) as catalog:
        slot, server = _named(catalog, name), catalog.facts()
    _check_is_own(slot, "advance")
    _check_not_lost(slot, "advance")
    if server.version < 170000:
        _check_is_here(slot, server.database, f'advance slot "{name}"', "advanced")
    at = slot.confirmed_flush_lsn or slot.restart_lsn
    if at is None:
        raise _usage(
            f'could not advance slot "{name}": it has no position yet, and retains no WAL',
            "a physical slot gets its position from its first reader, such as a standby",
        )
    if target is not None and target < at:
        raise _usage(
            f'could not advance slot "{name}" to {target}: it is already at {at}',
            "a slot only moves forward: what is confirmed may be gone",
        )
    in_use = {ErrorKind.SLOT_ACTIVE: f"stop what is reading it: see pgcdc slot show {name}"}
    with hints(in_use), Catalog(conninfo) as catalog:
        end = catalog.log_end()
        if target is not None and target > end:
            # The server would silently advance to the end of its WAL, for good.
            raise _usage(
                f'could not advance slot "{name}" to {target}: the server\'s WAL ends before that, at {end}',
                "--to now goes to its end",
            )
        if not yes:
            _ask(f'Skip the changes of slot "{name}" from {at} to {to} for ever?')
        write(f"{name} {catalog.advance_slot(name, target)}")


def _check_is_here(slot: "Slot", database: str, doing: str, done: str) -> None:
    """Raise USAGE for a slot of another database than the one that we are connected to."""
    if slot.database not in {database, None}:
        raise _usage(
            f'could not {doing}: it belongs to database "{slot.database}"',
            f"with -d {quote(str(slot.database))} it can be {done}",
        )


def _check_is_own(slot: "Slot", doing: str) -> None:
    """Raise SLOT_SYNCED for a standby's copy of a slot, which only changes together with the primary's."""
    if slot.synced:
        raise PgcdcError(
            ErrorKind.SLOT_SYNCED,
            f'could not {doing} slot "{slot.name}": this standby is synchronizing it from the primary',
            hint=f"{doing} it on the primary: the standby has a copy of it",
        )


def _check_not_lost(slot: "Slot", doing: str) -> None:
    if slot.lost:
        raise PgcdcError(
            ErrorKind.SLOT_INVALIDATED, f'could not {doing} slot "{slot.name}": invalidated ({slot.lost})'
        )


def _usage(message: str, hint: str) -> PgcdcError:
    return PgcdcError(ErrorKind.USAGE, message, hint=hint)


def _ask(question: str) -> None:
    """End the command unless the user at the terminal agrees. Raises USAGE without a terminal."""
    if not sys.stdin.isatty():
        raise _usage(
            "could not ask: standard input is not a terminal",
            "add --yes if you are sure",
        )
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise PgcdcError(ErrorKind.USAGE, "could not continue: you did not agree", hint="nothing was changed")


@app.command("copy", cls=Command, epilog=examples("pgcdc slot copy shop_slot second_slot -d shop"))
@connecting
def copy(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The existing slot.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The slot to create.")],
    *,
    conninfo: str,
) -> None:
    """Create a second slot at the position of an existing one.

    Prints its name and position. The server does not copy two-phase and failover.
    """
    from pgcdc_cli.catalog import Catalog
    from pgcdc_cli.replication.commands import check_slot_name

    check_slot_name(new)
    exists = "choose another name: pgcdc slot list shows those that exist"
    with hints({ErrorKind.SLOT_EXISTS: exists}), Catalog(conninfo) as catalog:
        slot = _named(catalog, old)
        _check_not_lost(slot, "copy")
        doing = f'copy slot "{old}" to "{new}"'
        if slot.plugin is None:
            hint = "SELECT pg_copy_physical_replication_slot(...) copies it"
            raise _usage(f"could not {doing}: it is a physical slot", hint)
        # The server would make a slot of this database, with its changes.
        _check_is_here(slot, catalog.facts().database, doing, "copied")
        slot.position(doing)
        position = catalog.copy_slot(old, new)
    write(f"{new} {position}")


@app.command("alter", cls=Command, epilog=examples("pgcdc slot alter shop_slot -d shop --failover"))
@connecting
def alter(
    name: Name,
    *,
    conninfo: str,
    failover: Annotated[
        bool | None,
        typer.Option("--failover/--no-failover", help="Synchronize the slot to standbys (PostgreSQL 17)."),
    ] = None,
    two_phase: Annotated[
        bool | None,
        typer.Option(
            "--two-phase/--no-two-phase", help="Send prepared transactions at PREPARE (PostgreSQL 18)."
        ),
    ] = None,
) -> None:
    """Change the options of a slot that is not in use."""
    from pgcdc_cli.replication.connection import ReplicationConnection

    if failover is None and two_phase is None:
        raise usage_error("nothing to change: give --failover or --two-phase, or their --no- forms")
    slot, database = _find_from(conninfo, name)
    _check_is_own(slot, "alter")
    _check_not_lost(slot, "alter")
    if slot.plugin is None:
        raise _usage(
            f'could not alter slot "{name}": it is a physical slot',
            "failover and two-phase are properties of logical slots",
        )
    if slot.active_pid is not None:
        # The server would wait until the slot is inactive, however long that takes.
        raise PgcdcError(
            ErrorKind.SLOT_ACTIVE,
            f'could not alter slot "{name}": it is active for PID {slot.active_pid}',
            hint=f"stop what is reading it: see pgcdc slot show {name}",
        )
    if two_phase and slot.plugin != "pgoutput":
        raise _usage(
            f'could not alter slot "{name}": two-phase can be enabled later only for pgoutput',
            "create another slot with --two-phase, and read the old one to its end first",
        )
    if two_phase and slot.database != database:
        raise _usage(
            f'could not alter slot "{name}": two-phase is enabled only in its own database',
            f"with -d {quote(str(slot.database))} it can be enabled",
        )
    with ReplicationConnection(conninfo) as connection:
        connection.alter_slot(name, failover=failover, two_phase=two_phase)


@app.command(
    "list",
    cls=Command,
    epilog=examples(
        "pgcdc slot list -d shop", "pgcdc slot list -d shop --json", "pgcdc slot list -d shop --watch"
    ),
)
@connecting
def list_slots(*, conninfo: str, json: Json = False, watch: Watch = False, interval: Interval = "2s") -> None:
    """List the server's replication slots, of all databases.

    RETAINED is the WAL that a slot keeps on the server's disk; LAG is the part that is not yet confirmed;
    SAFE is how much more may be written before the slot is in danger (max_slot_wal_keep_size). Some columns
    are left out on a narrow terminal. --json prints one object per line, with sizes in bytes.
    """
    from pgcdc_cli.catalog import Catalog

    def view() -> Iterator[str]:
        with Catalog(conninfo) as catalog:
            slots = catalog.slots()
        return (json_text.dumps(slot_content(slot)) for slot in slots) if json else iter(slot_table(slots))

    if watch:
        repeat(units.duration(interval), view)
        return
    for line in view():
        write(line)


@app.command("show", cls=Command, epilog=examples("pgcdc slot show shop_slot -d shop"))
@connecting
def show(name: Name, *, conninfo: str, json: Json = False) -> None:
    """Show one replication slot."""
    slot = _find(conninfo, name)
    if json:
        write(json_text.dumps(slot_content(slot)))
    else:
        for line in facts(slot_lines(slot)):
            write(line)


def _find(conninfo: str, name: str) -> "Slot":
    from pgcdc_cli.catalog import Catalog

    with Catalog(conninfo) as catalog:
        return _named(catalog, name)


def _find_from(conninfo: str, name: str) -> "tuple[Slot, str]":
    """Look a slot up, and the database that we are connected to."""
    from pgcdc_cli.catalog import Catalog

    with Catalog(conninfo) as catalog:
        return _named(catalog, name), catalog.facts().database


def _named(catalog: "Catalog", name: str) -> "Slot":
    """Look a slot up. The server would cut off a name that is too long, and take another slot."""
    slot = catalog.slot(name)
    if slot is None:
        raise PgcdcError(
            ErrorKind.SLOT_MISSING,
            f'could not find slot "{name}": it does not exist',
            hint=catalog.other_slots(name, "see which exist with: pgcdc slot list"),
        )
    return slot
