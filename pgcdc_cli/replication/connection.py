"""The connection to a walsender and its commands, up to START_REPLICATION.

The stream that this begins is handled by `copy_both.py`. PostgreSQL manual, "Streaming Replication Protocol".
"""

import logging
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import psycopg
from psycopg import sql
from psycopg.errors import Diagnostic

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication import commands, failures, session
from pgcdc_cli.replication.copy_both import NEVER, ReplicationStream
from pgcdc_cli.replication.frame_source import FrameSource
from pgcdc_cli.replication.libpq_frames import LibpqFrames
from pgcdc_cli.replication.session import connect
from pgcdc_cli.replication.socket_frames import SocketFrames

log = logging.getLogger("pgcdc")

_CREATE = {"55000": ErrorKind.USAGE, "58P01": ErrorKind.USAGE}
"""Errors of slot creation: `wal_level` is too low, or the server has no such plugin."""

_NO_PLUGIN = (
    "check the plugin's name, or install it on the server; pgoutput is always there, and with it"
    " pgcdc stream --format wal2json needs no plugin"
)

_CANCEL = 5.0
"""Seconds that a server has to cancel a command."""

_WAITS = (
    "the server creates a slot once all earlier transactions that write have ended; to see them:"
    " SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL; prepared ones:"
    " SELECT * FROM pg_prepared_xacts"
)
_STANDBY_WAITS = (
    "a standby creates a slot once its primary has logged the running transactions; to log them at once, run"
    " there:"
    " SELECT pg_log_standby_snapshot()"
)

_STANDBY_WAL_LEVEL = "set wal_level = logical in postgresql.conf, here and on the primary, and restart both"

_NO_FAILOVER = "leave it out: older servers copy no slots to their standbys"
_FAILOVER_OF_PRIMARY = "do so on the primary, whose slots a standby copies if sync_replication_slots is on"

_DROP = {"55000": ErrorKind.SLOT_SYNCED}
"""Errors of dropping or altering a slot: a standby synchronizes it from the primary."""

_UNKNOWN_OPTION = {"XX000": ErrorKind.USAGE}
"""pgoutput refuses an unknown option with an internal error, which names it."""

_SLOT_FACTS = """
SELECT slot_type, database, current_database(),
       to_jsonb(s) ->> 'invalidation_reason' IS NOT NULL OR to_jsonb(s) ->> 'wal_status' = 'lost',
       pg_is_in_recovery() AND (to_jsonb(s) ->> 'synced')::boolean
FROM pg_replication_slots s WHERE slot_name = {}
"""

# `idle_replication_slot_timeout` is new in PostgreSQL 18.
_USE_SLOTS = """
SELECT coalesce(max(t.seconds), 0), count(pg_replication_slot_advance(s.slot_name, s.confirmed_flush_lsn))
FROM (SELECT setting::int FROM pg_settings
      WHERE name = 'idle_replication_slot_timeout' AND setting <> '0') AS t (seconds)
     JOIN pg_replication_slots s ON s.slot_name IN ({})
"""

# Login event triggers are new in PostgreSQL 17.
_BEFORE_START = """
SELECT (SELECT setting::int FROM pg_settings WHERE name = 'wal_sender_timeout'),
       (SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = {}),
       EXISTS (SELECT FROM pg_event_trigger WHERE evtevent = 'login' AND evtenabled <> 'D'),
       EXISTS (SELECT FROM pg_stat_gssapi WHERE pid = pg_backend_pid() AND encrypted);
SET client_min_messages = log
"""

_FORWARDED = re.compile("has been already streamed, forwarding to ([0-9A-F]+/[0-9A-F]+)")
"""What the server only logs, in English, if a stream is to start before its slot's position."""

_OPTIONS_HINT = (
    "check the plugin's options, which -o NAME=VALUE gives;"
    " pgoutput needs proto_version and publication_names"
)
_HINTS_ABOUT_THE_SERVER = (failures.WAL_LEVEL_HINT, failures.OLD_STANDBY_HINT)


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """The result of IDENTIFY_SYSTEM; `wal_position` is the server's current WAL flush location."""

    system_id: str
    timeline: int
    wal_position: Lsn
    database: str


