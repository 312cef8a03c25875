"""A Debezium connector's configuration, including message transforms; how properties' values are parsed."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Literal, TypeAlias

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.debezium.java_regex import compile_java
from pgcdc_cli.formats.interface import TableLists

Deletes: TypeAlias = Literal["drop", "none", "rewrite", "tombstone"]
Replacement: TypeAlias = tuple[str | tuple[str | int], ...]
"""Texts, and between them, each in a tuple, groups whose text is inserted."""


@dataclass(frozen=True, slots=True)
class TopicPredicate:
    """Which topics' records a transform applies to: those that match as a whole, or (`negate`) the others."""

    topics: re.Pattern[str]
    negate: bool

    def holds(self, topic: str) -> bool:
        """Whether a topic's records are transformed."""
        return (self.topics.fullmatch(topic) is None) == self.negate


@dataclass(frozen=True, slots=True)
class AddedMember:
    """A member of an event that is added to the row as a field, or to the headers, with the name `added`.

    `block` is the member's place: `source`, `transaction`, or "" for the event itself.
    """

    block: str
    name: str
    added: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractNewRecordState:
    """The transform that reduces a record's value to the row.

    `deletes` is what a delete becomes: the old row (rewrite), a null value with the row's schema (none) or
    without one (tombstone), or no record (drop).
    `tombstones`: they are kept. `fill`: rewritten rows have a column's default in place of null.
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
        """Whether rows have a field that marks deleted ones."""
        return self.deletes == "rewrite"


PAYLOAD = "payload"
"""The payload's name if further columns are placed in the envelope beside it."""


@dataclass(frozen=True, slots=True)
class PlacedColumn:
    """A further column of the outbox, put under another name into a header or beside the payload."""

    column: str
    placement: Literal["header", "envelope"]
    alias: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRouter:
    """The outbox transform: each row inserted into the outbox table becomes an event of its own.

    `event_id` to `schema_version` name columns; the last two are "" for none. The topic is the value of the
    column `route_by_field`; if `topic_regex` matches it, with the match replaced by `topic_replacement`. With
    `tombstones` a blank payload becomes a null value. With `expand` a payload that is a JSON object is
    written as an object, which keeps its nulls if `nulls`.
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
        """Name the topic for a value of `route_by_field`."""
        return _replaced(route, self.topic_regex, self.topic_replacement)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexRouter:
    """Kafka Connect's transform that renames topics: of one that matches, the match is replaced."""

    regex: re.Pattern[str]
    replacement: Replacement
    predicate: TopicPredicate | None = None

    def topic(self, name: str) -> str:
        """Name the topic that a topic's records end up in."""
        return _replaced(name, self.regex, self.replacement)


def _replaced(text: str, regex: re.Pattern[str], replacement: Replacement) -> str:
    """Replace the first match in a text that also matches as a whole; any other text is left as it is."""
    found = regex.search(text)
    if found is None or regex.fullmatch(text) is None:
        return text
    parts = [part if isinstance(part, str) else found[part[0]] or "" for part in replacement]
    return text[: found.start()] + "".join(parts) + text[found.end() :]


RowTransform: TypeAlias = ExtractNewRecordState | EventRouter
"""A transform that changes records; of a topic, there is one at most."""
Transform: TypeAlias = RowTransform | RegexRouter


Patterns = tuple[re.Pattern[str], ...]
_BY_COLUMN, _BY_TYPE = 2, 3
"""Ranks of these rules in Debezium's order of looking for the one rule that applies to a column."""


