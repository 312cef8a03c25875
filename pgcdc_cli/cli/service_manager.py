"""Tell systemd that a service is ready, what it does, and that it is alive: the protocol of sd_notify(3)."""

import os
import socket
import time
from contextlib import suppress

_INTERVAL = 5.0
"""Seconds between two messages, at most."""


class ServiceManager:
    """The service manager that waits for messages of this process, if there is one.

    For systemd, that is a unit with `Type=notify`; with `WatchdogSec=` it restarts what falls silent.
    """

    def __init__(self) -> None:
        # A command that is started from here has nothing to tell.
        address = os.environ.pop("NOTIFY_SOCKET", "")
        timeout = os.environ.pop("WATCHDOG_USEC", "")
        # The first character stands for the NUL byte of an abstract socket.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        half = int(timeout) / 2e6 if timeout.isdecimal() else _INTERVAL
        self._interval = min(half, _INTERVAL)
        self._next = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it should be told something now."""
        return bool(self._address) and time.monotonic() >= self._next

    def tell(self, status: str) -> None:
        """Tell it, if that is due, that the service is ready and alive, and one line for `systemctl status`.

        A message can get lost, so each says everything; systemd takes the first READY. A service doesn't end
        because of its manager: errors are ignored.
        """
        self._next = time.monotonic() + self._interval
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
            out.setblocking(False)
            out.sendto(f"READY=1\nWATCHDOG=1\nSTATUS={status}".encode(), self._address)
