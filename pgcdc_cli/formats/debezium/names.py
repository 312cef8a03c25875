"""Names of topics, schemas and fields, as Debezium sanitises and adjusts them."""

import re
import struct
from collections.abc import Callable

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
    more = "." if dots else ""
    if mode == "avro":
        return lambda name: _adjusted(name, f"A-Za-z0-9_{more}", _underscores)
    return lambda name: _adjusted(name, f"A-Za-z0-9{more}", _unicode)


def _adjusted(name: str, allowed: str, replace: Callable[[str], str]) -> str:
    """Replace what Avro forbids; a digit may only follow something else."""
    adjusted = re.sub(f"[^{allowed}]", lambda match: replace(match[0]), name)
    first = name[:1]
    if first.isascii() and first.isdigit():
        return ("_" if replace("_") == "_" else _unicode(first)) + (
            adjusted if replace("_") == "_" else adjusted[1:]
        )
    return adjusted


def _underscores(character: str) -> str:
    """Give one for each of Java's characters, which are UTF-16 units."""
    return "_" * (len(character.encode("utf-16-be")) // 2)


def _unicode(character: str) -> str:
    """Write each UTF-16 unit in hexadecimal: four digits below U+0100, above it only as many as it needs."""
    units = struct.iter_unpack(">H", character.encode("utf-16-be"))
    return "".join(f"_u{unit:04x}" if unit < 0x100 else f"_u{unit:x}" for (unit,) in units)
