"""A column of an event: a field, and where its values come from."""

from dataclasses import dataclass

from pgcdc_cli.formats.debezium.types.kind import Field


@dataclass(frozen=True, slots=True)
class EventColumn:
    """A field, and where its values stand in the table's columns."""

    index: int
    field: Field
    label: bytes
