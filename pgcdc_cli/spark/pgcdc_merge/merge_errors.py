"""Errors that stop a merge, or the merge of one table; Spark's errors in one line."""

import re


class MergeError(Exception):
    """A failure in one line, `could not X "name": cause`, and a hint how to fix it.

    `locked` if the only cause is that another merge is running.
    """

    def __init__(self, message: str, hint: str, *, locked: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.locked = locked


NO_MANIFEST = (
    'could not read "{}": there is no such file',
    "give the directory that pgcdc stream -D writes; the file is there once a segment is finished",
)
"""Message (for a path) and hint for an input without a manifest."""

WRITABLE = "give --warehouse a directory that this user can write to"
"""Hint for a warehouse that can't be written to."""

_LENGTH = 300
_TRACEBACK = "Traceback (most recent call last):"
_CALLED = "An error occurred while calling "
_FAILED_TASK = re.compile(r".*most recent failure: .*?\(TID \d+\) \(.*?\): ")
_CLASS = re.compile(r"^(?:: )?(?:[a-z][\w$]*\.)+[\w$]+: ")

_HINTS = {
    re.compile("No module named|Cannot run program|PYTHON_VERSION_MISMATCH|PACKAGE_NOT_INSTALLED"): (
        "Arrow segments are read by Python: name one that has pyarrow, here and on each executor:"
        " -- --conf spark.pyspark.python=PATH"
    ),
    re.compile("FILE_NOT_EXIST|FileNotFoundException|FileNotFoundError"): (
        "make sure that nothing removes it; on a cluster, each executor must see the same files as this"
        " machine"
    ),
    re.compile("No FileSystem for scheme|FileSystem not found"): (
        "Spark needs a package for this file system; S3 is s3a:// there, and needs"
        " -- --packages org.apache.hadoop:hadoop-aws:VERSION (docs/spark.md has the whole line)"
    ),
}
_SAYS_MORE = "Spark's output says more: add --verbose"


def cause_of(error: Exception) -> str:
    """Extract the most informative line of Spark's error."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if _TRACEBACK in text:
        return (_last_of_traceback(text) or lines[0])[:_LENGTH]
    first = next((line for line in lines if not line.startswith(_CALLED)), type(error).__name__)
    return _CLASS.sub("", _CLASS.sub("", _FAILED_TASK.sub("", first)))[:_LENGTH]


def _last_of_traceback(text: str) -> str | None:
    """Find the last line of Python's traceback: the first that isn't indented."""
    following = text.partition(_TRACEBACK)[2].splitlines()[1:]
    return next((line.strip() for line in following if line.strip() and not line.startswith(" ")), None)


def hint_for(cause: str) -> str:
    """Choose the hint for a cause."""
    return next((text for sign, text in _HINTS.items() if sign.search(cause)), _SAYS_MORE)
