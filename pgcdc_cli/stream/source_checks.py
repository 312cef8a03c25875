"""Whether a server, a database and a slot are those that a stream goes on from."""

import logging
import shlex
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from pgcdc_cli.catalog import Catalog, Slot
from pgcdc_cli.directory.checkpoint import Checkpoint, StreamSource, changed, check_gap, check_system
from pgcdc_cli.errors import ErrorKind, PgcdcError, nearest
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.commands import is_slot_name

log = logging.getLogger("pgcdc")

_CREATE = "create it first, with --create-slot"
_EXISTING = "see which exist with: pgcdc slot list"
_SNAPSHOT_LOST = "later changes in the tables that are read are lost: start over in another directory or file"
_NO_SLOT = "write to another directory or file; --snapshot initial begins a stream with the existing rows"
_RENAMED = (
    "if it was renamed (ALTER DATABASE ... RENAME): --accept-database; otherwise "
    + ErrorKind.SOURCE_CHANGED.rule.hint
)
_UPGRADED = (
    "if it was upgraded (pg_upgrade), and all was read before: --accept-upgrade; otherwise "
    + ErrorKind.SOURCE_CHANGED.rule.hint
)
_OTHER_SLOT = "choose another slot: pgcdc slot list shows them, pgcdc slot create makes one"


def check_begun(checkpoint: Checkpoint, slot: Slot | None) -> None:
    """Raise SLOT_MISSING or GAP if the slot no longer has all changes since a snapshot began."""
    begun, name = checkpoint.creating or Lsn(0), checkpoint.source.slot
    if slot is None:
        message = f'could not continue with the snapshot: slot "{name}" is gone'
        raise PgcdcError(ErrorKind.SLOT_MISSING, message, hint=_SNAPSHOT_LOST)
    if (slot.confirmed_flush_lsn or Lsn(0)) > begun:
        message = (
            f'could not continue with the snapshot of {begun}: slot "{name}" is at {slot.confirmed_flush_lsn}'
        )
        raise PgcdcError(ErrorKind.GAP, message, hint=_SNAPSHOT_LOST)


def check_slot(catalog: Catalog, name: str, database: str, *, decodes: bool, keeps_prepared: bool) -> Slot:
    """Return a slot that can be streamed.

    `decodes` is false for raw output; `keeps_prepared`: the output can handle prepared transactions.

    Raises SLOT_MISSING, SLOT_INVALIDATED, SLOT_SYNCED for a standby's copy, or USAGE for one of another kind.
    """
    slot = catalog.slot(name)
    if slot is None:
        catalog.check_wal_level()
        # `pgcdc slot create` makes a slot of pgoutput.
        create = f"create it with: pgcdc slot create {name}, or add --create-slot" if decodes else _CREATE
        hint = catalog.other_slots(name, create if is_slot_name(name) else _EXISTING)
        raise PgcdcError(ErrorKind.SLOT_MISSING, f'could not find slot "{name}"', hint=hint)
    problem = _misfit(slot, database, decodes=decodes, keeps_prepared=keeps_prepared)
    if problem is not None:
        elsewhere = None if slot.database == database else slot.database
        hint = f"with -d {shlex.quote(elsewhere)} it can be read" if elsewhere else _OTHER_SLOT
        raise PgcdcError(ErrorKind.USAGE, f'could not stream slot "{name}": {problem}', hint=hint)
    if slot.lost:
        raise PgcdcError(
            ErrorKind.SLOT_INVALIDATED, f'could not stream slot "{name}": invalidated ({slot.lost})'
        )
    if slot.synced:
        message = f'could not stream slot "{name}": this standby is synchronizing it from the primary'
        raise PgcdcError(ErrorKind.SLOT_SYNCED, message)
    return slot


def _misfit(slot: Slot, database: str, *, decodes: bool, keeps_prepared: bool) -> str | None:
    if slot.database is None:
        return "it is a physical slot"
    if slot.database != database:
        return f'it belongs to database "{slot.database}", not "{database}"'
    if not decodes:
        return None
    if slot.plugin != "pgoutput":
        return f"its plugin is {slot.plugin}, which only --format raw can write"
    if slot.two_phase and not keeps_prepared:
        return "it sends prepared transactions, and nothing keeps them: use -f, -D or --two-phase-at prepare"
    return None


