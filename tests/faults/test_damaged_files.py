"""A file that was damaged behind pgcdc's back is refused and left alone, or makes no difference.

Checkpoint, manifest, schemas and unfinished files, with bytes flipped, missing and added.
"""

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from faults_fuzz import mutated
from sink_disks import FailingDisk
from sink_tools import (
    Clock,
    Feed,
    Lines,
    MemoryOrRealReader,
    check_complete,
    go_on,
    killed,
    make_directory,
    started,
    transactions,
)

from pgcdc_cli.errors import ErrorKind, PgcdcError

DAMAGES = 500
TXS = transactions("ab", "ba", "aab", "b", "ab")
DATA_END = TXS[3].end_lsn


@pytest.fixture(scope="module")
def crashed(tmp_path_factory) -> Path:
    """A directory with two finished segments, and rows of a third one, which a checkpoint names."""
    path = tmp_path_factory.mktemp("whole") / "d"
    sink, feed = started(path), Feed(Lines())
    for tx in TXS[:2]:
        sink.write(feed.whole(tx))
        sink.reopen()
        sink.tick()
    sink.write(feed.whole(*TXS[2:4]))
    sink.flush()
    killed(sink)
    return path


KINDS = {
    "checkpoint": "checkpoint.json",
    "manifest": "manifest.jsonl",
    "schema": "schemas/*.json",
    "unfinished file": "*/*.partial",
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_refused_or_makes_no_difference(crashed, tmp_path, kind, size, seed, tell):
    dice, counts = random.Random(seed), Counter()
    names = sorted(path.relative_to(crashed) for path in crashed.glob(KINDS[kind]))
    for number in range(DAMAGES * size):
        place = tmp_path / str(number)
        shutil.copytree(crashed, place)
        file = place / dice.choice(names)
        whole = file.read_bytes()
        damage = mutated(whole, dice)
        file.write_bytes(damage)
        counts[_outcome(place, file, damage, whole, number)] += 1
        shutil.rmtree(place)
    if kind == "checkpoint":
        assert counts["refused"] == DAMAGES * size
    tell(f"a changed {kind}", counts)


def _outcome(place: Path, file: Path, damage: bytes, whole: bytes, seed: int) -> str:
    reader = MemoryOrRealReader(FailingDisk(), str(place))
    before, finished = reader.files(), reader.finished()
    sink = make_directory(str(place), Lines(), FailingDisk(), Clock())
    refusal = None
    try:
        sink.open()
    except PgcdcError as error:
        refusal = error
    if refusal is not None:
        assert refusal.kind is ErrorKind.CHECKPOINT, refusal
        assert refusal.message.startswith("could not "), refusal
        assert reader.files() == before, "what was refused was changed"
        return "refused"
    go_on(sink, Feed(Lines()), TXS, DATA_END, seed)
    after = reader.files()
    assert {name: after[name] for name in finished} == finished
    if file.name == "manifest.jsonl":
        # A run reads only the last line; other damage is for readers to find.
        grown = file.read_bytes()
        assert grown.startswith(damage), "what was damaged was overwritten"
        file.write_bytes(whole + grown[len(damage) :])
    check_complete(reader, Lines(), TXS)
    return "made no difference"
