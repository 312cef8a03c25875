"""Checks of slots: do they still have their changes, and does a client read them?"""

import shlex
from collections.abc import Iterator, Sequence

from pgcdc_cli.catalog.doctor.finding import Finding, SettingChange, Setup, literal
from pgcdc_cli.catalog.slots import Slot
from pgcdc_cli.errors import nearest, quoted_list

_MB = 1 << 20
_FAILOVER_SINCE = 170000

_IDLE = """
SELECT slot_name, to_char(inactive_since, 'YYYY-MM-DD HH24:MI TZ')
FROM pg_replication_slots,
     LATERAL (SELECT current_setting('idle_replication_slot_timeout')::interval AS timeout) t
WHERE inactive_since + timeout <= now() AND restart_lsn IS NOT NULL AND invalidation_reason IS NULL
      AND NOT (synced AND pg_is_in_recovery())
"""
_SPILLED = "SELECT slot_name, spill_bytes, total_bytes FROM pg_stat_replication_slots WHERE spill_bytes > 0"


def slot_missing(setup: Setup) -> Iterator[Finding]:
    """Does the named slot exist?"""
    name = setup.slot_name
    if name is None or setup.named_slot is not None:
        return
    near = nearest(name, [slot.name for slot in setup.slots])
    advice = f"or did you mean {quoted_list(near)}?" if near else "create the publication first"
    statement = f"SELECT pg_create_logical_replication_slot({literal(name)}, 'pgoutput');"
    yield Finding("slot-missing", "error", f'slot "{name}" does not exist', name, (statement,), advice)


def slot_kind(setup: Setup) -> Iterator[Finding]:
    """Can the named slot be streamed from this database? If none is named, which can?"""
    slot = setup.named_slot
    if slot is None:
        alive = [one for one in _looked_at(setup) if not one.lost and not one.synced]
        yield from (_streamable(one) for one in alive if one.plugin == "pgoutput")
        return
    name, database = slot.name, setup.facts.database
    if slot.plugin is None:
        problem, advice = "is a physical slot, which has no changes of rows", "choose another name with -S"
    elif slot.database is not None and slot.database != database:
        problem = f'belongs to database "{slot.database}", not "{database}"'
        advice = f"connect to that database: -d {shlex.quote(slot.database)}"
    elif slot.plugin != "pgoutput":
        problem = f"has the plugin {slot.plugin}, which only --format raw can write"
        advice = "choose another slot with -S; pgcdc slot create makes one"
    elif slot.synced:
        problem = "is a copy that this standby keeps of the primary's"
        advice = "stream it from the primary, or after the standby's promotion"
    elif slot.lost:
        return
    else:
        yield _streamable(slot)
        return
    yield Finding("slot-kind", "error", f'slot "{name}" {problem}', name, advice=advice)


def _streamable(slot: Slot) -> Finding:
    use = "not in use" if slot.active_pid is None else f"in use by process {slot.active_pid}"
    flags = ", ".join(flag for flag in ("two_phase", "failover") if getattr(slot, flag))
    message = f'slot "{slot.name}" is of this database, {use}{flags and f" ({flags})"}'
    return Finding("slot-kind", "ok", message, slot.name)


def slot_lost(setup: Setup) -> Iterator[Finding]:
    """Have slots lost changes, or will they at the next checkpoint?"""
    for slot in _looked_at(setup):
        name = slot.name
        drop = f"SELECT pg_drop_replication_slot({literal(name)});"
        if slot.lost:
            yield Finding(
                "slot-lost",
                "error",
                f'slot "{name}" is invalidated ({slot.lost}): its changes are lost',
                name,
                (drop, _create_again(slot)) if slot.plugin else (drop,),
                "take a new snapshot of the tables: what was lost doesn't come back",
            )
        elif slot.wal_status == "unreserved":
            limit = 2 * _megabytes(slot.retained_bytes) + 1024
            change = setup.change("max_slot_wal_keep_size", f"{limit}MB")
            yield Finding(
                "slot-unreserved",
                "error",
                f'slot "{name}" retains more WAL than max_slot_wal_keep_size: the next checkpoint invalidates'
                " it",
                name,
                change.statements,
                change.also("and read it now"),
            )


def _create_again(slot: Slot) -> str:
    arguments = [literal(slot.name), literal(slot.plugin)]
    if slot.two_phase:
        arguments.append("twophase => true")
    if slot.failover:
        arguments.append("failover => true")
    return f"SELECT pg_create_logical_replication_slot({', '.join(arguments)});"


