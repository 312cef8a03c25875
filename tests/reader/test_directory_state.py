"""A directory is read while its stream goes on."""

import shutil
from itertools import count, cycle, islice

import pytest
from sink_tools import Feed, Lines, started, transactions

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.reader import directory_reader
from pgcdc_cli.reader.directory_reader import follow_directory, verify_directory
from pgcdc_cli.sinks import directory_sink


def test_files_that_are_finished_after_the_checkpoint_was_read_count_once(tmp_path):
    """The manifest, which is read after it, has them by then."""
    directory, (transaction,) = tmp_path / "d", transactions("ab")
    sink = started(directory)
    sink.write(Feed(Lines()).whole(transaction))
    sink.flush()
    shutil.copy(directory / "checkpoint.json", tmp_path)
    found = verify_directory(directory)
    assert (found.files, found.damages) == (2, [])
    sink.close()
    shutil.copy(tmp_path / "checkpoint.json", directory)
    found = verify_directory(directory)
    assert (found.files, found.damages) == (2, [])


def test_files_of_a_segment_that_is_in_the_manifest_already_count_once(tmp_path, monkeypatch):
    """Its line is appended before the checkpoint says that the rotation is over."""
    (transaction,) = transactions("ab")
    sink, finish = started(tmp_path / "d"), directory_sink._finish_segment
    sink.write(Feed(Lines()).whole(transaction))
    monkeypatch.setattr(directory_sink, "_finish_segment", lambda *given: finish(*given) // 0)
    with pytest.raises(ZeroDivisionError):
        sink.close()
    found = verify_directory(tmp_path / "d")
    assert (found.files, found.damages) == (2, [])


@pytest.fixture
def followed(tmp_path, monkeypatch):
    """Changes of a directory whose checkpoint is another one at each look."""
    looks = count()
    monkeypatch.setattr(directory_reader, "_checkpoint_bytes", lambda _: str(next(looks)).encode())
    return follow_directory(tmp_path / "d", ())


def test_segments_that_were_moved_away_are_told_once(tmp_path, followed, caplog):
    sink = started(tmp_path / "d")
    sink.write(Feed(Lines()).whole(*transactions("ab")))
    sink.close()
    for path in (tmp_path / "d").glob("public.*/*"):
        path.unlink()
    assert list(islice(followed, 3)) == [None] * 3
    assert len(caplog.records) == 1


def test_rotations_that_are_met_again_and_again_are_no_damage(followed, monkeypatch):
    fail_to_read(monkeypatch, cycle([True, False]))
    assert list(islice(followed, 100)) == [None] * 100


def test_damage_that_stays_is_told(followed, monkeypatch):
    fail_to_read(monkeypatch, cycle([True]))
    with pytest.raises(PgcdcError, match="damaged"):
        list(islice(followed, 100))


def test_what_becomes_durable_while_a_directory_is_read_is_read_at_the_next_look(tmp_path, monkeypatch):
    """The checkpoint changes once, while it is read for the first time."""
    durable, read = [b"some"], []

    def read_as_far(*_, **__):
        read.append(durable[0])
        durable[0] = b"more"
        return iter(())

    monkeypatch.setattr(directory_reader, "_checkpoint_bytes", lambda _: durable[0])
    monkeypatch.setattr(directory_reader, "read_directory", read_as_far)
    assert list(islice(follow_directory(tmp_path / "d", ()), 4)) == [None] * 4
    assert read == [b"some", b"more"]


def fail_to_read(monkeypatch, fails):
    def read(*_, **__):
        if next(fails):
            raise PgcdcError(ErrorKind.CHECKPOINT, "damaged")
        return iter(())

    monkeypatch.setattr(directory_reader, "read_directory", read)
