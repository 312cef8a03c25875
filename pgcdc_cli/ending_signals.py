"""Replace signal handlers for a while, above all those of the signals that end a program."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeAlias

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler: TypeAlias = Callable[[int, FrameType | None], None] | signal.Handlers


class EarlyEnding:
    """A handler that raises KeyboardInterrupt, and notes it: some code that imports run swallows exceptions.

    Python ignores those in callbacks of its import locks, as extension modules do where they look for others.
    """

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(number, frame)

    def check(self) -> None:
        """Raise KeyboardInterrupt if it was raised before, since the command still runs."""
        if self.came:
            raise KeyboardInterrupt


early_ending = EarlyEnding()


class EarlyHangup:
    """A SIGHUP that comes before the command is known, which may be one that reopens its file on it."""

    def __init__(self) -> None:
        self.came = False
        self._before: Any = signal.SIG_DFL

    def note(self) -> None:
        """From now on, only note it."""
        self._before = signal.signal(signal.SIGHUP, self._come)

    def _come(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True

    def end(self) -> None:
        """Let it end the command, unless it is ignored. Raises KeyboardInterrupt if it came."""
        if signal.getsignal(signal.SIGHUP) != self._come:
            return
        ignored = self._before is signal.SIG_IGN
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else early_ending)
        if self.came and not ignored:
            raise KeyboardInterrupt


early_hangup = EarlyHangup()


@contextmanager
def replaced(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Install these handlers, and restore the previous ones at the end; main thread only."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def handling(handler: Handler) -> Iterator[None]:
    """Handle the ending signals with `handler`, except those that are ignored (as under nohup).

    Outside of the main thread, which alone can set handlers, this does nothing.
    """
    ours = ENDINGS if threading.current_thread() is threading.main_thread() else ()
    heeded = [number for number in ours if signal.getsignal(number) is not signal.SIG_IGN]
    with replaced(dict.fromkeys(heeded, handler)):
        yield


@contextmanager
def held() -> Iterator[None]:
    """Delay ending signals until the block is left.

    They aren't blocked: a child process started meanwhile would inherit the signal mask.
    """
    came: list[int] = []
    with handling(lambda number, _: came.append(number)):
        yield
    for number in came:
        signal.raise_signal(number)
