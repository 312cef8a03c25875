"""The signals that end a program, handled otherwise for a while."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Handler: TypeAlias = Callable[[int, FrameType | None], None] | signal.Handlers


@contextmanager
def handling(handler: Handler) -> Iterator[None]:
    """Handle the ending signals so, but for those that are ignored (nohup) or another thread's business."""
    ours = ENDINGS if threading.current_thread() is threading.main_thread() else ()
    heeded = [number for number in ours if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heeded}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


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
