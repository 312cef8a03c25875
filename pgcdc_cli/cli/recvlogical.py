"""`pgcdc recvlogical`: pg_recvlogical's command line, for existing scripts; raw output of any plugin.

PostgreSQL manual, "pg_recvlogical". Called through a link of that name, pgcdc behaves as that program.
"""

import getopt
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import typer

from pgcdc_cli import __version__
from pgcdc_cli.cli.command_tree import HELP_NAMES, ClickContext, ClickParameter, Foreign, examples, value_name
from pgcdc_cli.cli.connection_options import connecting
from pgcdc_cli.cli.printing import RECVLOGICAL, fail, flush, one_line, talk, write, write_on_stderr
from pgcdc_cli.cli.running import handled
from pgcdc_cli.errors import ErrorKind, PgcdcError, hints
from pgcdc_cli.lsn import Lsn

if TYPE_CHECKING:
    from pgcdc_cli.replication.commands import PluginOptions
    from pgcdc_cli.replication.connection import ReplicationConnection
    from pgcdc_cli.replication.session import SessionKind
    from pgcdc_cli.sinks.uncheckpointed_sink import UncheckpointedSink
    from pgcdc_cli.stream.settings import RunTotals, Signals, StreamSettings

FAILED = 1
"""The exit status of every failure, as in pg_recvlogical."""

_STDOUT = "-"
_INTERVALS = {"fsync_interval": "-F/--fsync-interval", "status_interval": "-s/--status-interval"}
_LARGEST_INTERVAL = 2_147_483
"""The largest interval in seconds: pg_recvlogical keeps milliseconds in an int."""

_WHOLE_NUMBER = re.compile(r"\s*[+-]?[0-9]+\s*")
_PASSWORD = {"-w", "--no-password", "-W", "--password"}
"""Options of which the last one applies."""

_ALONE = {"-?", "--help", "-V", "--version"}
"""Options that apply alone if they are the first word."""

_GROUP_MAY_READ = 0o050
"""Mode bits of the data directory of a cluster that was initialized with --allow-group-access."""

_ACTION = "Action"
Slot = Annotated[
    str | None, typer.Option("-S", "--slot", metavar="SLOTNAME", help="Name of the replication slot.")
]
CreateSlot = Annotated[bool, typer.Option("--create-slot", help="Create the slot.", rich_help_panel=_ACTION)]
DropSlot = Annotated[bool, typer.Option("--drop-slot", help="Drop the slot.", rich_help_panel=_ACTION)]
Start = Annotated[
    bool, typer.Option("--start", help="Stream the slot into the file.", rich_help_panel=_ACTION)
]
Plugin = Annotated[
    str, typer.Option("-P", "--plugin", metavar="PLUGIN", help="Output plugin for --create-slot.")
]
TwoPhase = Annotated[
    bool,
    typer.Option(
        "-t",
        "--enable-two-phase",
        "--two-phase",
        help="With --create-slot: send prepared transactions at PREPARE.",
    ),
]
Failover = Annotated[
    bool,
    typer.Option("--enable-failover", help="With --create-slot: synchronize it to standbys (PostgreSQL 17)."),
]
IfNotExists = Annotated[
    bool, typer.Option("--if-not-exists", help="With --create-slot: accept an existing slot.")
]
File = Annotated[
    str | None, typer.Option("-f", "--file", metavar="FILE", help="File to write; - for standard output.")
]
FsyncInterval = Annotated[
    str,
    typer.Option(
        "-F", "--fsync-interval", metavar="SECS", help="Seconds between fsyncs of the file; 0: never."
    ),
]
StatusInterval = Annotated[
    str,
    typer.Option(
        "-s", "--status-interval", metavar="SECS", help="Seconds between status updates to the server."
    ),
]
Startpos = Annotated[
    str | None,
    typer.Option("-I", "--startpos", metavar="LSN", help="Start here, unless the slot is already past it."),
]
Endpos = Annotated[
    str | None, typer.Option("-E", "--endpos", metavar="LSN", help="Exit when this position is received.")
]
NoLoop = Annotated[bool, typer.Option("-n", "--no-loop", help="Don't reconnect when the connection is lost.")]
PluginOption = Annotated[
    list[str] | None,
    typer.Option("-o", "--option", metavar="NAME[=VALUE]", help="Option for the output plugin."),
]
Verbose = Annotated[
    int, typer.Option("-v", "--verbose", count=True, show_default=False, help="Print more messages.")
]


