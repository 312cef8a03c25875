"""Checks of the server and the role: may this role decode this server's WAL, and are there free resources?"""

from collections.abc import Iterator

from pgcdc_cli.catalog.doctor.finding import RELOAD, Finding, Setup, quoted
from pgcdc_cli.catalog.managed_service import REPLICATION_ROLE

_OLDEST = 15
_STANDBY_DECODES_SINCE = 16

_LEAST_SENDER_TIMEOUT = 10.0
"""Seconds; with less, connections that are fine end when disk or network are busy."""

_LEAST_WORK_MEM = 1024
"""kB; with less, nearly every transaction is streamed or spilled."""

_OVERRIDDEN = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "transaction_timeout",
)


def server_version(setup: Setup) -> Iterator[Finding]:
    """Is it a version that pgcdc is tested with?"""
    major, minor = divmod(setup.facts.version, 10000)
    if major < _OLDEST:
        message = f"PostgreSQL {major} is older than any that pgcdc is tested with"
        advice = f"upgrade the server to {_OLDEST} or newer"
        yield Finding("server-version", "warning", message, advice=advice)
    else:
        kind = "a standby" if setup.facts.in_recovery else "a primary"
        message = f'PostgreSQL {major}.{minor}, {kind}, database "{setup.facts.database}"'
        yield Finding("server-version", "ok", message)


def wal_level(setup: Setup) -> Iterator[Finding]:
    """Does wal_level allow logical decoding?"""
    level = setup.facts.wal_level
    if level == "logical":
        more = "; the primary's must be, too: it can't be seen from here" if setup.facts.in_recovery else ""
        yield Finding("wal-level", "ok", f"wal_level is logical{more}")
        return
    message = f"wal_level is {level}: the WAL can't be decoded"
    service = setup.facts.service
    name, value = (service and service.decoding) or ("wal_level", "logical")
    yield Finding("wal-level", "error", message, None, *setup.change(name, value, restart=True))


def replication_right(setup: Setup) -> Iterator[Finding]:
    """Does the role have the REPLICATION attribute, or on Amazon RDS the role that stands for it?"""
    role = setup.role
    if setup.facts.may_replicate:
        yield Finding("replication-right", "ok", f'role "{role}" may replicate', role)
        return
    message = f'role "{role}" may not replicate: it can neither stream nor create a slot'
    statement = f"ALTER ROLE {quoted(role)} REPLICATION;"
    if setup.facts.by_membership:
        statement = f"GRANT {quoted(REPLICATION_ROLE)} TO {quoted(role)};"
    yield Finding("replication-right", "error", message, role, (statement,))


def free_wal_senders(setup: Setup) -> Iterator[Finding]:
    """Is a walsender free? A stream takes one, and from a standby for a moment a second one."""
    most, used = setup.settings["max_wal_senders"].number, setup.wal_senders
    if used < most:
        yield Finding("free-wal-senders", "ok", f"{most - used} of {most} walsenders are free")
        return
    message = f"all {most} walsenders (max_wal_senders) are taken: no stream can start"
    change = setup.change("max_wal_senders", str(used + 5), restart=True)
    yield Finding("free-wal-senders", "error", message, None, *change)


def free_slots(setup: Setup) -> Iterator[Finding]:
    """Is a replication slot free, if one must be created?"""
    most, used = setup.settings["max_replication_slots"].number, len(setup.slots)
    if used < most:
        yield Finding("free-slots", "ok", f"{most - used} of {most} replication slots are free")
        return
    exists = any(slot.name == setup.slot_name for slot in setup.slots)
    message = f"all {most} replication slots (max_replication_slots) are taken: none can be created"
    change = setup.change("max_replication_slots", str(used + 5), restart=True)
    advice = change.also("or drop a slot that is not in use: pgcdc slot list")
    yield Finding("free-slots", "warning" if exists else "error", message, None, change.statements, advice)


