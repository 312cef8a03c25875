"""May a stream go on from this checkpoint? Asked before START_REPLICATION."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.sinks.checkpoint import Checkpoint, Source


def check_source(
    checkpoint: Checkpoint,
    source: Source,
    *,
    slot_position: Lsn,
    accept_gap: bool = False,
    accept_publications: bool = False,
    history: Callable[[], Sequence[tuple[int, Lsn]]] = tuple,
) -> Checkpoint:
    """Return the checkpoint to go on with, which names `source` from now on.

    `slot_position` is the slot's confirmed_flush_lsn; `history`, called where the timelines differ, gives the
    server's TIMELINE_HISTORY: earlier timelines, each with the position at which it was left. Raises
    SOURCE_CHANGED for another server, database, slot or set of publications, or a timeline that does not
    descend from ours at our position; GAP if the slot is beyond the checkpoint, unless `accept_gap`: then the
    stream gets a new identity and begins at the slot's position.
    """
    _check_identity(checkpoint.source, source)
    if source.publications != checkpoint.source.publications and not accept_publications:
        raise _changed(
            "publications", ", ".join(checkpoint.source.publications), ", ".join(source.publications),
            hint="if that is meant: --accept-publications",
        )  # fmt: skip
    _check_timeline(checkpoint, source, history)
    if accept_gap and slot_position > checkpoint.end_lsn:
        return replace(checkpoint, source=source, stream_id=str(uuid.uuid4()), end_lsn=slot_position)
    check_gap(source.slot, slot_position, checkpoint.end_lsn)
    return replace(checkpoint, source=source)


def check_gap(slot: str, slot_position: Lsn, end_lsn: Lsn) -> None:
    """Raise GAP if the slot is beyond `end_lsn`, up to which there is output."""
    if slot_position > end_lsn:
        message = (
            f'could not go on with slot "{slot}": it is at {slot_position}, the output ends at {end_lsn}'
        )
        raise PgcdcError(ErrorKind.GAP, message)


def _check_identity(ours: Source, theirs: Source) -> None:
    for what, old, new in (
        ("system identifier", ours.system_id, theirs.system_id),
        ("database", ours.database, theirs.database),
        ("slot", ours.slot, theirs.slot),
    ):
        if old != new:
            raise _changed(what, old, new)


def _check_timeline(
    checkpoint: Checkpoint, source: Source, history: Callable[[], Sequence[tuple[int, Lsn]]]
) -> None:
    ours, theirs = checkpoint.source.timeline, source.timeline
    if ours == theirs:
        return
    left_at = dict(history()).get(ours)
    if theirs < ours or left_at is None:
        raise _changed("timeline", str(ours), f"{theirs}, which does not descend from it")
    if checkpoint.end_lsn > left_at:
        raise _changed(
            "timeline", f"{ours} up to {checkpoint.end_lsn}", f"{theirs}, which left it at {left_at}"
        )


def _changed(what: str, old: str, new: str, *, hint: str | None = None) -> PgcdcError:
    message = f"could not go on from the checkpoint: it is of {what} {old}, not {new}"
    return PgcdcError(ErrorKind.SOURCE_CHANGED, message, hint=hint)


def check_options(path: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    """Refuse a checkpoint (at `path`) of another format, or with other options: USAGE."""
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            raise PgcdcError(
                ErrorKind.USAGE,
                f'could not go on from "{path}": '
                f"its {name} is {theirs.get(name, 'not set')}, not {ours.get(name, 'not set')}",
                hint="use the same options as before, or another directory or file and a new slot",
            )
