"""Connect schemas as JsonConverter writes them, and names as Debezium sanitises and adjusts them."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from struct import iter_unpack
from typing import Any

from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.types.kind import token

Adjust = Callable[[str], str]
_LONGEST_TOPIC = 249


def topic(config: ConnectorConfig, *parts: str) -> str:
    """Join a topic's name; characters that Kafka forbids become `_`, and it is cut at Kafka's limit."""
    joined = config.topic_delimiter.join((config.topic_prefix, *parts))
    return re.sub(r"[^A-Za-z0-9._-]", lambda match: _underscores(match[0]), joined)[:_LONGEST_TOPIC]


def schema_adjuster(config: ConnectorConfig) -> Adjust:
    """Choose by `schema.name.adjustment.mode`; dots are kept, since they separate a full name's parts."""
    return _adjuster(config.schema_name_adjustment_mode, dots=True)


def field_adjuster(config: ConnectorConfig) -> Adjust:
    """Choose by `field.name.adjustment.mode`."""
    return _adjuster(config.field_name_adjustment_mode, dots=False)


def _adjuster(mode: str, *, dots: bool) -> Adjust:
    if mode == "none":
        return str
    allowed = "A-Za-z0-9." if dots else "A-Za-z0-9"
    return partial(_with_underscores if mode == "avro" else _with_codes, allowed)


def _with_underscores(allowed: str, name: str) -> str:
    """Replace characters that Avro forbids by underscores; put one before a digit at the start."""
    adjusted = re.sub(f"[^{allowed}_]", lambda match: _underscores(match[0]), name)
    return re.sub("^([0-9])", r"_\1", adjusted)


def _with_codes(allowed: str, name: str) -> str:
    """Replace characters that Avro forbids, underscores, and a digit at the start by their codes."""
    return re.sub(f"^[0-9]|[^{allowed}]", lambda match: _unicode(match[0]), name)