_LATER: dict[str, object] = {"transforms": (), "extended_headers_enabled": True}
"""Attributes that were added when directories existed already, with the value that means their absence."""
_NOT_OF_EVENTS = ("database_", "slot_", "publication_", "publish_")
"""Beginnings of the attributes that events don't depend on."""
_SHOWN_BY_REPR = 200
"""Characters of a regular expression's text in its repr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfig:
    """A connector's configuration: Debezium's property names, underscores for dots, with 2.5's defaults.

    `given` are the properties as they were written.
    """

    topic_prefix: str
    topic_delimiter: str = "."
    topic_transaction: str = "transaction"
    topic_heartbeat_prefix: str = "__debezium-heartbeat"
    schema_include_list: Patterns = ()
    schema_exclude_list: Patterns = ()
    table_include_list: Patterns = ()
    table_exclude_list: Patterns = ()
    column_include_list: Patterns = ()
    column_exclude_list: Patterns = ()
    message_prefix_include_list: Patterns = ()
    message_prefix_exclude_list: Patterns = ()
    message_key_columns: Patterns = ()
    decimal_handling_mode: str = "precise"
    time_precision_mode: str = "adaptive"
    interval_handling_mode: str = "numeric"
    binary_handling_mode: str = "bytes"
    hstore_handling_mode: str = "json"
    money_fraction_digits: int = 2
    tombstones_on_delete: bool = True
    skipped_operations: tuple[str, ...] = ("t",)
    provide_transaction_metadata: bool = False
    snapshot_mode: str = "initial"
    unavailable_value_placeholder: str = "__debezium_unavailable_value"
    include_unknown_datatypes: bool = False
    column_propagate_source_type: Patterns = ()
    datatype_propagate_source_type: Patterns = ()
    schema_name_adjustment_mode: str = "none"
    field_name_adjustment_mode: str = "none"
    heartbeat_interval_ms: int = 0
    key_converter_schemas_enable: bool = True
    value_converter_schemas_enable: bool = True
    key_converter_replace_null_with_default: bool = True
    value_converter_replace_null_with_default: bool = True
    key_converter_decimal_format: str = "base64"
    value_converter_decimal_format: str = "base64"
    extended_headers_enabled: bool = True
    slot_name: str = "debezium"
    publication_name: str = "dbz_publication"
    publication_autocreate_mode: str = "all_tables"
    publish_via_partition_root: bool = False
    database_hostname: str = ""
    database_port: int | None = None
    database_user: str = ""
    database_password: str = ""
    database_dbname: str = ""
    database_sslmode: str = ""
    database_sslcert: str = ""
    database_sslkey: str = ""
    database_sslpassword: str = ""
    database_sslrootcert: str = ""
    debezium_version: str = "2.5"
    masks: tuple[tuple[str, Patterns], ...] = ()
    transforms: tuple[Transform, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __hash__(self) -> int:
        """Hash just the prefix, fast: a run has one or two configurations, looked up for each batch."""
        return hash(self.topic_prefix)

    @property
    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any property that events depend on."""
        texts = [
            f"{name}={getattr(self, name)!r}"
            for name in self.__dataclass_fields__
            if name != "given"
            and not name.startswith(_NOT_OF_EVENTS)
            # Left out if they have no effect, so that directories of older versions still match.
            and _LATER.get(name) != getattr(self, name)
        ]
        texts += _long_patterns(self)
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]

    @property
    def recorded(self) -> dict[str, str]:
        """What a checkpoint keeps: the fingerprint, and properties that tell what changed if that does.

        Some of them may change (`_MAY_CHANGE` in `directory/checkpoint.py`). A salt in a name is replaced by
        a few digits of its hash.
        """
        kept = {
            f"connector.{_SALT.sub(_hashed_salt, name)}": text
            for name, text in self.given.items()
            if not name.replace(".", "_").startswith(_NOT_OF_EVENTS)
        }
        return {"connector": self.fingerprint, **kept}

    @property
    def placeholder_octets(self) -> bytes:
        """The placeholder for unchanged TOAST values."""
        return placeholder_octets(self.unavailable_value_placeholder)

    @property
    def placeholder(self) -> str:
        return self.placeholder_octets.decode("utf-8", "replace")

    def transformed(self, topic: str) -> tuple[RowTransform | None, str]:
        """Find the transform that changes a topic's records, and the topic that they end up in.

        Raises PgcdcError (USAGE) if there are several, or if a topic taken from a row is renamed.
        """
        found: RowTransform | None = None
        name = topic
        for one in self.transforms:
            by_row = isinstance(found, EventRouter) or (found is not None and bool(found.route_by_field))
            if not by_row and one.predicate is not None and not one.predicate.holds(name):
                continue
            if found is not None and (by_row or not isinstance(one, RegexRouter)):
                raise PgcdcError(
                    ErrorKind.USAGE,
                    f'could not transform the records of "{topic}": several transforms apply to them',
                    hint="choose between them with predicates",
                )
            if isinstance(one, RegexRouter):
                name = one.topic(name)
            else:
                found = one
        return found, name

    def includes_table(self, schema: str, table: str) -> bool:
        """Whether the include and exclude lists let a table through."""
        if not _included(schema, self.schema_include_list, self.schema_exclude_list):
            return False
        return _included(f"{schema}.{table}", self.table_include_list, self.table_exclude_list)

    @property
    def table_lists(self) -> TableLists:
        """The include lists of tables and schemas that are given: whether a list has a table."""
        schemas, tables = self.schema_include_list, self.table_include_list
        lists: dict[str, Callable[[str, str], bool]] = {}
        if schemas:
            lists["schema.include.list"] = lambda schema, _: _any(schemas, schema)
        if tables:
            lists["table.include.list"] = lambda schema, table: _any(tables, f"{schema}.{table}")
        return lists

    def includes_column(self, schema: str, table: str, column: str) -> bool:
        """Whether the include and exclude lists let a column through."""
        name = f"{schema}.{table}.{column}"
        return _included(name, self.column_include_list, self.column_exclude_list)

    def includes_message(self, prefix: str) -> bool:
        """Whether the include and exclude lists let a message through."""
        return _included(prefix, self.message_prefix_include_list, self.message_prefix_exclude_list)

    def key_columns(self, schema: str, table: str, columns: Sequence[str]) -> tuple[str, ...]:
        """List the columns that `message.key.columns` puts into a table's key; empty for its primary key."""
        rules = self.message_key_columns
        found = [c for rule in rules for c in columns if rule.fullmatch(f"{schema}.{table}.{c}")]
        return tuple(dict.fromkeys(found))

    def source_type_rank(self, schema: str, table: str, column: str, kind: str) -> int | None:
        """Rank the rule that propagates a column's source type; None if there is none."""
        if _any(self.column_propagate_source_type, f"{schema}.{table}.{column}"):
            return _BY_COLUMN
        return _BY_TYPE if _any(self.datatype_propagate_source_type, f"{schema}.{table}.{kind}") else None

    def mask_rule(self, schema: str, table: str, column: str) -> str | None:
        """Find the property that masks a column, by name."""
        name = f"{schema}.{table}.{column}"
        return next((rule for rule, patterns in self.masks if _any(patterns, name)), None)


