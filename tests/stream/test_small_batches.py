"""A stream that keeps up with its server has batches of few rows, decoded and formatted one by one."""

import re
from itertools import chain

import pyarrow as pa
import pytest
from every_type import change, fill

from pgcdc_cli.catalog import Catalog
from pgcdc_cli.formats import encoded_rows
from pgcdc_cli.formats.arrow import ArrowFormat
from pgcdc_cli.formats.debezium.debezium_format import DebeziumFormat
from pgcdc_cli.formats.debezium.properties import connector_config
from pgcdc_cli.formats.jsonl import JsonlFormat
from pgcdc_cli.formats.wal2json.wal2json_format import Wal2jsonFormat
from pgcdc_cli.formats.wal2json.wal2json_options import read_options
from pgcdc_cli.frames import XLOGDATA_HEADER, Frames
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import small_batch
from pgcdc_cli.pgoutput.assemble import Assembler
from pgcdc_cli.pgoutput.message_batch import DecodeLimits, MessageBuffer
from pgcdc_cli.pgoutput.relations import Tables
from pgcdc_cli.replication.connection import ReplicationConnection

HANDLED = re.compile(rb'"ts_ms":\d+(,"transaction":(null|{[^}]*}))?}')
CONNECTOR = {"topic.prefix": "srv", "provide.transaction.metadata": "true"}

EVERYTHING = read_options(
    {
        "include-xids": "on",
        "include-timestamp": "on",
        "include-lsn": "on",
        "include-origin": "on",
        "include-type-oids": "on",
        "include-pk": "on",
        "include-not-null": "on",
        "include-default": "on",
        "include-column-positions": "on",
    }.items()
)
STRINGS = read_options(
    {"numeric-data-types-as-string": "on", "include-transaction": "off", "include-types": "off"}.items()
)


def received(uri: str, slot: str, end: Lsn) -> list[bytes]:
    """Receive all frames up to a position."""
    frames = []
    with ReplicationConnection(uri) as connection:
        stream = connection.start(slot, Lsn(0), {"proto_version": "1", "publication_names": "pub"}.items())
        position = Lsn(0)
        while position < end:
            some = stream.receive(8192, 10.0)
            frames += some.frames
            position = some.keepalive.wal_end if some.keepalive else position
    return frames


def transactions(frames: list[bytes]) -> list[list[bytes]]:
    found: list[list[bytes]] = [[]]
    for frame in frames:
        found[-1].append(frame)
        if frame[XLOGDATA_HEADER : XLOGDATA_HEADER + 1] == b"C":
            found.append([])
    return found[:-1]


@pytest.fixture
def sent(database):
    """The frames of changes to rows of every type, by transaction; and the catalog."""
    fill(database)
    slot = database.create_slot()
    change(database)
    (end,) = database.execute("SELECT pg_current_wal_lsn()").fetchone()
    with Catalog(database.uri) as catalog:
        yield transactions(received(database.uri, slot, Lsn.parse(end))), catalog


def slices(sent, *, marks: bool, together: int = 1) -> list:
    """Decode the transactions, `together` of them at once."""
    each, catalog = sent
    groups = (each[start : start + together] for start in range(0, len(each), together))
    batches = [list(chain.from_iterable(group)) for group in groups]
    assembler = Assembler(Tables(catalog.describe), DecodeLimits(Lsn(0)), boundaries=marks)
    found, small = [], 0
    for frames in map(Frames.of, batches):
        few = assembler.assemble_small(frames) if small_batch.is_small(frames) else None
        small += few is not None
        found += assembler.assemble(*MessageBuffer.join(frames)) if few is None else few
    assert not small_batch.MOST_MESSAGES or small > len(batches) // 2, "most batches are small"
    return found


def encoded(sent, form, *, marks: bool = False) -> list[tuple]:
    return [
        (piece.target, piece.rows, piece.unchanged, comparable(piece.data))
        for part in slices(sent, marks=marks)
        for piece in form.encode(part).pieces
    ]


def by_target(sent, form, *, marks: bool, together: int) -> dict[object, list]:
    """The output for each target, in order: lines, or the rows of record batches."""
    found: dict[object, list] = {}
    for part in slices(sent, marks=marks, together=together):
        for piece in form.encode(part).pieces:
            found.setdefault(piece.target, []).extend(rows_of(piece.data))
    return found


def rows_of(data) -> list:
    if isinstance(data, pa.RecordBatch):
        columns = [
            [column.slice(row, 1).to_string() for row in range(len(column))] for column in data.columns
        ]
        return list(zip(*columns, strict=True))
    return comparable(data).splitlines()


def comparable(data) -> object:
    if isinstance(data, pa.RecordBatch):
        return data.schema, [column.to_string() for column in data.columns]
    return HANDLED.sub(b"}", bytes(data))


def connector_format() -> DebeziumFormat:
    form = DebeziumFormat(connector_config(CONNECTOR), "stream")
    form.restart("shop", None)
    return form


FORMATS = {
    "jsonl": (lambda: JsonlFormat("stream"), False),
    "jsonl-marks": (lambda: JsonlFormat("stream", transactions=True, numeric="number"), True),
    "arrow": (ArrowFormat, False),
    "debezium": (connector_format, True),
    "wal2json": (lambda: Wal2jsonFormat("stream", options=EVERYTHING), True),
    "wal2json-strings": (lambda: Wal2jsonFormat("stream", options=STRINGS), False),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_few_rows_of_every_type_are_written_as_in_columns(sent, name, monkeypatch):
    form, marks = FORMATS[name]
    few = encoded(sent, form(), marks=marks)
    monkeypatch.setattr(small_batch, "MOST_MESSAGES", 0)
    monkeypatch.setattr(encoded_rows, "FEW_ROWS", 0)
    assert few == encoded(sent, form(), marks=marks)


@pytest.mark.parametrize("name", FORMATS)
def test_columns_are_the_same_however_many_rows_there_are(sent, name, monkeypatch):
    monkeypatch.setattr(small_batch, "MOST_MESSAGES", 0)
    monkeypatch.setattr(encoded_rows, "FEW_ROWS", 0)
    form, marks = FORMATS[name]
    one = by_target(sent, form(), marks=marks, together=1)
    for together in (2, 3, 4, 9):
        assert by_target(sent, form(), marks=marks, together=together) == one
