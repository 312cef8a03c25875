"""The properties of message transforms: `transforms`, `transforms.NAME.…` and `predicates`."""

import difflib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.debezium.connector_config import (
    PAYLOAD,
    AddedMember,
    Deletes,
    EventRouter,
    ExtractNewRecordState,
    PlacedColumn,
    Property,
    RegexRouter,
    Replacement,
    TopicPredicate,
    Transform,
    pattern,
    value_of,
    wrong,
)
from pgcdc_cli.formats.debezium.types import connect_schemas

UNWRAP = "io.debezium.transforms.ExtractNewRecordState"
ROUTER = "io.debezium.transforms.outbox.EventRouter"
REGEX_ROUTER = "org.apache.kafka.connect.transforms.RegexRouter"
_TOPIC_MATCHES = "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"
_PREFIX, _PREDICATES = "transforms.", "predicates."
_COMMON = ("type", "predicate", "negate")

UNWRAP_PROPERTIES = (
    Property(
        "delete.tombstone.handling.mode",
        "choice",
        "What becomes of deletes and tombstones. In 3.4 also delete-to-tombstone, and by default tombstone.",
        choices=("drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone"),
    ),
    Property(
        "delete.handling.mode",
        "choice",
        "Only in 2.5: what a delete's value is, if it has one.",
        "drop",
        ("drop", "none", "rewrite"),
    ),
    Property("drop.tombstones", "flag", "Only in 2.5: leave tombstones out.", "true"),
    Property(
        "add.fields", "text", "Members of the event that are added to the row: `op,source.lsn,table:TABLE`."
    ),
    Property("add.fields.prefix", "verbatim", "Prefix of their names.", "__"),
    Property("add.headers", "text", "Members of the event that are added to the headers."),
    Property("add.headers.prefix", "verbatim", "Prefix of their names.", "__"),
    Property("route.by.field", "text", "The column of text whose value is the topic."),
    Property(
        "replace.null.with.default",
        "flag",
        "Only in 3.4: write a rewritten row's null as the default.",
        "true",
    ),
)
"""Properties of `ExtractNewRecordState`."""

ROUTER_PROPERTIES = (
    Property("table.field.event.id", "text", "The column of the event's id, which is a header.", "id"),
    Property("table.field.event.key", "text", "The column of the record's key.", "aggregateid"),
    Property("table.field.event.type", "text", "Ignored.", "type"),
    Property("table.field.event.payload", "text", "The column of the record's value.", "payload"),
    Property("table.field.event.timestamp", "text", "The column of the record's time, which is not written."),
    Property("table.field.event.schema.version", "text", "The column of the version of the value's schema."),
    Property(
        "table.fields.additional.placement", "text", "Further columns: `COLUMN:header|envelope[:NAME],...`."
    ),
    Property(
        "table.fields.additional.error.on.missing", "flag", "Refuse a table that lacks one of them.", "true"
    ),
    Property(
        "table.expand.json.payload", "flag", "Write a payload that is a JSON object as an object.", "false"
    ),
    Property(
        "table.json.payload.null.behavior",
        "choice",
        "Whether an expanded payload keeps its nulls.",
        "ignore",
        ("ignore", "optional_bytes"),
    ),
    Property("route.by.field", "text", "The column from which the topic is made.", "aggregatetype"),
    Property("route.topic.regex", "verbatim", "What is searched for in it.", "(?<routedByValue>.*)"),
    Property("route.topic.replacement", "verbatim", "What replaces it.", "outbox.event.${routedByValue}"),
    Property("route.tombstone.on.empty.payload", "flag", "Write no value for a blank payload.", "false"),
    Property(
        "debezium.op.invalid.behavior",
        "choice",
        "What to do with an update of an outbox's row: leave it out with a warning, or stop.",
        "warn",
        ("warn", "error", "fatal"),
    ),
)
"""Properties of `EventRouter`."""

REGEX_ROUTER_PROPERTIES = (
    Property("regex", "verbatim", "Topics that are renamed: those that match as a whole."),
    Property("replacement", "verbatim", "What replaces the match; `$1` is a group."),
)
"""Properties of `RegexRouter`."""