def slot_retained(setup: Setup) -> Iterator[Finding]:
    """Do slots retain much WAL, compared with max_slot_wal_keep_size, or on the server's disk?"""
    limit = setup.settings["max_slot_wal_keep_size"].number
    usual = setup.settings["max_wal_size"].number
    for slot in _all_alive(setup):
        name, retained = slot.name, _megabytes(slot.retained_bytes)
        if limit >= 0 and retained * 2 > limit and slot.wal_status != "unreserved":
            change = setup.change("max_slot_wal_keep_size", f"{4 * retained + 1024}MB")
            yield Finding(
                "slot-near-limit",
                "warning",
                f'slot "{name}" retains {retained} MB of WAL; at {limit} MB (max_slot_wal_keep_size) it is'
                " invalidated",
                name,
                change.statements,
                change.also("or read it more often"),
            )
        elif slot.active_pid is None and not slot.synced and retained > usual:
            yield Finding(
                "slot-inactive",
                "warning",
                f'slot "{name}" is not in use and retains {retained} MB of WAL on the server\'s disk'
                f" (more than max_wal_size, {usual} MB)",
                name,
                advice=f"{_reader(slot)}; if it is no longer needed: pgcdc slot drop {name}",
            )


def _reader(slot: Slot) -> str:
    return "let a stream read it" if slot.plugin else "start the standby or receiver that it is for"


def slot_idle(setup: Setup) -> Iterator[Finding]:
    """Will idle slots that retain WAL be invalidated at the next checkpoint (PostgreSQL 18)?

    A standby's copies of the primary's slots are not.
    """
    timeout = setup.settings.get("idle_replication_slot_timeout")
    if timeout is None or not timeout.number:
        return
    idle = dict(setup.session.ask(_IDLE, {}, "look for slots that are not in use"))
    change = setup.change("idle_replication_slot_timeout", "0")
    for slot in _looked_at(setup):
        if slot.name in idle:
            yield Finding(
                "slot-idle",
                "error",
                f'slot "{slot.name}" has not been in use since {idle[slot.name]}, longer than'
                f" idle_replication_slot_timeout ({timeout.text}): the next checkpoint invalidates it",
                slot.name,
                change.statements,
                change.also("and read it now"),
            )


def slot_spilled(setup: Setup) -> Iterator[Finding]:
    """How much was spilled to disk? That affects only speed.

    After each start of a stream, the server counts again what it decodes again, and spills it even with
    streaming.
    """
    names = {slot.name for slot in _looked_at(setup)}
    for name, spilled, sent in setup.session.ask(_SPILLED, {}, "read the slots' statistics"):
        if name in names:
            message = (
                f'slot "{name}": {_size(spilled)} were spilled to the server\'s disk to send {_size(sent)};'
                " --streaming on, a higher logical_decoding_work_mem or fewer starts reduce that"
            )
            yield Finding("slot-spilled", "ok", message, name)


def slot_failover(setup: Setup) -> Iterator[Finding]:
    """Does the named slot survive a failover to one of the existing standbys?"""
    slot = setup.named_slot
    standbys = [one.name for one in setup.slots if one.plugin is None]
    if slot is None or not standbys or setup.facts.in_recovery or setup.facts.version < _FAILOVER_SINCE:
        return
    if not slot.failover:
        message = f'slot "{slot.name}" is lost when a standby takes over: it is not a failover slot'
        advice = f"pgcdc slot alter {slot.name} --failover"
        yield Finding("slot-failover", "warning", message, slot.name, advice=advice)
    elif not (waited_for := setup.settings["synchronized_standby_slots"].value):
        message = (
            f'slot "{slot.name}" is a failover slot, but may be ahead of the standbys when one takes over:'
            " synchronized_standby_slots is empty"
        )
        # The slot would wait for the others: for a standby that is gone, or a slot that has another purpose.
        connected = [one.name for one in setup.slots if one.plugin is None and one.active_pid is not None]
        change = SettingChange((), "name the slots of the standbys there, once they are connected")
        if connected:
            change = setup.change("synchronized_standby_slots", ", ".join(connected))
        yield Finding("slot-failover", "warning", message, slot.name, *change)
    elif away := _not_in_use(waited_for, setup.slots):
        message = (
            f'slot "{slot.name}" waits for standbys that are not connected, with slots {quoted_list(away)}:'
            " nothing is sent until then"
        )
        advice = "start them, or take their slots out of synchronized_standby_slots"
        yield Finding("slot-failover", "warning", message, slot.name, advice=advice)


def _not_in_use(setting: str, slots: Sequence[Slot]) -> list[str]:
    """Name the slots in `synchronized_standby_slots` that no standby reads."""
    read = {slot.name for slot in slots if slot.active_pid is not None}
    return [name for part in setting.split(",") if (name := part.strip(' "')) not in read]


def _looked_at(setup: Setup) -> list[Slot]:
    """The named slot, or all logical slots of this database."""
    if setup.slot_name is not None:
        return [slot for slot in setup.slots if slot.name == setup.slot_name]
    return [slot for slot in setup.slots if slot.database == setup.facts.database]


def _all_alive(setup: Setup) -> list[Slot]:
    """All slots of the server that still retain WAL: they share its disk."""
    return [slot for slot in setup.slots if not slot.lost]


def _size(size: int) -> str:
    return f"{size // _MB} MB" if size >= _MB else f"{size // 1024} kB"


def _megabytes(size: int | None) -> int:
    return (size or 0) // _MB