def _long_patterns(value: object) -> Iterator[str]:
    """Yield the regular expressions in a value that its repr cuts off, after 200 characters."""
    if isinstance(value, re.Pattern):
        if len(repr(value.pattern)) > _SHOWN_BY_REPR:
            yield value.pattern
    elif isinstance(value, tuple):
        for one in value:
            yield from _long_patterns(one)
    elif is_dataclass(value):
        for member in fields(value):
            yield from _long_patterns(getattr(value, member.name))


def placeholder_octets(text: str) -> bytes:
    """Parse a placeholder, which may be in hexadecimal digits. Raises ValueError if they aren't."""
    return bytes.fromhex(text[4:]) if text.startswith("hex:") else text.encode()


def _any(patterns: Patterns, name: str) -> bool:
    return any(pattern.fullmatch(name) for pattern in patterns)


def _included(name: str, include: Patterns, exclude: Patterns) -> bool:
    return _any(include, name) if include else not _any(exclude, name)


MOST_INT = 2**31 - 1

PropertyKind = Literal["text", "verbatim", "topic", "flag", "number", "choice", "choices", "patterns", "keys"]


@dataclass(frozen=True, slots=True)
class Property:
    """A property of the connector; `choices` are the valid values of a choice, or of a list of them.

    `most` is a number's largest value, that of Java's `int` or `short`. Blanks around a value are stripped,
    unless its kind is `verbatim`.
    """

    name: str
    kind: PropertyKind
    doc: str
    default: str = ""
    choices: tuple[str, ...] = ()
    most: int = MOST_INT

    @property
    def attribute(self) -> str:
        """Name of the property's attribute in the configuration."""
        return self.name.replace(".", "_").replace("-", "_")


