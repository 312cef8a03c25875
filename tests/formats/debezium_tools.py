"""Helpers for tests of Debezium's events: types by name, and the records of a stream."""

import json
from typing import Any

from batches import Stream

from pgcdc_cli.changes.edge import LastCommit
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.debezium_format import DebeziumFormat
from pgcdc_cli.formats.interface import EncodedSlice
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.types.pg_type import TYPES

OIDS = {name: oid for name, _, oid, _ in TYPES} | {f"{name}[]": array for name, _, _, array in TYPES}


def numeric(precision: int, scale: int) -> int:
    """The typmod of numeric(precision, scale)."""
    return (precision << 16 | scale & 0x7FF) + 4


def started(config: ConnectorConfig, last_commit: int | None = None, **options: Any) -> DebeziumFormat:
    encoding = DebeziumFormat(config, "stream", **options)
    encoding.restart("shop", None if last_commit is None else LastCommit(Lsn(last_commit), 0))
    return encoding


def lines(encoded: EncodedSlice) -> list[dict[str, Any]]:
    return [json.loads(line) for piece in encoded.pieces for line in bytes(piece.data).splitlines()]


def records(stream: Stream, config: ConnectorConfig) -> list[dict[str, Any]]:
    return lines(started(config).encode(stream.slice()))
