"""Connect schemas as JsonConverter writes them."""

from collections.abc import Sequence
from typing import Any

from pgcdc_cli.formats.debezium.config import ConnectorConfig
from pgcdc_cli.formats.debezium.types.kind import token

Schema = dict[str, Any]
_ORDER = (
    "type", "items", "keys", "values", "fields",
    "optional", "name", "version", "doc", "parameters", "default", "field",
)  # fmt: skip


def in_order(schema: Schema) -> Schema:
    """Put a schema's keys in JsonConverter's order."""
    return {key: schema[key] for key in _ORDER if key in schema}


def render(value: object) -> bytes:
    """Write a schema; bytes in it are JSON tokens already (a default's)."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict):
        return b"{" + b",".join(render(key) + b":" + render(item) for key, item in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(render, value)) + b"]"
    return token(value)


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


def source(config: ConnectorConfig) -> Schema:
    """The source block of every event."""
    newer = config.debezium_version != "2.5"
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


_TRANSACTION = field(
    struct(
        [plain("string", "id"), plain("int64", "total_order"), plain("int64", "data_collection_order")],
        "event.block",
        1,
        optional=True,
    ),
    "transaction",
)


def _handled(config: ConnectorConfig) -> list[Schema]:
    units = ("ts_ms",) if config.debezium_version == "2.5" else ("ts_ms", "ts_us", "ts_ns")
    return [plain("int64", unit, optional=True) for unit in units]


def envelope(row: Schema, name: str, config: ConnectorConfig) -> Schema:
    """A row's event; `row` is the optional struct of the table's columns."""
    images = [field(row, "before"), field(row, "after"), source(config)]
    operation = plain("string", "op")
    if config.debezium_version == "2.5":
        return struct([*images, operation, *_handled(config), _TRANSACTION], name, 1)
    return struct([*images, _TRANSACTION, operation, *_handled(config)], name, 2)


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
    """A logical decoding message's event."""
    text = config.binary_handling_mode != "bytes"
    content = plain("string" if text else "bytes", "content", optional=True)
    block = struct([plain("string", "prefix", optional=True), content], f"{_PACKAGE}.postgresql.Message", 1)
    newer = config.debezium_version != "2.5"
    fields = [plain("string", "op"), plain("int64", "ts_ms", optional=True), source(config)]
    fields += [_TRANSACTION] if newer else []
    return struct([*fields, field(block, "message")], f"{_PACKAGE}.postgresql.MessageValue", 1)
