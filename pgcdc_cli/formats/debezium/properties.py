"""Check the properties of Debezium's PostgreSQL connector."""

import difflib
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.debezium.connector_config import (
    MANUAL,
    ConnectorConfig,
    Property,
    patterns,
    placeholder_octets,
    value_of,
    without_salt,
    wrong,
)
from pgcdc_cli.formats.debezium.masks import parse_mask
from pgcdc_cli.formats.debezium.transform_properties import is_transform_property, read_transforms

_ADJUSTMENTS = ("none", "avro", "avro_unicode")
_DECIMAL_FORMATS = ("base64", "numeric")

PROPERTIES = (
    Property("topic.prefix", "topic", "First part of topics' names, and the name in `source`. Required."),
    Property("topic.delimiter", "topic", "Separates the parts of a topic's name.", "."),
    Property("topic.transaction", "topic", "Name of the topic of transaction records.", "transaction"),
    Property(
        "topic.heartbeat.prefix",
        "topic",
        "First part of the name of the heartbeats' topic.",
        "__debezium-heartbeat",
    ),
    Property("schema.include.list", "patterns", "Only tables in matching schemas."),
    Property("schema.exclude.list", "patterns", "No tables in matching schemas."),
    Property("table.include.list", "patterns", "Only matching tables: `schema.table`."),
    Property("table.exclude.list", "patterns", "No matching tables."),
    Property("column.include.list", "patterns", "Only matching columns: `schema.table.column`."),
    Property("column.exclude.list", "patterns", "No matching columns."),
    Property("message.prefix.include.list", "patterns", "Only messages with matching prefixes."),
    Property("message.prefix.exclude.list", "patterns", "No messages with matching prefixes."),
    Property("message.key.columns", "keys", "Columns of the key, by table: `schema.table:a,b;...`."),
    Property(
        "decimal.handling.mode",
        "choice",
        "How numeric and money are written.",
        "precise",
        ("precise", "string", "double"),
    ),
    Property(
        "time.precision.mode",
        "choice",
        "Units of dates, times and timestamps; the last three need 3.4.",
        "adaptive",
        ("adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"),
    ),
    Property(
        "interval.handling.mode", "choice", "How intervals are written.", "numeric", ("numeric", "string")
    ),
    Property(
        "binary.handling.mode",
        "choice",
        "How bytes are written.",
        "bytes",
        ("bytes", "base64", "base64-url-safe", "hex"),
    ),
    Property("hstore.handling.mode", "choice", "How hstore is written.", "json", ("json", "map")),
    Property("money.fraction.digits", "number", "Digits of money after the decimal point.", "2", most=32767),
    Property("tombstones.on.delete", "flag", "Write a record without a value after each delete.", "true"),
    Property(
        "skipped.operations",
        "choices",
        "Operations to leave out. Rows of snapshots (r) are always written.",
        "t",
        ("c", "u", "d", "t", "r", "none"),
    ),
    Property("provide.transaction.metadata", "flag", "Write BEGIN and END, and number events.", "false"),
    Property(
        "snapshot.mode",
        "choice",
        "Whether the tables' rows come before the stream: never (or no_data), if the stream is new (initial;"
        " initial_only then ends the run), or at every start (always).",
        "initial",
        ("never", "no_data", "initial", "initial_only", "always"),
    ),
    Property(
        "unavailable.value.placeholder",
        "verbatim",
        "Placeholder for a value that the server did not send.",
        "__debezium_unavailable_value",
    ),
    Property(
        "include.unknown.datatypes", "flag", "Write types that Debezium doesn't know as bytes.", "false"
    ),
    Property("column.propagate.source.type", "patterns", "Columns whose schema names their source type."),
    Property("datatype.propagate.source.type", "patterns", "Types that their columns' schemas name."),
    Property(
        "schema.name.adjustment.mode",
        "choice",
        "How names of schemas are adjusted for Avro.",
        "none",
        _ADJUSTMENTS,
    ),
    Property(
        "field.name.adjustment.mode",
        "choice",
        "How names of fields are adjusted for Avro.",
        "none",
        _ADJUSTMENTS,
    ),
    Property("heartbeat.interval.ms", "number", "Milliseconds between heartbeats; 0 for none.", "0"),
    Property("key.converter.schemas.enable", "flag", "Write keys with their schema.", "true"),
    Property("value.converter.schemas.enable", "flag", "Write values with their schema.", "true"),
    Property(
        "key.converter.replace.null.with.default",
        "flag",
        "Write a key's null as the column's default.",
        "true",
    ),
    Property(
        "value.converter.replace.null.with.default", "flag", "Write a null as the column's default.", "true"
    ),
    Property(
        "key.converter.decimal.format",
        "choice",
        "How decimals of keys are written.",
        "base64",
        _DECIMAL_FORMATS,
    ),
    Property(
        "value.converter.decimal.format", "choice", "How decimals are written.", "base64", _DECIMAL_FORMATS
    ),
    Property("extended.headers.enabled", "flag", "Write 3.4's headers that name the connector.", "true"),
    Property("slot.name", "text", "The slot to read; -S wins.", "debezium"),
    Property("publication.name", "text", "The publication to read; --publication wins.", "dbz_publication"),
    Property(
        "publication.autocreate.mode",
        "choice",
        "How a missing publication is created; filtered also limits an existing one to the tables that pass"
        " the filters.",
        "all_tables",
        ("all_tables", "disabled", "filtered", "no_tables"),
    ),
    Property(
        "publish.via.partition.root",
        "flag",
        "Create a missing publication so that it publishes partitions as their root; needs 3.4.",
        "false",
    ),
    Property("database.hostname", "text", "The server's host; -h wins."),
    Property("database.port", "number", "The server's port; -p wins."),
    Property("database.user", "text", "The role to connect as; -U wins."),
    Property("database.password", "verbatim", "Its password."),
    Property("database.dbname", "text", "The database; -d wins."),
    Property("database.sslmode", "text", "libpq's sslmode."),
    Property("database.sslcert", "text", "File of the client's certificate."),
    Property("database.sslkey", "text", "File of the client's key."),
    Property("database.sslpassword", "verbatim", "Password of that key."),
    Property("database.sslrootcert", "text", "File of the root certificate."),
    Property(
        "debezium.version",
        "choice",
        "Version of Debezium whose envelope is written; this property is pgcdc's own.",
        "2.5",
        ("2.5", "3.4"),
    ),
)

