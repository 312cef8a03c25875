"""Copy what may be hundreds of megabytes in pieces, so that other threads run in between.

Python holds its global interpreter lock (GIL) while it copies bytes. On a busy machine that takes seconds for
a large value. The feedback thread would wait for so long, and a short `wal_sender_timeout` expire.
"""

from collections.abc import Sequence
from io import BytesIO

PIECE = 4 << 20
"""Bytes copied at a time, which takes some milliseconds."""


def joined(parts: Sequence[bytes | memoryview]) -> bytes:
    """Join bytes, as `b"".join` does."""
    if sum(map(len, parts)) <= PIECE:
        return b"".join(parts)
    whole = BytesIO()
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), PIECE):
            whole.write(view[start : start + PIECE])
    return whole.getvalue()
