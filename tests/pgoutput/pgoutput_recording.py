"""Record what a real walsender sends, frame by frame."""

import select
import time

import psycopg
from psycopg import pq

from pgcdc_cli.frames import XLOGDATA_HEADER
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode

SETTINGS = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
}


def record(database, slot, publication="p", *, settings=None, **options):
    """All XLogData frames of a slot up to now; nothing is confirmed."""
    end = Lsn.parse(database.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0])
    database.execute("SELECT pg_log_standby_snapshot()")
    chosen = " ".join(f"-c {name}={value}" for name, value in (SETTINGS | (settings or {})).items())
    connection = pq.PGconn.connect(
        psycopg.conninfo.make_conninfo(database.uri, replication="database", options=chosen).encode()
    )
    try:
        assert connection.status == pq.ConnStatus.OK, connection.get_error_message()
        words = {"proto_version": 1, "publication_names": publication, **options}
        listed = ", ".join(f"{name} '{value}'" for name, value in words.items())
        start = f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0 ({listed})'
        result = connection.exec_(start.encode())
        assert result.status == pq.ExecStatus.COPY_BOTH, result.get_error_message()
        return list(_frames(connection, end))
    finally:
        connection.finish()


def _frames(connection, end):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        size, data = connection.get_copy_data(1)
        if size == 0:
            select.select([connection.socket], [], [], 1)
            connection.consume_input()
        elif data[:1] == b"w":
            yield bytes(data)
        elif int.from_bytes(data[1:9]) >= end:
            return
    raise TimeoutError(f"the server did not reach {end}")


def messages(frames, *, parallel=False):
    """Decode frames of any protocol version, inside and outside of streamed blocks."""
    found = []
    in_stream = False
    for frame in frames:
        message = decode(frame[XLOGDATA_HEADER:], in_stream=in_stream, streaming_parallel=parallel)
        in_stream = isinstance(message, m.StreamStart) or (
            in_stream and not isinstance(message, m.StreamStop)
        )
        found.append(message)
    return found