class _BeforeStart(NamedTuple):
    """`wal_sender_timeout` is in seconds; no update reports less than `confirmed`, the slot's position."""

    wal_sender_timeout: float
    confirmed: Lsn
    login_trigger: bool
    encrypted: bool


class ReplicationConnection:
    """A connection with `replication=database`, or `replication=true` for a physical session (`SessionKind`).

    `status_interval` is the seconds between status updates, 0 for none but those that `wal_sender_timeout`
    requires. A server that is silent for `wal_receiver_timeout` seconds while updates are sent is given up,
    as PostgreSQL's own subscriber does; 0 waits forever. `server_version` is a number: 180004 for 18.4. Every
    method raises PgcdcError.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        status_interval: float = 10.0,
        wal_receiver_timeout: float = 60.0,
        session_kind: session.SessionKind = "fixed",
    ) -> None:
        self._conninfo = conninfo
        self._connection = connect(conninfo, replication=True, kind=session_kind)
        # libpq forgets it together with a lost connection.
        self.server_version = self._connection.info.server_version
        self._status_interval = status_interval
        self._wal_receiver_timeout = wal_receiver_timeout
        self._stream: ReplicationStream | None = None
        self._slot = self._copied_slot = ""
        self._publications: tuple[str, ...] = ()
        self._logged: set[str] = set()
        self._forwarded: str | None = None
        self._connection.add_notice_handler(self._on_notice)

    @property
    def own_session(self) -> session.SessionConnection:
        """The session, to be asked in until the stream begins."""
        return self._connection

    @property
    def in_recovery(self) -> bool:
        """Whether the server was a standby when the last command ended.

        Servers report it since PostgreSQL 14; before 16 a standby can't decode.
        """
        return self._connection.info.parameter_status("in_hot_standby") == "on"

    @property
    def here(self) -> str:
        """A connection string for this very server: `conninfo` may name several."""
        return session.this_server(self._conninfo, self._connection)

    def beside(self) -> Self:
        """Open another connection to this very server."""
        return type(self)(self.here)

    def identify_system(self) -> SystemIdentity:
        system_id, timeline, position, database = self._row("IDENTIFY_SYSTEM", "identify the server")
        return SystemIdentity(system_id, int(timeline), Lsn.parse(position), database)

    def log_end(self) -> Lsn:
        """Return the WAL insert location, which may not be flushed yet; fails on a standby."""
        row = self._row("SELECT pg_catalog.pg_current_wal_insert_lsn()", "read the end of the server's WAL")
        return Lsn.parse(str(row[0]))

    def show(self, name: str) -> str:
        """Return a setting as SHOW prints it, with its unit."""
        quoted = ".".join(commands.quote_identifier(part) for part in name.split("."))
        return str(self._row(f"SHOW {quoted}", f'show "{name}"', {"42": ErrorKind.USAGE})[0])

    def timeline_history(self, timeline: int) -> list[tuple[int, Lsn]]:
        """List the ancestors of a timeline, oldest first, each with the position where the next one began."""
        if timeline == 1:
            return []
        cursor = self._execute(f"TIMELINE_HISTORY {timeline}", f"read the history of timeline {timeline}")
        assert cursor.pgresult is not None
        content = cursor.pgresult.get_value(0, 1) or b""
        fields = [line.split() for line in content.decode(errors="replace").splitlines()]
        return [(int(f[0]), Lsn.parse(f[1])) for f in fields if len(f) > 1 and f[0].isdecimal()]

    def create_slot(
        self,
        name: str,
        plugin: str = "pgoutput",
        *,
        temporary: bool = False,
        two_phase: bool = False,
        failover: bool = False,
    ) -> tuple[str, Lsn]:
        """Create a logical slot; return its name and its consistent point, from which it has every change."""
        if failover:
            self._check_failover(f'create slot "{name}"')
        wanted = {"TWO_PHASE": two_phase, "FAILOVER": failover}
        flags = [flag for flag, on in wanted.items() if on]
        command = commands.create_slot(name, plugin, flags, temporary=temporary)
        try:
            row = self._create(command, f'create slot "{name}"')
        except PgcdcError as error:
            if failures.is_no_plugin(error.__cause__):
                error.kind, error.hint = ErrorKind.USAGE, _NO_PLUGIN
            raise
        return row[0], Lsn.parse(row[1])

    def export_snapshot(self, name: str) -> tuple[Lsn, str]:
        """Create a temporary slot, and export a snapshot as of its consistent point; return both.

        The snapshot can be imported until this connection runs another command.
        """
        command = commands.create_slot(name, "pgoutput", [], temporary=True, export=True)
        row = self._create(command, "export a snapshot")
        return Lsn.parse(row[1]), row[2]

    def _create(self, command: str, doing: str) -> tuple[Any, ...]:
        try:
            with self._waiting():
                return self._row(command, doing, _CREATE)
        except PgcdcError as error:
            if self.in_recovery and isinstance(error.__cause__, psycopg.errors.ObjectNotInPrerequisiteState):
                error.hint = _STANDBY_WAL_LEVEL
            raise

    def cancel(self) -> None:
        """End a command that runs in another thread."""
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=_CANCEL)

    def _waiting(self) -> AbstractContextManager[None]:
        """Warn what the creation of a slot waits for, if it takes long."""
        return session.warning_if_it_takes_long(_STANDBY_WAITS if self.in_recovery else _WAITS)

    def copy_slot(self, old: str, new: str) -> None:
        """Create a permanent logical slot as a copy of one that may be temporary."""
        self._row(self._slot_copy(old, new, temporary=False), f'create slot "{new}"', _CREATE)

    def drop_slot(self, name: str, *, wait: bool = False) -> None:
        """Drop a slot; with `wait`, wait until it is no longer active."""
        command = commands.drop_slot(name, wait=wait)
        try:
            self._connection.execute(command.encode())
        except psycopg.Error as error:
            failure = failures.server_failure(f'drop slot "{name}"', error, _DROP)
            if failure.kind is ErrorKind.SLOT_SYNCED:
                failure.hint = "drop it on the primary: the standby has a copy of it"
            raise failure from error

    def alter_slot(self, name: str, *, failover: bool | None = None, two_phase: bool | None = None) -> None:
        """Change a slot's properties; None leaves one as it is. Raises USAGE if the server is too old.

        After that, the connection takes no other command. Two-phase can be enabled for pgoutput only.
        """
        if failover is not None:
            self._check_failover(f'alter slot "{name}"', wanted=failover)
        if two_phase is not None and self.server_version < 180000:
            raise PgcdcError(
                ErrorKind.USAGE,
                f'could not alter slot "{name}": changing two-phase of a slot needs PostgreSQL 18',
                hint=f"create another slot {'with' if two_phase else 'without'} it, and read the old one to"
                " its end first",
            )
        flags = {} if failover is None else {"FAILOVER": failover}
        if two_phase is False:
            # With ALTER on, the server would send only the COMMIT PREPARED of what is prepared already
            # (`two_phase_at` stays as it was). A reader that asks for it enables it from its position on.
            flags["TWO_PHASE"] = False
        try:
            if flags:
                self._connection.execute(commands.alter_slot(name, flags).encode())
        except psycopg.Error as error:
            raise failures.server_failure(f'alter slot "{name}"', error, _DROP) from error
        if two_phase:
            any_name = commands.quote_identifier(name)
            options = {"proto_version": "3", "two_phase": "true", "publication_names": any_name}
            self.start(name, Lsn(0), options.items())

    def _check_failover(self, doing: str, *, wanted: bool = True) -> None:
        """Raise USAGE if a slot of this server can't have failover, or wants to have it on a standby."""
        if self.server_version < 170000:
            message, hint = f"could not {doing}: failover slots need PostgreSQL 17", _NO_FAILOVER
            raise PgcdcError(ErrorKind.USAGE, message, hint=hint)
        if wanted and self.in_recovery:
            message = f"could not {doing}: a standby's own slots have no failover"
            raise PgcdcError(ErrorKind.USAGE, message, hint=_FAILOVER_OF_PRIMARY)

    def temporary_copy(self, slot: str) -> str:
        """Copy a logical slot at its position into a temporary one; return the copy's name.

        The server drops it with this connection.
        """
        name = f"pgcdc_peek_{self._connection.info.backend_pid}"
        self._row(self._slot_copy(slot, name, temporary=True), f'copy slot "{slot}"')
        self._copied_slot = slot
        return name

    def _slot_copy(self, old: str, new: str, *, temporary: bool) -> str:
        query = sql.SQL("SELECT slot_name FROM pg_copy_logical_replication_slot({}, {}, {})")
        return query.format(*map(sql.Literal, (old, new, temporary))).as_string(self._connection)

    def use_slots(self, names: Sequence[str]) -> float:
        """Use those of these slots that exist, without moving them.

        Returns the seconds after which the server ends slots that are idle, 0 if it doesn't.
        """
        query = sql.SQL(_USE_SLOTS).format(sql.SQL(", ").join(map(sql.Literal, names)))
        row = self._row(query.as_string(self._connection), "keep the snapshot's slots in use")
        return float(row[0])

    @property
    def database_encoding(self) -> str:
        """PostgreSQL's name for the encoding of the database."""
        return session.database_encoding(self._connection)

    def start(
        self, slot: str, lsn: Lsn, options: commands.PluginOptions, *, client_encoding: str = "UTF8"
    ) -> ReplicationStream:
        """Start streaming at `lsn`; 0 stands for the slot's position. `options` go to the plugin.

        The server sends text in `client_encoding`. From then on the connection takes no other command;
        closing it ends the stream. Raises SLOT_ACTIVE if the slot is beyond `lsn`: until now, another process
        could move it. A temporary copy may be.
        """
        self._slot = slot
        by_name = dict(options)
        self._publications = commands.split_names(by_name.get("publication_names") or "")
        streams = by_name.get("streaming", "off") not in {"off", "false"}
        before = self._before_start()
        try:
            if before.login_trigger:
                # It ran in this walsender, too, and may have opened tables.
                self._connection.execute(commands.forget_tables(slot, options))
            command = commands.start_replication(slot, lsn, options)
            frames = self._start_replication(command, client_encoding, libpq_only=before.encrypted)
        except psycopg.Error as error:
            raise self._start_failure(error, options) from error
        interval = update_interval(self._status_interval, before.wal_sender_timeout)
        self._stream = ReplicationStream(
            frames,
            self._known_slot,
            max(lsn, before.confirmed),
            interval=interval,
            patience=max(self._wal_receiver_timeout or NEVER, 3 * interval),
            failure=partial(failures.stream_failure, self._known_slot, streams=streams),
        )
        if self._forwarded is not None and not self._copied_slot:
            message = f'could not start streaming from slot "{slot}" at {lsn}'
            reason = f"another process has moved it to {self._forwarded}"
            raise PgcdcError(ErrorKind.SLOT_ACTIVE, f"{message}: {reason}")
        return self._stream

    def _start_replication(self, command: str, encoding: str, *, libpq_only: bool) -> FrameSource[Any]:
        if encoding == "UTF8":
            return self._copy_both(command.encode(), libpq_only=libpq_only)
        self._connection.execute(f"SET client_encoding = '{encoding}'".encode())
        try:
            # SQL_ASCII names no encoding that Python could use.
            codec = "utf-8" if encoding == "SQL_ASCII" else self._connection.info.encoding
            return self._copy_both(command.encode(codec), libpq_only=libpq_only)
        except psycopg.Error:
            self._connection.execute(b"SET client_encoding = 'UTF8'")
            raise

    def _copy_both(self, command: bytes, *, libpq_only: bool) -> FrameSource[Any]:
        pgconn = self._connection.pgconn
        if libpq_only:
            self._connection.execute(command)
            return LibpqFrames(pgconn)
        frames = SocketFrames(pgconn, self._connection.info.encoding, self._on_notice)
        try:
            frames.start(command)
        except psycopg.Error:
            frames.close()
            raise
        return frames

    def close(self) -> None:
        """Close the connection at once, without a last status update."""
        if self._stream is not None:
            self._stream.stop()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _on_notice(self, diagnostic: Diagnostic) -> None:
        """Handle a notice. This is called in order: after the frames before it, before those after it."""
        message = diagnostic.message_primary or ""
        if diagnostic.severity_nonlocalized == "LOG":
            forwarded = _FORWARDED.search(message)
            self._forwarded = forwarded[1] if forwarded else self._forwarded
            return
        name = next((one for one in self._publications if _names(message, self._as_received(one))), None)
        unknown = diagnostic.sqlstate == failures.NOT_IN_PREREQUISITE_STATE and name is not None
        if unknown and self._stream is not None:
            message = f'could not stream publication "{name}": it does not exist at this point of the WAL'
            self._stream.fail_after_taken(
                PgcdcError(ErrorKind.PUBLICATION, message, hint=failures.PUBLICATION_HINT)
            )
        elif message not in self._logged:
            self._logged.add(message)
            log.warning("server: %s", message)

    def _as_received(self, name: str) -> str:
        """Return a name as psycopg decodes it in a notice: SQL_ASCII keeps only the characters of ASCII."""
        ascii_only = self._connection.info.encoding == "ascii"
        return name.encode().decode("ascii", "replace") if ascii_only else name

    @property
    def _known_slot(self) -> str:
        """The slot as the user named it, even while a temporary copy is read."""
        return self._copied_slot or self._slot

    def _start_failure(self, error: psycopg.Error, options: commands.PluginOptions) -> PgcdcError:
        refused = any(_names(failures.reason(error), name) for name, _ in options)
        kinds = _UNKNOWN_OPTION if refused else None
        failure = failures.server_failure(f'start streaming from slot "{self._known_slot}"', error, kinds)
        if failure.kind is ErrorKind.USAGE and failure.hint not in _HINTS_ABOUT_THE_SERVER:
            failure.hint = _OPTIONS_HINT
        if failure.kind is ErrorKind.SLOT_ACTIVE:
            failure.hint = f"another process is using it: see pgcdc slot show {self._known_slot}"
        if failure.kind is not ErrorKind.SLOT_INVALIDATED:
            return failure
        row = self._slot_facts()
        kind, hint = _start_problem(row, error.sqlstate) if row else (failure.kind, None)
        return PgcdcError(kind, failure.message, hint=hint)

    def _slot_facts(self) -> tuple[Any, ...] | None:
        query = sql.SQL(_SLOT_FACTS).format(sql.Literal(self._slot))
        try:
            return self._connection.execute(query).fetchone()
        except psycopg.Error as error:
            raise failures.server_failure(f'look at slot "{self._known_slot}"', error) from error

    def _before_start(self) -> "_BeforeStart":
        query = sql.SQL(_BEFORE_START).format(sql.Literal(self._slot)).as_string(self._connection)
        milliseconds, position, login_trigger, encrypted = self._row(
            query, f'look at slot "{self._known_slot}"'
        )
        return _BeforeStart(
            milliseconds / 1000,
            Lsn.parse(str(position)) if position else Lsn(0),
            login_trigger,
            encrypted or self._connection.pgconn.ssl_in_use,
        )

    def _row(self, command: str, doing: str, kinds: failures.Kinds | None = None) -> tuple[Any, ...]:
        row = self._execute(command, doing, kinds).fetchone()
        assert row is not None
        return row

    def _execute(
        self, command: str, doing: str, kinds: failures.Kinds | None = None
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        try:
            return self._connection.execute(command.encode())
        except psycopg.Error as error:
            raise failures.server_failure(doing, error, kinds) from error


def update_interval(status_interval: float, wal_sender_timeout: float) -> float:
    """Return the seconds between updates: `status_interval`, but at most a third of the sender's timeout.

    0 means no limit for either. A third, so that one update may be late.
    """
    return min(status_interval or NEVER, wal_sender_timeout / 3 or NEVER)


def _start_problem(facts: tuple[Any, ...], sqlstate: str | None) -> tuple[ErrorKind, str | None]:
    """Tell why a slot can't be streamed: the kind of error, and a hint if the kind's default doesn't fit."""
    slot_type, database, ours, lost, synced = facts
    if slot_type != "logical":
        return ErrorKind.USAGE, "pgcdc reads logical slots"
    if database != ours:
        return ErrorKind.USAGE, f'connect to database "{database}", where the slot was made, with -d'
    if lost or sqlstate != failures.NOT_IN_PREREQUISITE_STATE:
        return ErrorKind.SLOT_INVALIDATED, None
    return (ErrorKind.SLOT_SYNCED if synced else ErrorKind.UNEXPECTED), None


def _names(message: str, name: str) -> bool:
    """Whether a message, in any language, mentions this name as a whole word."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message) is not None
