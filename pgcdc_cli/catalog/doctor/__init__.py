"""Check what would keep a stream from running, or lose changes, and how to fix it. Checks only read."""

from collections.abc import Callable, Iterator, Sequence

from pgcdc_cli.catalog.doctor import publication_checks, server_checks, slot_checks
from pgcdc_cli.catalog.doctor.finding import Finding, Level, Setup
from pgcdc_cli.catalog.server import Session
from pgcdc_cli.errors import ErrorKind, PgcdcError

__all__ = ["CHECKS", "Finding", "Level", "diagnose", "refused_changes"]

CHECKS: tuple[Callable[[Setup], Iterator[Finding]], ...] = (
    server_checks.server_version,
    server_checks.wal_level,
    server_checks.replication_right,
    server_checks.free_wal_senders,
    server_checks.free_slots,
    server_checks.standby,
    server_checks.sender_timeout,
    server_checks.session_timeouts,
    server_checks.decoding_memory,
    server_checks.idle_slot_timeout,
    publication_checks.publication_missing,
    publication_checks.publication_empty,
    publication_checks.operations,
    publication_checks.replica_identity,
    publication_checks.different_columns,
    publication_checks.keyless_tables,
    publication_checks.unvalidated_keys,
    publication_checks.partition_roots,
    publication_checks.partition_identities,
    publication_checks.pending_detaches,
    publication_checks.unlogged_tables,
    publication_checks.foreign_partitions,
    publication_checks.select_right,
    slot_checks.slot_missing,
    slot_checks.slot_kind,
    slot_checks.slot_lost,
    slot_checks.slot_retained,
    slot_checks.slot_idle,
    slot_checks.slot_spilled,
    slot_checks.slot_failover,
)


def diagnose(session: Session, slot: str | None, publications: Sequence[str]) -> list[Finding]:
    """Run every check; what the role may not read is a finding, too. Raises PgcdcError for other errors."""
    setup = Setup(session, slot, publications)
    return [finding for check in CHECKS for finding in _findings(check, setup)]


def refused_changes(session: Session, publication: str) -> list[Finding]:
    """Find just the tables whose updates and deletes the server refuses."""
    return _findings(publication_checks.replica_identity, Setup(session, None, [publication]))


def _findings(check: Callable[[Setup], Iterator[Finding]], setup: Setup) -> list[Finding]:
    try:
        return list(check(setup))
    except PgcdcError as error:
        if error.kind is not ErrorKind.RIGHTS:
            raise
        name = check.__name__.replace("_", "-")
        reason = error.message.rpartition(": ")[2]
        message = f"{name} could not be checked: {reason}"
        return [Finding("not-seen", "warning", message, name, advice="run it as a role that may see it")]