_ELSEWHERE = {
    "2.5": {"replace.null.with.default"},
    "3.4": {"delete.handling.mode", "drop.tombstones"},
}
"""Properties that a version doesn't have."""
_WITHOUT_MEANING = {
    "drop.fields.header.name",
    "drop.fields.from.key",
    "drop.fields.keep.schema.compatible",
}
"""Ignored: they concern headers that only other transforms add."""
_TOMBSTONE_MODES: dict[str, tuple[Deletes, bool]] = {
    "drop": ("drop", False),
    "tombstone": ("none", False),
    "rewrite": ("rewrite", False),
    "rewrite-with-tombstone": ("rewrite", True),
    "delete-to-tombstone": ("tombstone", False),
}
"""The attributes `deletes` and `tombstones` of `ExtractNewRecordState`, by mode."""

log = logging.getLogger("pgcdc")


def documented() -> Iterator[Property]:
    """Yield the properties of transforms for the manual, under example names."""
    yield Property("transforms", "text", "Names of the message transforms, each with a type and properties.")
    for kind, (name, known, _) in _READERS.items():
        prefix = f"{_PREFIX}{name}."
        yield Property(f"{prefix}type", "text", f"{kind}, whose further properties follow.")
        yield from (replace(one, name=prefix + one.name) for one in known)
    yield Property(f"{_PREFIX}NAME.predicate", "text", "The predicate that chooses its records.")
    yield Property(f"{_PREFIX}NAME.negate", "flag", "Choose the records that don't match instead.", "false")
    yield Property(f"{_PREDICATES}NAME.type", "text", f"{_TOPIC_MATCHES}.")
    yield Property(f"{_PREDICATES}NAME.pattern", "patterns", "Topics whose records match.")


def is_transform_property(name: str) -> bool:
    """Whether a property is one that `read_transforms` reads."""
    return name in {"transforms", "predicates"} or name.startswith((_PREFIX, _PREDICATES))


def read_transforms(properties: Mapping[str, str], version: str) -> tuple[Transform, ...]:
    """Read the transforms of a connector of one version of Debezium; warn about unknown properties.

    Raises PgcdcError (USAGE) for a transform or a value that is not supported.
    """
    listed = properties.get("transforms", "")
    names = _list(listed)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise wrong("transforms", listed, f'names "{twice}" twice')
    _warn_of_unused(properties, names)
    return tuple(_transform(name, properties, version) for name in names)


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _warn_of_unused(properties: Mapping[str, str], names: list[str]) -> None:
    ours = tuple(f"{_PREFIX}{name}." for name in names)
    for name in properties:
        if name.startswith(_PREFIX) and not name.startswith(ours):
            log.warning('property "%s" has no effect: transforms does not name it', name)


def _transform(name: str, properties: Mapping[str, str], version: str) -> Transform:
    prefix = f"{_PREFIX}{name}."
    own = {key.removeprefix(prefix): text for key, text in properties.items() if key.startswith(prefix)}
    kind = own.get("type", "").strip()
    if not kind:
        raise wrong("transforms", properties["transforms"], f"names a transform without {prefix}type")
    if kind not in _READERS:
        raise PgcdcError(
            ErrorKind.USAGE,
            f'could not use property "{prefix}type": "{kind}" is not supported',
            hint=f"the transforms that pgcdc knows are {', '.join(_READERS)}",
        )
    _, known, read = _READERS[kind]
    values = _values(prefix, own, known, version)
    return read(prefix, values, version, _predicate(prefix, own, properties))


def _values(prefix: str, own: Mapping[str, str], known: tuple[Property, ...], version: str) -> dict[str, Any]:
    """Check a transform's own properties; return a value for each that this version has."""
    by_name = {one.name: one for one in known if one.name not in _ELSEWHERE[version]}
    for name in own.keys() - by_name.keys() - _WITHOUT_MEANING - {*_COMMON}:
        near = difflib.get_close_matches(name, by_name, n=1)
        hint = f': did you mean "{prefix}{near[0]}"?' if near else ""
        log.warning('property "%s" is unknown to Debezium %s%s', prefix + name, version, hint)
    return {one.attribute: _value(prefix, one, own.get(one.name, one.default)) for one in by_name.values()}


