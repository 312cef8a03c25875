"""What a Debezium connector configuration says.

Attributes are Debezium's property names with underscores for dots.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfig:
    """A checked configuration, with Debezium 2.5's defaults; lists are tuples, durations as the name says."""

    topic_prefix: str
    topic_delimiter: str = "."
    debezium_version: str = "2.5"
    decimal_handling_mode: str = "precise"
    time_precision_mode: str = "adaptive"
    interval_handling_mode: str = "numeric"
    binary_handling_mode: str = "bytes"
    hstore_handling_mode: str = "json"
    money_fraction_digits: int = 2
    unavailable_value_placeholder: str = "__debezium_unavailable_value"
    include_unknown_datatypes: bool = False
    tombstones_on_delete: bool = True
    skipped_operations: tuple[str, ...] = ("t",)
    provide_transaction_metadata: bool = False
    schema_name_adjustment_mode: str = "none"
    field_name_adjustment_mode: str = "none"
    heartbeat_interval_ms: int = 0
    key_converter_schemas_enable: bool = True
    value_converter_schemas_enable: bool = True
    key_converter_replace_null_with_default: bool = True
    value_converter_replace_null_with_default: bool = True
