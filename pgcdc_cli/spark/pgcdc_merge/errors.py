"""What stops a merge, or one table's."""


class MergeError(Exception):
    """A failure told in one line, `could not X "name": reason`, and a hint that says what mends it.

    `locked` if it is only that another merge is under way.
    """

    def __init__(self, message: str, hint: str, *, locked: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.locked = locked
