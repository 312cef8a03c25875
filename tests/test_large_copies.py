"""Other threads run while a large value is copied."""

import os
import threading
import time

from pgcdc_cli.large_copies import PIECE, joined


def test_pieces_are_joined_as_bytes_are():
    block = os.urandom(PIECE)
    for parts in ([], [b"ab", memoryview(b"c")], [block, memoryview(block)[1:], b"", b"x" * (PIECE + 1)]):
        assert joined(parts) == b"".join(parts)


def test_another_thread_gets_its_turn_again_and_again():
    done, turns = threading.Event(), 0

    def take_turns() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            time.sleep(0)

    other = threading.Thread(target=take_turns)
    other.start()
    whole = memoryview(bytes(50 * PIECE))
    before = turns
    copy = joined([whole])
    during = turns - before
    done.set()
    other.join()
    assert len(copy) == len(whole)
    # If the copy never gave up the lock, the other thread would get one or two turns at its end.
    assert during > 3
