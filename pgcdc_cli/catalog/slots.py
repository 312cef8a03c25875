"""Replication slots: the view pg_replication_slots, which gets new columns with every version."""

from dataclasses import dataclass

from pgcdc_cli.catalog.server import Session, naming_replication_right
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn

# In recovery, the end of the WAL is the last replayed position: nothing beyond it can be decoded.
_LOG_END = """
CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END
"""
_SLOTS = f"""
SELECT to_jsonb(s), pg_wal_lsn_diff(w.lsn, s.restart_lsn)::bigint,
       pg_wal_lsn_diff(w.lsn, s.confirmed_flush_lsn)::bigint,
       pg_is_in_recovery()
FROM pg_replication_slots s,
     LATERAL (SELECT {_LOG_END} AS lsn) w
WHERE %(name)s::text IS NULL OR s.slot_name = %(name)s::text
ORDER BY s.slot_name
"""  # noqa: S608 - of two constants
_CREATING = (
    "run again once it is created; the server waits until all earlier transactions that write have ended"
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A row of pg_replication_slots; None also for a column that the server's version doesn't have.

    `plugin`, `database` and `confirmed_flush_lsn` are None for a physical slot. `retained_bytes` is the
    amount of WAL that the slot retains, `lag_bytes` how much of that is not confirmed yet, `safe_wal_bytes`
    how much more can be written before the slot may lose WAL (None for any amount). `synced`: a standby's
    copy of a slot of the primary, which can't be used before the standby is promoted.
    """

    name: str
    plugin: str | None
    database: str | None
    temporary: bool
    active_pid: int | None
    two_phase: bool | None
    failover: bool | None
    synced: bool | None
    restart_lsn: Lsn | None
    confirmed_flush_lsn: Lsn | None
    wal_status: str | None
    invalidation_reason: str | None
    conflicting: bool | None
    retained_bytes: int | None
    lag_bytes: int | None
    safe_wal_bytes: int | None

    @property
    def lost(self) -> str | None:
        """Why the server invalidated the slot; None if it didn't.

        PostgreSQL 16 has no reasons. It calls all invalidated slots conflicting, but only one that lost its
        WAL has no restart_lsn.
        """
        if self.wal_status != "lost":
            return self.invalidation_reason
        conflicts = self.conflicting and self.restart_lsn is not None
        return self.invalidation_reason or ("conflicting" if conflicts else "wal_removed")

    def position(self, doing: str) -> Lsn:
        """Return the position of a logical slot. Raises SLOT_ACTIVE while the server is creating it."""
        if self.confirmed_flush_lsn is None:
            message = f"could not {doing}: process {self.active_pid} is still creating it"
            raise PgcdcError(ErrorKind.SLOT_ACTIVE, message, hint=_CREATING)
        return self.confirmed_flush_lsn


def read_slots(session: Session, name: str | None) -> list[Slot]:
    rows = session.ask(_SLOTS, {"name": name}, "read the slots", opens_no_table=True)
    return [_slot(*row) for row in rows]


def log_end(session: Session) -> Lsn:
    """Read the end of the WAL inserted so far, even if not on disk; on a standby, of the WAL replayed."""
    query = _LOG_END.replace("pg_current_wal_lsn", "pg_current_wal_insert_lsn")
    [(end,)] = session.ask(f"SELECT ({query})::text", {}, "read the end of the server's WAL")
    return Lsn.parse(end)


def advance_slot(session: Session, name: str, position: Lsn | None) -> Lsn:
    """Advance a slot (None: to the end of the WAL, never beyond it); return its new position."""
    target = _LOG_END if position is None else "%(position)s::pg_lsn"
    query = f"SELECT end_lsn::text FROM pg_replication_slot_advance(%(name)s, {target})"  # noqa: S608 - of two
    with naming_replication_right(session):
        [(end,)] = session.ask(query, {"name": name, "position": str(position)}, f'advance slot "{name}"')
    return Lsn.parse(end)


def copy_slot(session: Session, old: str, new: str) -> Lsn:
    """Copy a logical slot; return the copy's position. Also of a temporary one, the copy is permanent."""
    query = "SELECT lsn::text FROM pg_copy_logical_replication_slot(%(old)s, %(new)s, false)"
    with naming_replication_right(session):
        [(position,)] = session.ask(query, {"old": old, "new": new}, f'copy slot "{old}" to "{new}"')
    return Lsn.parse(position)


def _slot(view: dict[str, object], retained: int | None, lag: int | None, in_recovery: bool) -> Slot:
    return Slot(
        name=str(view["slot_name"]),
        plugin=_text(view, "plugin"),
        database=_text(view, "database"),
        temporary=bool(view["temporary"]),
        active_pid=_number(view, "active_pid"),
        two_phase=_flag(view, "two_phase"),
        failover=_flag(view, "failover"),
        # Promotion leaves the column as it was, but it means nothing on a primary.
        synced=_flag(view, "synced") and in_recovery,
        restart_lsn=_lsn(view, "restart_lsn"),
        confirmed_flush_lsn=_lsn(view, "confirmed_flush_lsn"),
        wal_status=_text(view, "wal_status"),
        invalidation_reason=_text(view, "invalidation_reason"),
        conflicting=_flag(view, "conflicting"),
        retained_bytes=retained,
        lag_bytes=lag,
        safe_wal_bytes=_number(view, "safe_wal_size"),
    )


def _text(view: dict[str, object], column: str) -> str | None:
    value = view.get(column)
    return None if value is None else str(value)


def _number(view: dict[str, object], column: str) -> int | None:
    value = _text(view, column)
    return None if value is None else int(value)


def _flag(view: dict[str, object], column: str) -> bool | None:
    value = view.get(column)
    return None if value is None else bool(value)


def _lsn(view: dict[str, object], column: str) -> Lsn | None:
    value = _text(view, column)
    return None if value is None else Lsn.parse(value)