def _value(prefix: str, known: Property, text: str) -> object:
    named = replace(known, name=prefix + known.name)
    text = text if known.kind == "verbatim" else text.strip()
    return value_of(named, text) if text or known.kind not in {"choice", "flag"} else None


def _predicate(prefix: str, own: Mapping[str, str], properties: Mapping[str, str]) -> TopicPredicate | None:
    name = own.get("predicate", "").strip()
    negate = value_of(Property(prefix + "negate", "flag", ""), own.get("negate", "false").strip())
    if not name:
        return None
    kind = properties.get(f"{_PREDICATES}{name}.type", "").strip()
    if kind != _TOPIC_MATCHES:
        raise PgcdcError(
            ErrorKind.USAGE,
            f'could not use property "{_PREDICATES}{name}.type": "{kind}" is not supported',
            hint=f"the predicate that pgcdc knows is {_TOPIC_MATCHES}",
        )
    topics = f"{_PREDICATES}{name}.pattern"
    return TopicPredicate(pattern(topics, properties.get(topics, ""), ignore_case=False), bool(negate))


def _unwrap(
    prefix: str, values: Mapping[str, Any], version: str, predicate: TopicPredicate | None
) -> Transform:
    mode = values["delete_tombstone_handling_mode"] or ("tombstone" if version != "2.5" else None)
    if mode == "delete-to-tombstone" and version == "2.5":
        raise wrong(f"{prefix}delete.tombstone.handling.mode", mode, "needs debezium.version=3.4")
    deletes, tombstones = (
        _TOMBSTONE_MODES[mode]
        if mode is not None
        else (values["delete_handling_mode"], not values["drop_tombstones"])
    )
    added = {
        where: _added(f"{prefix}add.{where}", values[f"add_{where}"], values[f"add_{where}_prefix"], version)
        for where in ("fields", "headers")
    }
    return ExtractNewRecordState(
        deletes=deletes,
        tombstones=tombstones,
        **added,
        route_by_field=values["route_by_field"],
        fill=values.get("replace_null_with_default", True),
        predicate=predicate,
    )


def _added(name: str, text: str, prefix: str, version: str) -> tuple[AddedMember, ...]:
    """Parse a list of members to add; a member that no event has is left out."""
    members = []
    for part in _list(text):
        member, _, added = part.partition(":")
        if ":" in added:
            raise wrong(name, part, "is not MEMBER or MEMBER:NAME")
        found = _member(name, member.strip(), added, version)
        if found is not None:
            members.append(AddedMember(found.block, found.name, prefix + found.added))
    names = [member.added for member in members]
    twice = next((one for one in names if names.count(one) > 1), None)
    if twice is not None:
        raise wrong(name, text, f'makes "{twice}" twice')
    return tuple(members)


def _member(name: str, member: str, added: str, version: str) -> AddedMember | None:
    """Find a member of an event.

    Without a block, a name is the transaction's or the event's own, else the source's.
    """
    block, dot, field = member.rpartition(".")
    own = connect_schemas.event_members(version)
    if not dot:
        field = member
        block = "transaction" if field in connect_schemas.OF_TRANSACTION else "" if field in own else "source"
    if member in {"before", "after", "source", "transaction"} or block not in {"", "source", "transaction"}:
        raise wrong(name, member, "is not a plain member of an event, of its source or its transaction")
    called = added or (f"{block}_{field}" if dot else field)
    if field not in connect_schemas.event_members(version, block):
        return AddedMember("", field, called) if field in own else None
    return AddedMember(block, field, called)


