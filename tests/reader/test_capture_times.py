"""A capture's times are shown in any year: people look at captures to find out what is wrong."""

import io
import json
import struct

import pytest

from pgcdc_cli.reader.capture_reader import read_capture
from pgcdc_cli.reader.stored_file import StoredFile

DAY = 86_400_000_000


@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (123_456, "2000-01-01T00:00:00.123456Z"),
        (-1, "1999-12-31T23:59:59.999999Z"),
        (3_000_000 * DAY, "10213-09-21T00:00:00.000000Z"),
        (-800_000 * DAY, "0192-09-04T00:00:00 BC.000000Z"),
    ],
)
def test_a_time_is_shown_whatever_its_year(micros, shown):
    begin = b"B" + struct.pack(">qqi", 100, micros, 7) + b"\n"
    [message] = read_capture(StoredFile("raw"), io.BufferedReader(io.BytesIO(begin)))
    assert json.loads(message.line)["ts"] == shown
