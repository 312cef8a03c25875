"""Findings of `pgcdc doctor`, and the facts that its checks use."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from psycopg import sql

from pgcdc_cli.catalog.publications import Publication, read_publications
from pgcdc_cli.catalog.server import ServerFacts, Session, read_facts
from pgcdc_cli.catalog.slots import Slot, read_slots

Level = Literal["error", "warning", "ok"]

_SETTINGS = """
SELECT name, reset_val, coalesce(unit, '') FROM pg_settings WHERE name = ANY (%(names)s)
"""
_NAMES = (
    "hot_standby_feedback",
    "idle_in_transaction_session_timeout",
    "idle_replication_slot_timeout",
    "idle_session_timeout",
    "lock_timeout",
    "logical_decoding_work_mem",
    "max_replication_slots",
    "max_slot_wal_keep_size",
    "max_wal_senders",
    "max_wal_size",
    "primary_slot_name",
    "statement_timeout",
    "synchronized_standby_slots",
    "transaction_timeout",
)
_PUBLICATIONS = "SELECT oid::bigint, pubname FROM pg_publication"
_ROLE_AND_SENDERS = "SELECT current_user, (SELECT count(*) FROM pg_stat_replication)"


RELOAD = "SELECT pg_reload_conf();"
_RESTART = "restart the server afterwards"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.

    `check` names the kind of finding, for scripts; `subject` is its slot, publication or table. `statements`
    fix the problem, in this order; `advice` is what no statement can do, such as a restart.
    """

    check: str
    level: Level
    message: str
    subject: str | None = None
    statements: tuple[str, ...] = ()
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting's value in a new session of this role, in units of `unit`, "" for none."""

    value: str
    unit: str

    @property
    def number(self) -> int:
        return int(self.value)

    @property
    def text(self) -> str:
        """The value as SHOW prints it: 65536 kB are 64MB."""
        if self.unit == "kB" and self.number and self.number % 1024 == 0:
            return f"{self.number // 1024}MB"
        return f"{self.value} {self.unit}".rstrip()


class Setup:
    """What a stream would depend on; each part is read once. Properties raise PgcdcError.

    Without a slot's name, all slots of the database are checked; without publications' names, all of them.
    """

    def __init__(self, session: Session, slot: str | None, publications: Sequence[str]) -> None:
        self.session = session
        self.slot_name = slot
        self.publication_names = tuple(publications)

    @cached_property
    def facts(self) -> ServerFacts:
        return read_facts(self.session)

    @cached_property
    def settings(self) -> dict[str, Setting]:
        """Settings by name, without those that the server's version doesn't have."""
        rows = self.session.ask(_SETTINGS, {"names": list(_NAMES)}, "read the server's settings")
        return {name: Setting(value, unit) for name, value, unit in rows}

    @cached_property
    def role(self) -> str:
        return str(self._role_and_senders[0])

    @property
    def wal_senders(self) -> int:
        """Number of walsenders running now."""
        return int(str(self._role_and_senders[1]))

    @cached_property
    def _role_and_senders(self) -> tuple[object, ...]:
        [row] = self.session.ask(_ROLE_AND_SENDERS, {}, "count the walsenders")
        return row

    @cached_property
    def slots(self) -> list[Slot]:
        """All slots of the server."""
        return read_slots(self.session, None)

    @property
    def named_slot(self) -> Slot | None:
        """The slot that is checked; None if none is named, or none has that name."""
        return next((slot for slot in self.slots if slot.name == self.slot_name), None)

    @cached_property
    def all_publications(self) -> list[Publication]:
        return read_publications(self.session, None)

    @property
    def publications(self) -> list[Publication]:
        """The named publications that exist, or all."""
        return [one for one in self.all_publications if self._looks_at(one.name)]

    @cached_property
    def publication_oids(self) -> list[int]:
        """OIDs of these publications; names are compared as stored, even if they are not valid text."""
        rows = self.session.ask(_PUBLICATIONS, {}, "read the publications")
        return [oid for oid, name in rows if self._looks_at(name)]

    def change(self, name: str, value: str, *, restart: bool = False) -> "SettingChange":
        """Say how a server setting is changed: by statements, or by hand on a managed service."""
        service = self.facts.service
        if service is not None:
            last = ", and restart the server" if restart else ""
            by_hand = f"set {name} = {value} in the {service.settings} ({service.name}){last}"
            return SettingChange((), by_hand)
        statement = f"ALTER SYSTEM SET {name} = {literal(value)};"
        return SettingChange((statement,), _RESTART) if restart else SettingChange((statement, RELOAD), None)

    def _looks_at(self, publication: str) -> bool:
        return not self.publication_names or publication in self.publication_names


def quoted(*name: str) -> str:
    """Quote a name for SQL, optionally with its schema."""
    return sql.Identifier(*name).as_string()


def literal(value: object) -> str:
    """Quote a value for SQL."""
    return sql.Literal(value).as_string()


class SettingChange(NamedTuple):
    """A finding's statements and advice that change a server setting."""

    statements: tuple[str, ...]
    advice: str | None

    def also(self, more: str) -> str:
        """Add to the advice."""
        return more if self.advice is None else f"{self.advice}; {more}"
