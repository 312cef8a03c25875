"""Each format reports which files hold rows with values that were not sent (unchanged TOAST)."""

import pytest
from batches import UNCHANGED, change, key_only, table

from pgcdc_cli.changes.slice import Slice
from pgcdc_cli.formats.arrow import ArrowFormat
from pgcdc_cli.formats.debezium.connector_config import ConnectorConfig
from pgcdc_cli.formats.debezium.debezium_format import DebeziumFormat
from pgcdc_cli.formats.interface import Format
from pgcdc_cli.formats.jsonl import JsonlFormat

NOTES = table({"id": "int8", "note": "text"}, name="notes", oid=16401)
ITEMS = table({"id": "int8", "note": "text"}, name="items", oid=16402)


@pytest.mark.parametrize(
    "encoding", [JsonlFormat(), ArrowFormat(), DebeziumFormat(ConnectorConfig(topic_prefix="pg"))], ids=type
)
def test_one_such_row_among_others_is_enough(encoding: Format) -> None:
    part = Slice(
        None,
        (
            change(NOTES, "I", [0, 1], [["1", None], ["2", "a"]]),
            change(NOTES, "U", [6, 3], [["1", "a"], ["2", UNCHANGED]]),
            change(ITEMS, "I", [2], [["1", None]]),
            change(ITEMS, "U", [5], [["1", "a"]]),
            change(ITEMS, "D", [7], old=key_only([["1", None]], ITEMS)),
        ),
    )
    found = {piece.target: piece.unchanged for piece in encoding.encode(part).pieces}
    assert found == {NOTES.display: True, ITEMS.display: False}
