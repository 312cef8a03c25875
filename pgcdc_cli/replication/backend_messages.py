"""Messages of the frontend/backend protocol, for those who use a connection's socket themselves.

PostgreSQL manual, "Message Formats". `copy_out.py` and `socket_frames.py` do so, since libpq returns rows one
by one.
"""

import psycopg

HEAD = 5
"""Bytes before a message's content: its tag, and an Int32 length, which includes itself."""

COPY_DATA, COPY_DONE, COPY_BOTH, COMMAND_COMPLETE, ERROR, NOTICE, READY, QUERY = b"dcWCENZQ"
"""Tags of messages."""

LONGEST = 2**31 - 1
"""The largest length of a message."""


def frontend_message(tag: int, content: bytes = b"") -> bytes:
    """Build a message."""
    return bytes([tag]) + (len(content) + 4).to_bytes(4) + content


def query(statement: bytes) -> bytes:
    """Build a simple query."""
    return frontend_message(QUERY, statement + b"\0")


def error_response(content: bytes, encoding: str = "utf-8") -> psycopg.DatabaseError:
    """Make an error of an ErrorResponse's content, in Python's name of the client encoding."""
    fields = response_fields(content)
    text = (fields.get(ord("M")) or b"").decode(encoding, errors="replace")
    return psycopg.DatabaseError(text, info=fields, encoding=encoding)


def response_fields(content: bytes) -> dict[int, bytes | None]:
    """Divide the content of an ErrorResponse or NoticeResponse into its fields, by their types."""
    return {field[0]: field[1:] for field in content.split(b"\0") if field}
