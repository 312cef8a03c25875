"""A mutated message is decoded correctly or is the one error, quickly and in little memory."""

import random
import tracemalloc
from collections import Counter
from time import process_time

from faults_fuzz import mutated
from pgoutput_encoder import encode
from pgoutput_samples import SAMPLES

from pgcdc_cli.errors import UndecodableError
from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode

MESSAGES = 20_000
HUNG = 1.0
"""Seconds of processor time for a message of a few dozen bytes: ten thousand times the usual time."""
PER_BYTE, BASE = 1000, 100_000
"""The most memory of a decoded message, in bytes: for each byte of input, and in addition to that."""


def test_each_is_a_right_answer_or_the_one_error(size, seed, tell):
    dice, counts = random.Random(seed), Counter()
    tracemalloc.start()
    try:
        for number in range(MESSAGES * size):
            sample = SAMPLES[number % len(SAMPLES)]
            parallel = sample.options.get("streaming_parallel", False)
            data = mutated(encode(sample.message, streaming_parallel=parallel), dice)
            counts[type(sample.message).__name__] += 1
            counts[_outcome(data, sample.options)] += 1
    finally:
        tracemalloc.stop()
    kinds = {type(sample.message).__name__ for sample in SAMPLES}
    assert len(kinds) == 19
    assert all(counts[kind] * 1000 >= MESSAGES * size for kind in kinds)
    tell("mutated messages", {"messages": MESSAGES * size, **counts})


def _outcome(data: bytes, options: dict[str, bool]) -> str:
    tracemalloc.reset_peak()
    before, begun = tracemalloc.get_traced_memory()[0], process_time()
    try:
        message = decode(data, **options)
    except UndecodableError as error:
        right, outcome = error.data == data and "\n" not in error.message, "(refused)"
    else:
        right, outcome = _means(message, data, options), "(decoded)"
    assert right, data
    assert process_time() - begun < HUNG
    assert tracemalloc.get_traced_memory()[1] - before < BASE + PER_BYTE * len(data)
    return outcome


def _means(message: m.Message, data: bytes, options: dict[str, bool]) -> bool:
    """Whether encoding it gives these bytes; a few flags have more than one form."""
    again = encode(message, streaming_parallel=options.get("streaming_parallel", False))
    return again == data or (len(again) == len(data) and decode(again, **options) == message)
