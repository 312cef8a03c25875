"""The SQLSTATE with which a server refuses a connection, whatever the language of its messages.

libpq returns only the text of a refusal, which the server translates (`lc_messages`), but its trace has the
code.
"""

import os
import re
import select
import sys
import time
from typing import TYPE_CHECKING

from psycopg.pq import ConnStatus, PGconn, PollingStatus

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn as Attempt

ACCEPTED = "00000"

_PATIENCE = 10.0
"""Seconds for an attempt: the server has just answered another one."""

_CODE = re.compile(rb'\tErrorResponse\t.*? C "(\w{5})"')


def sqlstate_of_refusal(conninfo: str) -> str | None:
    """Connect once more and return the SQLSTATE of the refusal; `ACCEPTED` if there is none by now.

    Returns None if the server gives no reason, and where libpq can't trace: on macOS.
    """
    if sys.platform != "linux":
        return None
    # The trace has the password, so it stays in memory.
    trace = os.memfd_create("trace")
    try:
        attempt = PGconn.connect_start(conninfo.encode())
        attempt.trace(trace)
        accepted = _is_accepted(attempt)
        attempt.untrace()
        attempt.finish()
        codes = _CODE.findall(os.pread(trace, 1 << 20, 0))
    finally:
        os.close(trace)
    if accepted:
        return ACCEPTED
    return codes[-1].decode() if codes else None


def _is_accepted(attempt: "Attempt") -> bool:
    deadline = time.monotonic() + _PATIENCE
    events = {PollingStatus.READING: select.POLLIN, PollingStatus.WRITING: select.POLLOUT}
    state = PollingStatus.WRITING
    while attempt.status != ConnStatus.BAD and state in events and time.monotonic() < deadline:
        ready = select.poll()
        ready.register(attempt.socket, events[state])
        ready.poll(_PATIENCE * 1000)
        state = PollingStatus(attempt.connect_poll())
    return state == PollingStatus.OK