def _print_version(ctx: typer.Context, value: bool) -> None:
    if value:
        write(f"{ctx.command_path} (pgcdc) {__version__}")
        flush()
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("-V", "--version", callback=_print_version, is_eager=True, help="Print the version."),
]


class RecvLogical(Foreign):
    """Parses the command line as getopt_long does; messages begin with its name, failures exit with 1."""

    statuses: ClassVar = {
        0: "Done: the end was reached, or a signal asked to stop.",
        FAILED: "Anything else; standard error says what.",
        130: "Interrupted before anything was done.",
        141: "The reader of standard output went away, as if ended by SIGPIPE.",
    }

    def parse_args(self, ctx: ClickContext, args: list[str]) -> list[str]:
        talk.program = ctx.command_path
        with _failing():
            return super().parse_args(ctx, canonical(self.get_params(ctx), args))

    def invoke(self, ctx: ClickContext) -> object:
        with _failing():
            _check(ctx.params)
            return super().invoke(ctx)


@contextmanager
def _failing() -> Iterator[None]:
    try:
        try:
            yield
        except typer.BadParameter as error:
            raise _usage(error.message) from error
    except PgcdcError as error:
        raise typer.Exit(fail(error, FAILED)) from error


def canonical(parameters: list[ClickParameter], args: list[str]) -> list[str]:
    """Expand abbreviated names, and make each option and value a word of its own. Raises USAGE."""
    valued = {name: bool(value_name(parameter)) for parameter in parameters for name in parameter.opts}
    short = "".join(name[1:] + ":" * takes for name, takes in valued.items() if not name.startswith("--"))
    long = [name[2:] + "=" * takes for name, takes in valued.items() if name.startswith("--")]
    if args[:1] and args[0] in _ALONE:
        return args[:1]
    try:
        found, others = getopt.gnu_getopt(args, short, long)
    except getopt.GetoptError as error:
        raise _usage(_ambiguous(error, [name.rstrip("=") for name in long]) or error.msg) from error
    if others:
        raise _usage(f'too many command-line arguments (first is "{others[0]}")')
    last = next((name for name, _ in reversed(found) if name in _PASSWORD), None)
    found = [one for one in found if one[0] not in _PASSWORD or one[0] == last]
    return [word for name, value in found for word in ([name, value] if valued.get(name) else [name])]


def _ambiguous(error: getopt.GetoptError, names: Sequence[str]) -> str | None:
    """Say of an abbreviation of several names, in getopt_long's words, what it may mean."""
    # `-f` without its value is no abbreviation.
    if not error.msg.endswith("not a unique prefix"):
        return None
    candidates = [f"'--{name}'" for name in names if name.startswith(error.opt)]
    return f"option '--{error.opt}' is ambiguous; possibilities: {' '.join(candidates)}"


def _check(given: Mapping[str, object]) -> None:
    """Raise USAGE for what pg_recvlogical refuses, in its words and its order."""
    for name, option in _INTERVALS.items():
        _seconds(option, str(given[name]))
    create, drop, start = (given[name] for name in ("create_slot", "drop_slot", "start"))
    startpos = _position("start", given["startpos"])
    endpos = _position("end", given["endpos"])
    flags = {"--enable-two-phase": given["two_phase"], "--enable-failover": given["failover"]}
    refusals: dict[str, object] = {
        "no slot specified": given["slot"] is None,
        "no target file specified": start and given["file"] is None,
        "no database specified": not drop and given["dbname"] is None,
        "at least one action needs to be specified": not (drop or create or start),
        "cannot use --create-slot or --start together with --drop-slot": drop and (create or start),
        "cannot use --create-slot or --drop-slot together with --startpos": startpos and (create or drop),
        "--endpos may only be specified with --start": endpos and not start,
        **{
            f"{name} may only be specified with --create-slot": on and not create
            for name, on in flags.items()
        },
    }
    for message, refused in refusals.items():
        if refused:
            raise _usage(message)