MASKS = {
    "column.mask.with.N.chars": "Columns whose text is written as N asterisks.",
    "column.mask.hash.ALGORITHM.with.salt.SALT": "Columns whose text is written as its salted hash.",
    "column.mask.hash.v2.ALGORITHM.with.salt.SALT": "The same.",
    "column.truncate.to.N.chars": "Columns whose text is cut off after N characters.",
}
"""Properties that list columns and say by their name what to do with them; keys are the manual's names."""

MASK_PREFIXES = ("column.mask.with.", "column.mask.hash.", "column.truncate.to.")
"""Prefixes of these properties' names."""

WITHOUT_MEANING = frozenset(
    [
        "name",
        "connector.class",
        "tasks.max",
        "plugin.name",
        "errors.max.retries",
        "errors.retry.delay.max.ms",
        "errors.retry.delay.initial.ms",
        "poll.interval.ms",
        "max.batch.size",
        "max.queue.size",
        "max.queue.size.in.bytes",
        "slot.drop.on.stop",
        "slot.max.retries",
        "slot.retry.delay.ms",
        "status.update.interval.ms",
        "key.converter.schemas.cache.size",
        "value.converter.schemas.cache.size",
        "flush.lsn.source",
        "offset.storage",
        "offset.flush.interval.ms",
        "schema.refresh.mode",
        "retriable.restart.connector.wait.ms",
        "custom.retriable.exception",
        "task.id",
        "connection.timeout.ms",
        "database.tcpKeepAlive",
        "query.fetch.size",
        "snapshot.fetch.size",
        "snapshot.lock.timeout.ms",
        "snapshot.max.threads",
        "database.query.timeout.ms",
        "topic.cache.size",
        "custom.metric.tags",
        "slot.seek.to.known.offset.on.start",
        "table.ignore.builtin",
        "include.schema.changes",
        "include.schema.comments",
        "heartbeat.topics.prefix",
        # Kafka Connect's own, for any source.
        "config.action.reload",
        "errors.log.enable",
        "errors.log.include.messages",
        "errors.retry.timeout",
        "errors.tolerance",
        "exactly.once.support",
        "offset.flush.timeout.ms",
        "offsets.storage.topic",
        "transaction.boundary",
        "transaction.boundary.interval.ms",
        # Of 3.4.
        "advanced.metrics.enable",
        "connection.factory.class",
        "connection.validation.timeout.ms",
        "create.slot.command.timeout",
        "custom.sanitize.pattern",
        "executor.shutdown.timeout.ms",
        "guardrail.collections.limit.action",
        "guardrail.collections.max",
        "log.position.check.enable",
        "lsn.flush.timeout.action",
        "lsn.flush.timeout.ms",
        "snapshot.isolation.mode",
        "snapshot.locking.mode",
        "snapshot.locking.mode.custom.name",
        "streaming.delay.ms",
    ]
)
"""Properties that don't affect events, or ask for what pgcdc does anyway."""