def check_source(
    checkpoint: Checkpoint,
    source: StreamSource,
    *,
    slot_position: Lsn,
    accept_gap: bool = False,
    accept_publications: bool = False,
    history: Callable[[], Sequence[tuple[int, Lsn]]] = tuple,
) -> Checkpoint:
    """Return the checkpoint to go on with, which names `source` from now on.

    `slot_position` is the slot's confirmed_flush_lsn. `history`, called if the timelines differ, returns the
    server's TIMELINE_HISTORY: earlier timelines, each with the position at which it was left.

    Raises SOURCE_CHANGED for another server, database, slot or set of publications, or a timeline that does
    not descend from ours at our position, unless the slot proves that we streamed from it. Raises GAP if the
    slot is ahead of the checkpoint, unless `accept_gap`: then the stream gets a new `stream_id` and begins at
    the slot.
    """
    _check_identity(checkpoint.source, source)
    if source.publications != checkpoint.source.publications and not accept_publications:
        raise changed(
            "publications", ", ".join(checkpoint.source.publications), ", ".join(source.publications),
            hint="if that is intended: --accept-publications",
        )  # fmt: skip
    _check_timeline(checkpoint, source, slot_position, history)
    if accept_gap and slot_position > checkpoint.end_lsn:
        warn_of_gap(checkpoint.end_lsn, slot_position)
        return replace(checkpoint, source=source, stream_id=str(uuid.uuid4()), end_lsn=slot_position)
    check_gap(source.slot, slot_position, checkpoint.end_lsn)
    return replace(checkpoint, source=source)


def after_upgrade(checkpoint: Checkpoint, source: StreamSource, slot_position: Lsn) -> Checkpoint:
    """Return the checkpoint as one of the server that pg_upgrade made of its server.

    That one has the same OIDs and transaction IDs, and its WAL begins behind the old one's
    (`copy_xact_xlog_xid` in pg_upgrade.c). Its slot begins where it was created there: pg_upgrade migrates
    only slots whose changes were all read.
    """
    moved = replace(checkpoint.source, system_id=source.system_id, timeline=source.timeline)
    return replace(checkpoint, source=moved, end_lsn=max(checkpoint.end_lsn, slot_position))


def warn_of_gap(end_lsn: Lsn, slot_position: Lsn) -> None:
    log.warning("there is a gap: the output ends at %s, the slot continues at %s", end_lsn, slot_position)


def _check_identity(ours: StreamSource, theirs: StreamSource) -> None:
    if not ours.slot:
        message = "could not continue from the checkpoint: it belongs to a snapshot without a slot"
        raise PgcdcError(ErrorKind.SOURCE_CHANGED, message, hint=_NO_SLOT)
    check_system(ours, theirs.system_id, hint=_UPGRADED)
    if ours.database != theirs.database:
        raise changed("database", ours.database, theirs.database, hint=_RENAMED)
    if ours.slot != theirs.slot:
        meant = f"did you mean -S {ours.slot}; or " if nearest(theirs.slot, [ours.slot]) else ""
        hint = meant + ErrorKind.SOURCE_CHANGED.rule.hint
        raise changed("slot", ours.slot, theirs.slot, hint=hint)


def _check_timeline(
    checkpoint: Checkpoint,
    source: StreamSource,
    slot_position: Lsn,
    history: Callable[[], Sequence[tuple[int, Lsn]]],
) -> None:
    """Raise SOURCE_CHANGED for a timeline that doesn't contain the output.

    A timeline that left ours before our position contains it only if we streamed from it: from a standby that
    was promoted meanwhile. Only a slot that was confirmed up to exactly our position proves that.
    """
    ours, theirs = checkpoint.source.timeline, source.timeline
    if ours == theirs:
        return
    left_at = dict(history()).get(ours)
    if left_at is None:
        raise changed("timeline", str(ours), f"{theirs}, which does not descend from it")
    if checkpoint.end_lsn > left_at and slot_position != checkpoint.end_lsn:
        raise changed(
            "timeline", f"{ours} up to {checkpoint.end_lsn}", f"{theirs}, which left it at {left_at}"
        )
