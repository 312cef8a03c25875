"""Errors of the operating system have hints of their own; to make room is only one of them."""

import os

import pytest
from sink_disks import FailingDisk

from pgcdc_cli.errors import ErrorKind, PgcdcError


def hint_of(code: str) -> str:
    with pytest.raises(PgcdcError) as caught:
        FailingDisk(0, code).open("/nowhere", os.O_CREAT)
    assert caught.value.kind is ErrorKind.OUTPUT
    return caught.value.hint


@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT"])
def test_a_full_disk_needs_room(code):
    assert hint_of(code) == "only what was written was confirmed: make room (df -h, df -i) and run again"


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("EFBIG", "ulimit -f"),
        ("EROFS", "mount the file system for writing"),
        ("EACCES", "owner and mode"),
        ("EPERM", "owner and mode"),
        ("ENOENT", "a folder of the path is missing"),
        ("ENOTDIR", "a file is in the place of a folder"),
        ("EISDIR", "name a file in it"),
        ("EISDIR", "a folder is in the place of a file: move it away"),
        ("EEXIST", "move away what has that name"),
        ("EMFILE", "ulimit -n"),
        ("ENFILE", "fs.file-max"),
        ("EIO", "only what was written was confirmed: fix the cause and run again"),
    ],
)
def test_whatever_else_is_wrong_needs_something_else(code, remedy):
    assert remedy in hint_of(code)
    assert "room" not in hint_of(code)
