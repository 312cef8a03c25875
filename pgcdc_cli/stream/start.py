"""May this slot be streamed? Asked before START_REPLICATION, whose refusals say less."""

from pgcdc_cli.catalog import Catalog, Slot
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn

_OTHER_SLOT = "see pgcdc slot list, or create one with: pgcdc slot create NAME"


def check_slot(catalog: Catalog, name: str, database: str, *, decodes: bool, keeps_prepared: bool) -> Lsn:
    """Give the confirmed position of a slot that can be streamed.

    `decodes` is false for raw output; `keeps_prepared`: prepared transactions can be dealt with.

    Raises PgcdcError: SLOT_MISSING, SLOT_INVALIDATED, or USAGE for one of another kind.
    """
    slot = catalog.slot(name)
    if slot is None:
        catalog.check_wal_level()
        raise PgcdcError(ErrorKind.SLOT_MISSING, f'could not find slot "{name}"')
    problem = _misfit(slot, database, decodes=decodes, keeps_prepared=keeps_prepared)
    if problem is not None:
        raise PgcdcError(ErrorKind.USAGE, f'could not stream slot "{name}": {problem}', hint=_OTHER_SLOT)
    if slot.invalidation_reason or slot.wal_status == "lost":
        reason = slot.invalidation_reason or "wal_removed"
        raise PgcdcError(
            ErrorKind.SLOT_INVALIDATED, f'could not stream slot "{name}": invalidated ({reason})'
        )
    return slot.confirmed_flush_lsn or Lsn(0)


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