def _underscores(character: str) -> str:
    """Write one underscore per Java character (UTF-16 unit)."""
    return "_" * (len(character.encode("utf-16-be")) // 2)


def _unicode(character: str) -> str:
    """Write each UTF-16 unit in hex, with two zeroes before it below U+0100, as Debezium does."""
    units = iter_unpack(">H", character.encode("utf-16-be"))
    return "".join(f"_u00{unit:x}" if unit < 0x100 else f"_u{unit:x}" for (unit,) in units)


Schema = dict[str, Any]
_ORDER = (
    "type", "items", "keys", "values", "fields",
    "optional", "name", "version", "doc", "parameters", "default", "field",
)  # fmt: skip


def in_order(schema: Schema) -> Schema:
    """Put a schema's keys in JsonConverter's order."""
    return {key: schema[key] for key in _ORDER if key in schema}


def render(value: object) -> bytes:
    """Write a schema as JSON; bytes in it are JSON tokens already (a default)."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict):
        return b"{" + b",".join(render(key) + b":" + render(item) for key, item in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(render, value)) + b"]"
    return token(value)


def wrapping(schema: Schema, *, enabled: bool) -> tuple[bytes, bytes]:
    """Return the text before and after a payload."""
    return (b'{"schema":' + render(schema) + b',"payload":', b"}") if enabled else (b"", b"")


def field(schema: Schema, name: str) -> Schema:
    return {**schema, "field": name}


def plain(type_: str, name: str, *, optional: bool = False) -> Schema:
    return {"type": type_, "optional": optional, "field": name}


def struct(
    fields: Sequence[Schema], name: str | None = None, version: int | None = None, *, optional: bool = False
) -> Schema:
    schema: Schema = {"type": "struct", "fields": list(fields), "optional": optional}
    if name is not None:
        schema["name"] = name
    if version is not None:
        schema["version"] = version
    return schema


def source(version: str) -> Schema:
    """Make the schema of the source block, for a version of Debezium."""
    newer = version != "2.5"
    allowed = "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    snapshot: Schema = {
        "type": "string", "optional": True, "name": "io.debezium.data.Enum", "version": 1,
        "parameters": {"allowed": allowed if newer else "true,last,false,incremental"},
        "default": "false", "field": "snapshot",
    }  # fmt: skip
    fields = [
        plain("string", "version"), plain("string", "connector"), plain("string", "name"),
        plain("int64", "ts_ms"), snapshot, plain("string", "db"), plain("string", "sequence", optional=True),
        *([plain("int64", "ts_us", optional=True), plain("int64", "ts_ns", optional=True)] if newer else []),
        plain("string", "schema"), plain("string", "table"), plain("int64", "txId", optional=True),
        plain("int64", "lsn", optional=True), plain("int64", "xmin", optional=True),
    ]  # fmt: skip
    name = "io.debezium.connector.postgresql.Source"
    return field(struct(fields, name, 1 if newer else None), "source")


OF_TRANSACTION = ("id", "total_order", "data_collection_order")
"""Members of the transaction block."""
_TRANSACTION = field(
    struct(
        [plain("int64" if name != "id" else "string", name) for name in OF_TRANSACTION],
        "event.block",
        1,
        optional=True,
    ),
    "transaction",
)


def _handled(version: str) -> list[Schema]:
    units = ("ts_ms",) if version == "2.5" else ("ts_ms", "ts_us", "ts_ns")
    return [plain("int64", unit, optional=True) for unit in units]


_OPERATION = plain("string", "op")


def envelope(row: Schema, name: str, config: ConnectorConfig) -> Schema:
    """Make the schema of a row's event; `row` is the optional struct of the table's columns."""
    version = config.debezium_version
    images = [field(row, "before"), field(row, "after"), source(version)]
    if version == "2.5":
        return struct([*images, _OPERATION, *_handled(version), _TRANSACTION], name, 1)
    return struct([*images, _TRANSACTION, _OPERATION, *_handled(version)], name, 2)


def event_members(version: str, block: str = "") -> dict[str, Schema]:
    """Return the schemas with which a transform adds plain members of an event or a block of it."""
    blocks = {
        "": [_OPERATION, *_handled(version)],
        "source": source(version)["fields"],
        "transaction": _TRANSACTION["fields"],
    }
    basics = ("type", "name", "version", "parameters", "field")
    return {
        member["field"]: in_order({"optional": True} | {key: member[key] for key in basics if key in member})
        for member in blocks[block]
    }


_PACKAGE = "io.debezium.connector"
MESSAGE_KEY = struct([plain("string", "prefix", optional=True)], f"{_PACKAGE}.postgresql.MessageKey", 1)
TRANSACTION_KEY = struct([plain("string", "id")], f"{_PACKAGE}.common.TransactionMetadataKey", 1)
TRANSACTION_VALUE = struct(
    [
        plain("string", "status"),
        plain("string", "id"),
        plain("int64", "event_count", optional=True),
        {
            "type": "array",
            "items": struct(
                [plain("string", "data_collection"), plain("int64", "event_count")],
                "event.collection",
                1,
                optional=True,
            ),
            "optional": True,
            "field": "data_collections",
        },
        plain("int64", "ts_ms"),
    ],
    f"{_PACKAGE}.common.TransactionMetadataValue",
    1,
)
HEARTBEAT_KEY = struct([plain("string", "serverName")], f"{_PACKAGE}.common.ServerNameKey", 1)
HEARTBEAT_VALUE = struct([plain("int64", "ts_ms")], f"{_PACKAGE}.common.Heartbeat", 1)


def message(config: ConnectorConfig) -> Schema:
    """Make the schema of a logical decoding message's event."""
    text = config.binary_handling_mode != "bytes"
    content = plain("string" if text else "bytes", "content", optional=True)
    block = struct([plain("string", "prefix", optional=True), content], f"{_PACKAGE}.postgresql.Message", 1)
    newer = config.debezium_version != "2.5"
    fields = [plain("string", "op"), plain("int64", "ts_ms", optional=True), source(config.debezium_version)]
    fields += [_TRANSACTION] if newer else []
    return struct([*fields, field(block, "message")], f"{_PACKAGE}.postgresql.MessageValue", 1)