def standby(setup: Setup) -> Iterator[Finding]:
    """Can this standby decode, and will its slots stay valid?"""
    if not setup.facts.in_recovery:
        return
    if setup.facts.version // 10000 < _STANDBY_DECODES_SINCE:
        message = f"a standby can decode WAL since PostgreSQL {_STANDBY_DECODES_SINCE}"
        yield Finding("standby", "error", message, advice="connect to the primary")
        return
    yield from _feedback(setup)
    if not setup.settings["primary_slot_name"].value:
        message = (
            "primary_slot_name is empty: while the standby is away, its primary may remove rows that slots"
            " here still need, which invalidates the slots"
        )
        advice = (
            "create a physical slot on the primary, then here: ALTER SYSTEM SET primary_slot_name = 'NAME';"
        )
        yield Finding("primary-slot-name", "warning", message, advice=f"{advice} {RELOAD}")


def _feedback(setup: Setup) -> Iterator[Finding]:
    if setup.settings["hot_standby_feedback"].value == "on":
        yield Finding("hot-standby-feedback", "ok", "hot_standby_feedback is on")
        return
    message = (
        "hot_standby_feedback is off: the primary removes rows of its catalogs that slots here still need,"
        " which invalidates the slots"
    )
    change = setup.change("hot_standby_feedback", "on")
    yield Finding("hot-standby-feedback", "warning", message, None, *change)


def sender_timeout(setup: Setup) -> Iterator[Finding]:
    """Does the server end a connection too early, or never?"""
    seconds = setup.facts.wal_sender_timeout
    if seconds >= _LEAST_SENDER_TIMEOUT:
        yield Finding("wal-sender-timeout", "ok", f"wal_sender_timeout is {seconds:g} s")
        return
    why = (
        "the server ends healthy connections that are only busy for a moment"
        if seconds
        else "the server never notices that a reader is gone, and keeps the slot in use"
    )
    # The most specific level: it overrides the server's, the database's and the role's settings.
    target = f"ALTER ROLE {quoted(setup.role)} IN DATABASE {quoted(setup.facts.database)}"
    statement = f"{target} SET wal_sender_timeout = '1min';"
    message = f"wal_sender_timeout is {seconds:g} s: {why}"
    yield Finding("wal-sender-timeout", "warning", message, None, (statement,))


def session_timeouts(setup: Setup) -> Iterator[Finding]:
    """Are timeouts set that could look like trouble, but don't apply to pgcdc?"""
    found = {name: setup.settings[name] for name in _OVERRIDDEN if name in setup.settings}
    low = [f"{name} ({setting.text})" for name, setting in found.items() if setting.number]
    if low:
        message = f"{', '.join(low)}: no effect on pgcdc, whose sessions set it to 0"
        yield Finding("session-timeouts", "ok", message)


def decoding_memory(setup: Setup) -> Iterator[Finding]:
    """How large may a transaction get before it is streamed, or with protocol 1 spilled to disk?"""
    setting = setup.settings["logical_decoding_work_mem"]
    if setting.number >= _LEAST_WORK_MEM:
        message = (
            f"logical_decoding_work_mem is {setting.text}: larger transactions are streamed or, with"
            " --streaming off or --proto-version 1, spilled to the server's disk first"
        )
        yield Finding("logical-decoding-work-mem", "ok", message)
        return
    message = (
        f"logical_decoding_work_mem is {setting.text}: nearly every transaction is streamed or, with"
        " --proto-version 1, spilled to the server's disk"
    )
    target = f"ALTER ROLE {quoted(setup.role)} IN DATABASE {quoted(setup.facts.database)}"
    statement = f"{target} SET logical_decoding_work_mem = '64MB';"
    yield Finding("logical-decoding-work-mem", "warning", message, None, (statement,))


def idle_slot_timeout(setup: Setup) -> Iterator[Finding]:
    """Are slots invalidated when they are idle for a while (PostgreSQL 18)?"""
    setting = setup.settings.get("idle_replication_slot_timeout")
    if setting is None or not setting.number:
        return
    message = (
        f"idle_replication_slot_timeout is {setting.text}: a slot that is not in use for that long loses its"
        " changes"
    )
    change = setup.change("idle_replication_slot_timeout", "0")
    advice = change.also("or run pgcdc stream more often than that")
    yield Finding("idle-slot-timeout", "warning", message, None, change.statements, advice)
