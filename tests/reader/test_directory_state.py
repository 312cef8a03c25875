"""A directory is read while its stream goes on."""

import shutil

from sink_tools import Feed, Lines, started, transactions

from pgcdc_cli.reader.directory_reader import verify_directory


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