_WITHOUT_MEANING = (
    "topic.creation.",
    "offset.storage.",
    "schema.history.internal.",
    "producer.override.",
    "admin.override.",
)

NOT_DONE = frozenset(
    [
        "converters",
        "event.processing.failure.handling.mode",
        "slot.stream.params",
        "database.initial.statements",
        "signal.data.collection",
        "signal.enabled.channels",
        "notification.enabled.channels",
        "incremental.snapshot.chunk.size",
        "snapshot.include.collection.list",
        "snapshot.select.statement.overrides",
        "snapshot.delay.ms",
        "xmin.fetch.interval.ms",
        "heartbeat.action.query",
        "topic.naming.strategy",
        "provide.schema.history",
        "sanitize.field.names",
        "header.converter",
        "replica.identity.autoset.values",
        "transaction.metadata.factory",
        "read.only",
        "lsn.flush.mode",
        "sourceinfo.struct.maker",
        "skip.messages.without.change",
        "post.processors",
        "database.sslfactory",
        "snapshot.custom.class",
        "snapshot.scan.all.columns.force",
        "snapshot.tables.order.by.row.count",
        "signal.poll.interval.ms",
        "incremental.snapshot.allow.schema.changes",
        "incremental.snapshot.watermarking.strategy",
        # Of 3.4.
        "event.converting.failure.handling.mode",
        "offset.mismatch.strategy",
        "slot.failover",
        "snapshot.mode.custom.name",
        "snapshot.query.mode",
        "snapshot.query.mode.custom.name",
    ]
)
"""Properties that change or make events in ways that pgcdc does not support."""


log = logging.getLogger("pgcdc")

_BY_NAME = {known.name: known for known in PROPERTIES}
_EARLIER = {f"{kind}.blacklist": f"{kind}.exclude.list" for kind in ("schema", "table", "column")}
_EARLIER |= {"database.server.name": "topic.prefix"}
"""What Debezium 1 called properties whose names resemble others now."""

_NOT_DONE = (
    "driver.",
    "signal.",
    "notification.",
    "openlineage.",
    "snapshot.mode.configuration.",
    "snapshot.select.statement.overrides.",
    "header.converter.",
    "key.converter.",
    "value.converter.",
)
_REFERENCE = re.compile(r"\$\{[^{}:]+:[^{}]*\}")
_ALONE = re.compile(r"\s*\$\{[^{}]+\}\s*")
_INSTEAD = {
    "signal.": "--resnapshot reads a table again",
    "incremental.snapshot.": "--resnapshot reads a table again",
    "heartbeat.action.query": "the slot moves on without it",
    "slot.failover": "use pgcdc slot create --failover",
}
"""What to do in place of a property that isn't supported, by the beginning of its name."""


def connector_config(properties: Mapping[str, str]) -> ConnectorConfig:
    """Check properties; warn about unsupported ones. Raises PgcdcError (USAGE) for an invalid value."""
    values: dict[str, Any] = {}
    masks = []
    given: dict[str, str] = {}
    for name, text in properties.items():
        _check_text(name, text)
        known = _BY_NAME.get(name)
        if known is not None or name.startswith(MASK_PREFIXES) or is_transform_property(name):
            _check_resolved(name, text)
        if known is not None:
            values[known.attribute] = value_of(known, text if known.kind == "verbatim" else text.strip())
        elif name.startswith(MASK_PREFIXES):
            masks.append((_mask_rule(name), patterns(name, text)))
        elif name in {"key.converter", "value.converter"}:
            _warn_of_converter(name, text)
            continue
        elif not is_transform_property(name):
            _warn(name)
            continue
        given[name] = text
    if not values.get("topic_prefix"):
        raise PgcdcError(
            ErrorKind.USAGE,
            "could not use the connector configuration: it has no topic.prefix",
            hint="give it with -c topic.prefix=NAME",
        )
    _check_class(properties.get("connector.class", ""))
    _check_lists(values, properties)
    _check_version(values, masks)
    _check_placeholder(values.get("unavailable_value_placeholder", ""))
    return ConnectorConfig(
        **values,
        masks=tuple(sorted(masks, key=lambda mask: parse_mask(mask[0]).rank)),
        transforms=read_transforms(properties, values.get("debezium_version", "2.5")),
        given=given,
    )


