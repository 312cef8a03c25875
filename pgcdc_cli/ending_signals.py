"""Signals, those that end a program above all, handled otherwise for a while."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler: TypeAlias = Callable[[int, FrameType | None], None] | signal.Handlers


@contextmanager
def replaced(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Put these handlers in the place of those that are there; in the main thread only."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def handling(handler: Handler) -> Iterator[None]:
    """Handle the ending signals so, but for those that are ignored (nohup) or another thread's business."""
    ours = ENDINGS if threading.current_thread() is threading.main_thread() else ()
    heeded = [number for number in ours if signal.getsignal(number) is not signal.SIG_IGN]
    with replaced(dict.fromkeys(heeded, handler)):
        yield


@contextmanager
def held() -> Iterator[None]:
    """Let ending signals wait until this is over.

    They aren't blocked: a child that is started meanwhile would inherit that.
    """
    came: list[int] = []
    with handling(lambda number, _: came.append(number)):
        yield
    for number in came:
        signal.raise_signal(number)
