"""A directory is read while its stream goes on."""

import shutil

import pytest
from sink_tools import Feed, Lines, started, transactions

from pgcdc_cli.reader.directory_reader import verify_directory
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
