"""Message transforms as the configuration says them: what becomes of a record before it is written."""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

Deletes: TypeAlias = Literal["drop", "none", "rewrite"]
Replacement: TypeAlias = tuple[str | tuple[str | int], ...]
"""Texts, and in tuples the groups whose text goes between them."""


@dataclass(frozen=True, slots=True)
class TopicPredicate:
    """Which topics' records a transform is for: those that match as a whole, or the others."""

    topics: re.Pattern[str]
    negate: bool

    def holds(self, topic: str) -> bool:
        """Whether a topic's records are transformed."""
        return (self.topics.fullmatch(topic) is None) == self.negate


@dataclass(frozen=True, slots=True)
class AddedMember:
    """A member of an event that becomes a field of the row or a header, which is called `added`.

    `block` is what it stands in: `source`, `transaction`, or "" for the event itself.
    """

    block: str
    name: str
    added: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractNewRecordState:
    """A record's value is the row alone.

    `deletes` says what a delete's value is: the old row, null (none), or whether there is none at all (drop);
    `tombstones` whether those stay. With `fill`, rewritten rows have defaults for nulls.
    """

    deletes: Deletes
    tombstones: bool
    fields: tuple[AddedMember, ...]
    headers: tuple[AddedMember, ...]
    route_by_field: str
    fill: bool = True
    predicate: TopicPredicate | None = None

    @property
    def rewrites(self) -> bool:
        """Whether rows say if they are deleted."""
        return self.deletes == "rewrite"


@dataclass(frozen=True, slots=True)
class PlacedColumn:
    """A column of the outbox that goes into a header or beside the payload, by another name."""

    column: str
    placement: Literal["header", "envelope"]
    alias: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRouter:
    """A row that is inserted into an outbox is an event of its own.

    `event_id` to `schema_version` are columns, the latter two "" for none. The topic is what
    `topic_replacement` makes of the column `route_by_field`, where `topic_regex` matches it. With
    `tombstones` an event with a blank payload has no value; with `expand` a payload is JSON of its own, and
    keeps its nulls with `nulls`.
    """

    event_id: str
    event_key: str
    payload: str
    timestamp: str
    schema_version: str
    route_by_field: str
    topic_regex: re.Pattern[str]
    topic_replacement: Replacement
    placed: tuple[PlacedColumn, ...]
    error_on_missing: bool
    tombstones: bool
    expand: bool
    nulls: bool
    on_update: Literal["warn", "error", "fatal"]
    predicate: TopicPredicate | None = None

    def topic(self, route: str) -> str:
        """Name the topic of what is routed like this."""
        found = self.topic_regex.search(route)
        if found is None or self.topic_regex.fullmatch(route) is None:
            return route
        parts = [part if isinstance(part, str) else found[part[0]] or "" for part in self.topic_replacement]
        return route[: found.start()] + "".join(parts) + route[found.end() :]


Transform: TypeAlias = ExtractNewRecordState | EventRouter