def _route(
    prefix: str, values: Mapping[str, Any], _version: str, predicate: TopicPredicate | None
) -> Transform:
    regex = pattern(f"{prefix}route.topic.regex", values["route_topic_regex"], ignore_case=False)
    placed = _all_placed(f"{prefix}table.fields.additional.placement", values)
    if values["route_tombstone_on_empty_payload"] and any(one.placement == "envelope" for one in placed):
        name = f"{prefix}route.tombstone.on.empty.payload"
        raise wrong(name, "true", "is not supported together with a column that is placed in the envelope")
    return EventRouter(
        event_id=values["table_field_event_id"],
        event_key=values["table_field_event_key"],
        payload=values["table_field_event_payload"],
        timestamp=values["table_field_event_timestamp"],
        schema_version=values["table_field_event_schema_version"],
        route_by_field=values["route_by_field"],
        topic_regex=regex,
        topic_replacement=_replacement(
            prefix, "route.topic.replacement", values["route_topic_replacement"], regex
        ),
        placed=placed,
        error_on_missing=values["table_fields_additional_error_on_missing"],
        tombstones=values["route_tombstone_on_empty_payload"],
        expand=values["table_expand_json_payload"],
        nulls=values["table_json_payload_null_behavior"] == "optional_bytes",
        on_update=values["debezium_op_invalid_behavior"],
        predicate=predicate,
    )


def _rename(
    prefix: str, values: Mapping[str, Any], _version: str, predicate: TopicPredicate | None
) -> Transform:
    if not values["regex"]:
        raise wrong(f"{prefix}regex", "", "matches no topic")
    regex = pattern(f"{prefix}regex", values["regex"], ignore_case=False)
    replacement = _replacement(prefix, "replacement", values["replacement"], regex)
    return RegexRouter(regex=regex, replacement=replacement, predicate=predicate)


def _all_placed(name: str, values: Mapping[str, Any]) -> tuple[PlacedColumn, ...]:
    """Parse where further columns are placed; no name in the envelope may be there twice."""
    placed = tuple(_placed(name, values))
    names = [PAYLOAD, *(one.alias for one in placed if one.placement == "envelope")]
    twice = next((one for one in names if names.count(one) > 1), None)
    if twice is not None:
        text = values["table_fields_additional_placement"]
        raise wrong(name, text, f'makes "{twice}" twice in the envelope')
    return placed


def _placed(name: str, values: Mapping[str, Any]) -> Iterator[PlacedColumn]:
    """Parse where further columns are placed; a record's partition is not written."""
    for part in _list(values["table_fields_additional_placement"]):
        column, placement, *alias = (word.strip() for word in (*part.split(":"), ""))
        if placement not in {"header", "envelope", "partition"} or len(alias) > 2:
            raise wrong(name, part, "is not COLUMN:header|envelope|partition[:NAME]")
        if placement != "partition":
            yield PlacedColumn(column, cast("Any", placement), alias[0] or column)


_GROUP = re.compile(r"\\(.)|\$\{(\w+)\}|\$([0-9]+)|(\$|\\)")


def _replacement(prefix: str, own: str, text: str, regex: re.Pattern[str]) -> Replacement:
    """Split a replacement of Java's `replaceFirst`: `${name}` and `$1` are groups, a backslash escapes."""
    parts: list[str | tuple[str | int]] = []
    end = 0
    for found in _GROUP.finditer(text):
        quoted, name, number, bad = found.groups()
        if bad or (name and name not in regex.groupindex) or (number and int(number[0]) > regex.groups):
            regular = own.replace("replacement", "regex")
            raise wrong(prefix + own, text, f"names a group that is not in {regular}")
        parts.append(text[end : found.start()])
        if number:
            most = min(len(number), len(str(regex.groups)))
            digits = next(n for n in range(most, 0, -1) if n == 1 or int(number[:n]) <= regex.groups)
            parts += [(int(number[:digits]),), number[digits:]]
        else:
            parts.append((name,) if name else quoted)
        end = found.end()
    return (*parts, text[end:])


_Reader = Callable[[str, Mapping[str, Any], str, TopicPredicate | None], Transform]
_READERS: dict[str, tuple[str, tuple[Property, ...], _Reader]] = {
    UNWRAP: ("unwrap", UNWRAP_PROPERTIES, _unwrap),
    ROUTER: ("outbox", ROUTER_PROPERTIES, _route),
    REGEX_ROUTER: ("route", REGEX_ROUTER_PROPERTIES, _rename),
}
"""For each type: its name in the manual, its properties, and the function that reads them."""