def _check_text(name: str, text: str) -> None:
    """Refuse halves of characters, which JSON can have, and a command's bytes that aren't UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise wrong(name, text, "is not valid text") from error


def _check_resolved(name: str, text: str) -> None:
    """Refuse a reference such as `${env:PASSWORD}`: it would be taken for the value.

    Kafka Connect asks its providers of configuration for them, and Debezium Server the environment.
    """
    alone = _ALONE.fullmatch(text) and not name.endswith(".replacement")
    if alone or _REFERENCE.search(text):
        error = wrong(name, text, "is a reference, which pgcdc doesn't resolve")
        error.hint = f"give the value itself: -c {without_salt(name)}=VALUE"
        if "password" in name:
            error.hint = f"use PGPASSWORD or ~/.pgpass in its place, and -c {name}="
        raise error


def _check_class(text: str) -> None:
    """Refuse the configuration of another connector, such as MySQL's: its properties mean something else."""
    name = text.strip().rpartition(".")[2]
    if name and not name.startswith("Postgres"):
        raise wrong("connector.class", text.strip(), "is not a connector for PostgreSQL")


def _check_placeholder(text: str) -> None:
    try:
        placeholder_octets(text)
    except ValueError as error:
        raise wrong("unavailable.value.placeholder", text, "has no hexadecimal digits after hex:") from error


def _check_lists(values: Mapping[str, Any], properties: Mapping[str, str]) -> None:
    """Refuse an include list together with an exclude list; the connector accepts only one of them."""
    for kind in ("schema", "table", "column", "message.prefix"):
        include, exclude = (f"{kind}.{which}.list" for which in ("include", "exclude"))
        if values.get(_BY_NAME[include].attribute) and values.get(_BY_NAME[exclude].attribute):
            raise wrong(exclude, properties[exclude], f"can't be combined with {include}")


def _check_version(values: Mapping[str, Any], masks: Sequence[tuple[str, object]]) -> None:
    """Refuse with 2.5 what came with 3.4."""
    if values.get("debezium_version", "2.5") != "2.5":
        return
    mode = values.get("time_precision_mode")
    if mode in {"isostring", "microseconds", "nanoseconds"}:
        raise wrong("time.precision.mode", mode, "needs debezium.version=3.4")
    if any(name == "column.truncate.to.0.chars" for name, _ in masks):
        raise PgcdcError(
            ErrorKind.USAGE,
            'could not use property "column.truncate.to.0.chars": no characters need debezium.version=3.4',
        )


def _warn_of_converter(name: str, text: str) -> None:
    if not text.strip().endswith(".JsonConverter"):
        log.warning('property "%s": "%s" is not supported: records are JsonConverter\'s', name, text)


def _warn(name: str) -> None:
    if name in WITHOUT_MEANING or name.startswith(_WITHOUT_MEANING):
        return
    shown = without_salt(name)
    if name in NOT_DONE or name.startswith(_NOT_DONE):
        instead = next((what for start, what in _INSTEAD.items() if name.startswith(start)), None)
        log.warning('property "%s" is not supported: %s', shown, instead or "events are as without it")
        return
    near = [_EARLIER[name]] if name in _EARLIER else difflib.get_close_matches(name, _BY_NAME, n=1)
    log.warning('property "%s" is unknown%s', shown, f': did you mean "{near[0]}"?' if near else "")


def _mask_rule(name: str) -> str:
    try:
        parse_mask(name)
    except ValueError as error:
        message = f'could not use property "{without_salt(name)}": {error}'
        raise PgcdcError(ErrorKind.USAGE, message, hint=MANUAL) from error
    return name
