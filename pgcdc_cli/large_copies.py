"""Copies of what may be hundreds of megabytes, in pieces, between which other threads run.

Python copies bytes without letting go of its lock. On a busy machine that takes seconds for a large value,
and a server whose `wal_sender_timeout` is short gives up on a feedback thread that waits for so long.
"""

from collections.abc import Sequence
from io import BytesIO

PIECE = 4 << 20
"""Bytes copied at a time: some milliseconds."""


def joined(parts: Sequence[bytes | memoryview]) -> bytes:
    """Join bytes."""
    if sum(map(len, parts)) <= PIECE:
        return b"".join(parts)
    whole = BytesIO()
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), PIECE):
            whole.write(view[start : start + PIECE])
    return whole.getvalue()
