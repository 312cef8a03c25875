"""Names of topics, schemas and fields, as Debezium sanitises and adjusts them."""

import re
import struct
from collections.abc import Callable
from functools import partial

from pgcdc_cli.formats.debezium.config import ConnectorConfig

Adjust = Callable[[str], str]
_LONGEST_TOPIC = 249


def topic(config: ConnectorConfig, *parts: str) -> str:
    """Join with the delimiter; what Kafka forbids in a topic's name becomes `_`, or is cut off behind it."""
    joined = config.topic_delimiter.join((config.topic_prefix, *parts))
    return re.sub(r"[^A-Za-z0-9._-]", lambda match: _underscores(match[0]), joined)[:_LONGEST_TOPIC]


def schema_adjuster(config: ConnectorConfig) -> Adjust:
    """Follow `schema.name.adjustment.mode`; dots divide a schema's full name."""
    return _adjuster(config.schema_name_adjustment_mode, dots=True)


def field_adjuster(config: ConnectorConfig) -> Adjust:
    """Follow `field.name.adjustment.mode`."""
    return _adjuster(config.field_name_adjustment_mode, dots=False)


def _adjuster(mode: str, *, dots: bool) -> Adjust:
    if mode == "none":
        return str
    allowed = "A-Za-z0-9." if dots else "A-Za-z0-9"
    return partial(_with_underscores if mode == "avro" else _with_codes, allowed)


def _with_underscores(allowed: str, name: str) -> str:
    """Put underscores for what Avro forbids, and one before a digit at the beginning."""
    adjusted = re.sub(f"[^{allowed}_]", lambda match: _underscores(match[0]), name)
    return re.sub("^([0-9])", r"_\1", adjusted)


def _with_codes(allowed: str, name: str) -> str:
    """Put codes for what Avro forbids, for underscores, and for a digit at the beginning."""
    return re.sub(f"^[0-9]|[^{allowed}]", lambda match: _unicode(match[0]), name)


def _underscores(character: str) -> str:
    """Give one for each of Java's characters, which are UTF-16 units."""
    return "_" * (len(character.encode("utf-16-be")) // 2)


def _unicode(character: str) -> str:
    """Write each UTF-16 unit in hexadecimal: four digits below U+0100, above it only as many as it needs."""
    units = struct.iter_unpack(">H", character.encode("utf-16-be"))
    return "".join(f"_u{unit:04x}" if unit < 0x100 else f"_u{unit:x}" for (unit,) in units)