def _usage(message: str) -> PgcdcError:
    return PgcdcError(ErrorKind.USAGE, message, hint=f'Try "{talk.program} --help" for more information.')


def _seconds(option: str, text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise _usage(f'invalid value "{text}" for option {option}')
    seconds = int(text)
    if not 0 <= seconds <= _LARGEST_INTERVAL:
        raise _usage(f"{option} must be in range 0..{_LARGEST_INTERVAL}")
    return seconds


def _position(which: str, text: object) -> Lsn | None:
    """Parse a position; 0/0 means none."""
    try:
        return (Lsn.parse(str(text)) or None) if text is not None else None
    except ValueError:
        raise _usage(f'could not parse {which} position "{text}"') from None


def register(app: typer.Typer) -> None:
    """Add `recvlogical`."""
    app.command(
        "recvlogical",
        cls=RecvLogical,
        context_settings=HELP_NAMES,
        epilog=examples(
            "pgcdc recvlogical -d shop -S audit --create-slot",
            "pgcdc recvlogical -d shop -S audit --start -f audit.log",
            "pgcdc recvlogical -d shop -S audit --drop-slot",
        ),
    )(connecting(recvlogical))


def recvlogical(  # noqa: PLR0913 - a command's options
    ctx: typer.Context,
    *,
    conninfo: str,
    create_slot: CreateSlot = False,
    drop_slot: DropSlot = False,
    start: Start = False,
    slot: Slot = None,
    plugin: Plugin = "test_decoding",
    two_phase: TwoPhase = False,
    failover: Failover = False,
    if_not_exists: IfNotExists = False,
    file: File = None,
    fsync_interval: FsyncInterval = "10",
    status_interval: StatusInterval = "10",
    startpos: Startpos = None,
    endpos: Endpos = None,
    no_loop: NoLoop = False,
    option: PluginOption = None,
    verbose: Verbose = 0,
    version: Version = False,  # noqa: ARG001 - its callback acts
) -> None:
    """A drop-in for pg_recvlogical: same options, raw output.

    Writes each message of the slot's plugin as it is, followed by a line break; the exit status is 0 or 1.
    After a lost connection, INT or TERM, nothing that was written is sent again, except a transaction that
    was only partly written. HUP reopens the file. A link named pg_recvlogical that points to pgcdc does the
    same.
    """
    from pgcdc_cli.replication.commands import Protocol
    from pgcdc_cli.replication.connection import ReplicationConnection
    from pgcdc_cli.stream.settings import RunLimits, Signals, StreamSettings

    assert slot is not None, "it was checked"
    talk.verbosity = verbose
    conninfo = _conninfo(conninfo, ctx.params)
    kind: SessionKind = "physical" if ctx.params["dbname"] is None else "default"
    signals = Signals()
    with handled(signals), _ended_by(signals, streaming=start):
        with signals.interruptible(), ReplicationConnection(conninfo, session_kind=kind) as connection:
            new = NewSlot(slot, plugin, two_phase, failover, if_not_exists)
            _drop_and_create(connection, slot if drop_slot else None, new if create_slot else None)
            mode = _file_mode(connection) if start else 0
        if not start:
            return
        settings = StreamSettings(
            conninfo=conninfo,
            slot=slot,
            publications=(),
            options=_plugin_options(option or []),
            protocol=Protocol(newest=False),
            limits=RunLimits(end_lsn=_position("end", endpos)),
            bad_file=Path(str(file)).parent / f"{slot}.bad",
            start_lsn=_position("start", startpos),
            loop=not no_loop,
            for_ever=True,
            status_interval=int(status_interval),
            session_kind=kind,
        )
        _stream(settings, _sink(str(file), mode, int(fsync_interval), signals), signals)


def _conninfo(conninfo: str, given: Mapping[str, Any]) -> str:
    """Make a connection string as pg_recvlogical does: -h, -p and -U take precedence over a given one."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    # The application name that synchronous_standby_names may have.
    own = {"fallback_application_name": RECVLOGICAL} | {
        name: given[option]
        for name, option in (("host", "host"), ("port", "port"), ("user", "username"))
        if given[option]
    }
    return make_conninfo("", **conninfo_to_dict(conninfo) | own)


@contextmanager
def _ended_by(signals: "Signals", *, streaming: bool) -> Iterator[None]:
    """Let a signal end a stream cleanly even before it begins; without --start it interrupts."""
    try:
        yield
    except KeyboardInterrupt:
        if not (signals.stop and streaming):
            raise


class NewSlot(NamedTuple):
    name: str
    plugin: str
    two_phase: bool
    failover: bool
    if_not_exists: bool


def _drop_and_create(connection: "ReplicationConnection", old: str | None, new: NewSlot | None) -> None:
    if old is not None:
        _drop(connection, old)
    if new is not None:
        _create(connection, new)


def _drop(connection: "ReplicationConnection", slot: str) -> None:
    _say(f'dropping replication slot "{slot}"')
    with hints({ErrorKind.SLOT_MISSING: "see which exist with: pgcdc slot list"}):
        connection.drop_slot(slot)


def _create(connection: "ReplicationConnection", new: NewSlot) -> None:
    _say(f'creating replication slot "{new.name}"')
    try:
        connection.create_slot(new.name, new.plugin, two_phase=new.two_phase, failover=new.failover)
    except PgcdcError as error:
        if not new.if_not_exists or error.kind is not ErrorKind.SLOT_EXISTS:
            raise


def _file_mode(connection: "ReplicationConnection") -> int:
    """Return the output's mode: readable by the group if that may read the server's data directory."""
    data_directory = int(connection.show("data_directory_mode"), 8)
    return 0o640 if data_directory & _GROUP_MAY_READ else 0o600


def _plugin_options(given: list[str]) -> "PluginOptions":
    parts = (item.partition("=") for item in given)
    return [(name, value if equals else None) for name, equals, value in parts]


def _sink(file: str, mode: int, fsync_interval: int, signals: "Signals") -> "UncheckpointedSink":
    from pgcdc_cli.directory.disk import Disk
    from pgcdc_cli.formats.raw import RawFormat
    from pgcdc_cli.sinks.sink import SinkSettings
    from pgcdc_cli.sinks.uncheckpointed_sink import STDOUT, UncheckpointedSink

    os.umask(0o777 & ~mode)
    return UncheckpointedSink(
        STDOUT if file == _STDOUT else file,
        RawFormat(),
        SinkSettings(fsync_interval=fsync_interval, waiting=signals.interruptible),
        Disk(mode),
        # As in pg_recvlogical, progress is reported even without fsync.
        fsyncs=fsync_interval > 0,
    )


def _stream(settings: "StreamSettings", sink: "UncheckpointedSink", signals: "Signals") -> None:
    from pgcdc_cli.formats.raw import RawFormat
    from pgcdc_cli.stream.run import StreamRun

    _say(f"starting log streaming at {settings.start_lsn or Lsn(0)} (slot {settings.slot})")
    run = StreamRun(settings, sink, RawFormat(), signals, Confirmations(settings.slot))
    run.run()
    if signals.stop:
        _say("received interrupt signal, exiting")
    else:
        _say(f"end position {settings.limits.end_lsn} reached at {run.totals.written_lsn}")


class Confirmations:
    """Prints, with --verbose, each new position that is confirmed to the server."""

    def __init__(self, slot: str) -> None:
        self._slot = slot
        self._told = Lsn(0)

    def __call__(self, totals: "RunTotals") -> None:
        if totals.durable_lsn != self._told:
            self._told = totals.durable_lsn
            positions = f"write up to {totals.written_lsn}, flush to {totals.durable_lsn}"
            _say(f"confirming {positions} (slot {self._slot})")


def _say(text: str) -> None:
    if talk.verbosity > 0:
        write_on_stderr(f"{talk.program}: {one_line(text)}")
