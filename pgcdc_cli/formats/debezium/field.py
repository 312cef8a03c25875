"""One column of a table as Debezium writes it: its Connect schema and its values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pgcdc_cli.formats.debezium.types.kind import Form, Loss


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A column's place in the row struct.

    `schema` is the Connect schema in JsonConverter's order of keys, its "default" a JSON token, without
    "field". `to_json` turns wire text into JSON tokens, one per value; null stays null. The others are single
    JSON tokens: `null` for an SQL NULL, `absent` for a value that the server did not send (null, or the
    default or zero value of a field that is not optional), `unavailable` for an unchanged TOAST value.
    `form` and `loss` say how tokens are read back, and which values can't be.
    """

    name: str
    schema: dict[str, Any]
    to_json: Callable[[pa.BinaryArray], pa.BinaryArray]
    null: bytes
    absent: bytes
    unavailable: bytes
    form: Form
    loss: Loss | None
