"""How replication slots are shown: as a table, one by one, and as JSON."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pgcdc_cli.cli.printing import fitted, human_bytes, text_of

if TYPE_CHECKING:
    from pgcdc_cli.catalog import Slot

_SIZES = ("RETAINED", "LAG", "SAFE")
_DISPENSABLE = ("RESTART", "PLUGIN", "LOST", "DATABASE", "CONFIRMED", "PID", "SAFE", "LAG")
"""Columns in the order in which a narrow terminal loses them; `slot show` has them."""


def slot_table(slots: Iterable["Slot"]) -> list[str]:
    """Return the lines of a table of slots that fits the terminal."""
    headings = [
        "NAME",
        "PLUGIN",
        "DATABASE",
        "PID",
        "RESTART",
        "CONFIRMED",
        "RETAINED",
        "LAG",
        "SAFE",
        "WAL",
        "LOST",
    ]
    return fitted(headings, list(map(_cells, slots)), _DISPENSABLE, _SIZES)


def slot_content(slot: "Slot") -> dict[str, Any]:
    """Return all facts, with LSNs as text."""
    positions = {name: text_of(getattr(slot, name)) for name in ("restart_lsn", "confirmed_flush_lsn")}
    return {**asdict(slot), **positions}


def reader_of(slot: "Slot") -> str:
    """Describe the slot's reader."""
    return "nobody" if slot.active_pid is None else f"process {slot.active_pid}"


def _cells(slot: "Slot") -> list[str]:
    values = [slot.plugin, slot.database, slot.active_pid, slot.restart_lsn, slot.confirmed_flush_lsn]
    sizes = map(human_bytes, (slot.retained_bytes, slot.lag_bytes, slot.safe_wal_bytes))
    return [
        slot.name,
        *(text_of(value) or "-" for value in values),
        *sizes,
        slot.wal_status or "-",
        slot.lost or "-",
    ]


def slot_lines(slot: "Slot") -> list[tuple[str, str]]:
    """Return all facts by name, for people."""
    return [
        ("name", slot.name),
        ("plugin", slot.plugin or "- (physical)"),
        ("database", slot.database or "-"),
        ("read by", reader_of(slot)),
        ("restart LSN", text_of(slot.restart_lsn) or "-"),
        ("confirmed LSN", text_of(slot.confirmed_flush_lsn) or "-"),
        ("retained", human_bytes(slot.retained_bytes)),
        ("lag", human_bytes(slot.lag_bytes)),
        ("safe", human_bytes(slot.safe_wal_bytes)),
        ("WAL status", slot.wal_status or "-"),
        ("invalidated", slot.lost or "no"),
        ("temporary", _yes(slot.temporary)),
        ("two-phase", _yes(slot.two_phase)),
        ("failover", _yes(slot.failover)),
        ("synced", _yes(slot.synced)),
    ]


def _yes(flag: bool | None) -> str:
    return "-" if flag is None else "yes" if flag else "no"
