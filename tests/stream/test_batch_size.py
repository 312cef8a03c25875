"""How many messages make a batch: more of them if many tables share it."""

from dataclasses import replace
from itertools import cycle, islice

import pytest
from pgoutput_connection import connection
from pgoutput_orders import BEGIN, COMMIT, ORDERS, frames_of, insert

from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.formats.arrow import ArrowFormat
from pgcdc_cli.formats.interface import Format
from pgcdc_cli.formats.jsonl import JsonlFormat
from pgcdc_cli.frames import Frames
from pgcdc_cli.pgoutput.message_batch import LARGEST_BATCH, SMALLEST_BATCH
from pgcdc_cli.stream.encode import ChangeEncoder, SliceEncoder
from pgcdc_cli.stream.invalid_text import TextMender
from pgcdc_cli.types.database_text import STRICT


class Stream:
    """Sends rows of one transaction for several tables in turn, as many at a time as the encoder wants."""

    def __init__(self, encoding: Format) -> None:
        decoder = connection(None, batch=SMALLEST_BATCH)
        self._encoder = ChangeEncoder(
            decoder, SliceEncoder(encoding, TextMender(STRICT, set()), "db"), lambda decoded: decoded
        )
        list(self._encoder.encode(frames_of(BEGIN)))

    def send(self, tables: int, doc: bytes = b"a", share: float = 1.0) -> int:
        """Send a batch, or a share of it; return the size of the next one."""
        oids = range(20000, 20000 + tables)
        relations = [replace(ORDERS, oid=oid, name=f"orders_{oid}") for oid in oids]
        rows = frames_of(*(insert(b"1", doc, oid=oid) for oid in oids))
        count = int(self._encoder.batch * share)
        list(self._encoder.encode(Frames.of([*frames_of(*relations), *islice(cycle(rows), count)])))
        return self._encoder.batch


FORMATS = pytest.mark.parametrize("encoding", [JsonlFormat(), ArrowFormat()], ids=["jsonl", "arrow"])


@FORMATS
def test_batches_of_many_tables_grow_and_shrink_again_behind_them(encoding):
    stream = Stream(encoding)
    assert [stream.send(tables=500) for _ in range(4)] == [1 << 14, 1 << 15, 1 << 15, 1 << 15]
    assert [stream.send(tables=1) for _ in range(3)] == [1 << 14, SMALLEST_BATCH, SMALLEST_BATCH]


def test_they_do_not_grow_beyond_a_size():
    stream = Stream(ArrowFormat())
    assert max(stream.send(tables=3000) for _ in range(5)) == LARGEST_BATCH


def test_what_trickles_in_says_nothing():
    assert Stream(JsonlFormat()).send(tables=500, share=0.2) == SMALLEST_BATCH


@FORMATS
def test_large_rows_are_taken_a_few_at_a_time_whatever_their_tables(encoding):
    assert Stream(encoding).send(tables=500, doc=bytes(b"a" * 3000)) == SMALLEST_BATCH


def test_a_bug_over_rows_that_waited_for_more_leaves_their_bytes():
    def broken(decoded):
        if any(len(batch) == 2 for batch in decoded.changes):
            raise RuntimeError("a bug")
        return decoded

    encoder = ChangeEncoder(
        connection(None), SliceEncoder(JsonlFormat(), TextMender(STRICT, set()), "db"), broken
    )
    whole = [BEGIN, ORDERS, *[insert(b"1", b"a")] * 30, COMMIT]
    list(encoder.encode(frames_of(*whole, BEGIN, insert(b"2", b"waited"))))
    with pytest.raises(UndecodableError, match="a bug") as raised:
        list(encoder.encode(frames_of(insert(b"3", b"came"), COMMIT, lsn=600)))
    assert b"waited" in raised.value.data
    assert b"came" in raised.value.data