_FLAGS = {"true": True, "false": False}
_NOT_IN_TOPICS = re.compile(r"[^A-Za-z0-9._-]")
_NOT_IN_COMMAS = re.compile(r"(?<!\\),")


MANUAL = "pgcdc-stream(1) describes the properties"
"""Hint of an error in a property."""


_SALT = re.compile(r"((?:^|\.)salt\.|^column\.mask\.hash\.(?:v2\.)?+[^.]*\.(?!with\.salt\.)).+", re.DOTALL)
"""A salt in a property's name, also in one that is mistyped."""


def without_salt(name: str) -> str:
    """Return a property's name as it may be shown: a salt that it contains is a secret."""
    return _SALT.sub(r"\1***", name)


def _hashed_salt(found: re.Match[str]) -> str:
    return f"{found[1]}{hashlib.sha256(found[0].encode()).hexdigest()[:8]}"


def wrong(name: str, text: str, reason: str) -> PgcdcError:
    """Make a USAGE error that names the property and its value; neither a password nor a salt is shown."""
    shown = "..." if "password" in name else text
    message = f'could not use property "{without_salt(name)}": "{shown}" {reason}'
    return PgcdcError(ErrorKind.USAGE, message, hint=MANUAL)


def value_of(known: Property, text: str) -> object:
    """Parse a property's value. Raises PgcdcError (USAGE) for an invalid one."""
    if known.kind == "flag":
        if text.lower() not in _FLAGS:
            raise wrong(known.name, text, "is neither true nor false")
        return _FLAGS[text.lower()]
    if known.kind == "number":
        if not text.isascii() or not text.isdigit():
            raise wrong(known.name, text, "is not a whole number")
        if len(text.lstrip("0")) > len(str(known.most)) or int(text) > known.most:
            raise wrong(known.name, text, f"is more than {known.most}")
        return int(text)
    if known.kind in {"choice", "choices"}:
        return _choice(known, text)
    if known.kind == "patterns":
        return patterns(known.name, text)
    if known.kind == "topic" and _NOT_IN_TOPICS.search(text):
        raise wrong(known.name, text, "has characters other than letters and digits of ASCII, ., _ and -")
    return _keys(known.name, text) if known.kind == "keys" else text


def _choice(known: Property, text: str) -> object:
    chosen = [part.strip().lower() for part in text.split(",")] if known.kind == "choices" else [text.lower()]
    bad = next((one for one in chosen if one not in known.choices), None)
    if bad is not None:
        raise wrong(known.name, bad, f"is not one of {', '.join(known.choices)}")
    if known.kind == "choice":
        return chosen[0]
    if "none" in chosen and len(chosen) > 1:
        raise wrong(known.name, text, "has other values besides none")
    # The connector accepts r, but skips nothing for it.
    return tuple(one for one in chosen if one not in {"none", "r"})


def patterns(name: str, text: str) -> Patterns:
    """Compile a comma-separated list of regular expressions; each must match a whole name.

    As in Java, only ASCII letters match without regard to case, and character classes are ASCII's.
    """
    parts = [part.strip().replace(r"\,", ",") for part in _NOT_IN_COMMAS.split(text)]
    return tuple(pattern(name, part) for part in parts if part)


def pattern(name: str, text: str, *, ignore_case: bool = True) -> re.Pattern[str]:
    """Compile a Java regular expression."""
    try:
        return compile_java(text, re.ASCII | (re.IGNORECASE if ignore_case else re.NOFLAG))
    except ValueError as error:
        raise wrong(name, text, f"can't be used as a regular expression: {error}") from error


def _keys(name: str, text: str) -> Patterns:
    """Compile patterns of `schema.table.column` from rules `TABLE:COLUMN,...`, separated by semicolons."""
    rules = []
    for rule in filter(None, (part.strip() for part in text.split(";"))):
        table, colon, columns = rule.rpartition(":")
        if not colon or not columns.strip():
            raise wrong(name, rule, "is not TABLE:COLUMN,...")
        rules += [pattern(name, f"{table.strip()}.{column.strip()}") for column in columns.split(",")]
    return tuple(rules)
