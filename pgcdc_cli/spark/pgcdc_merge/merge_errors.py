"""What stops a merge, or one table's, and what Spark's errors say in one line."""

import re
from collections.abc import Iterator


class MergeError(Exception):
    """A failure told in one line, `could not X "name": reason`, and a hint that says what mends it.

    `locked` if it is only that another merge is under way.
    """

    def __init__(self, message: str, hint: str, *, locked: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.locked = locked


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
        "see that nobody removes it; on a cluster, each executor must see the same files as this machine"
    ),
}
_SAYS_MORE = "Spark's output says more: add --verbose"


def reason(error: Exception) -> str:
    """Take of what Spark says the line that tells most."""
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if _TRACEBACK in text:
        return next(_raised(text), lines[0])[:_LENGTH]
    told = next((line for line in lines if not line.startswith(_CALLED)), type(error).__name__)
    return _CLASS.sub("", _CLASS.sub("", _FAILED_TASK.sub("", told)))[:_LENGTH]


def _raised(text: str) -> Iterator[str]:
    """Give the line with which Python's traceback ends: the first that isn't indented."""
    for line in text.partition(_TRACEBACK)[2].splitlines()[1:]:
        if line.strip() and not line.startswith(" "):
            yield line.strip()


def hint(reason: str) -> str:
    """Say what mends it."""
    return next((text for sign, text in _HINTS.items() if sign.search(reason)), _SAYS_MORE)
