"""Tables that are read again while they are streamed: how far that is.

Why what is written comes to what the source has, is said in `docs/snapshots.md`, "While streaming".
"""

from dataclasses import dataclass, replace
from typing import Literal

from pgcdc_cli.lsn import Lsn

Key = tuple[str, ...]
Stage = Literal["reading", "moved", "done"]

_XIDS = 1 << 32


@dataclass(frozen=True, slots=True)
class TableResnapshot:
    """How far a table (by OID, and by name for people) is read again.

    `rows` are read so far, in the order of `key`, up to the one with the key `after`, None before the first.
    `moved` are keys that rows came to without all of their values: these rows are to be read once more.
    `position` is where the stream has all that the last rows have. In stage "moved" all rows are read, but
    for those.
    """

    oid: int
    table: str
    key: Key
    rows: int = 0
    after: Key | None = None
    moved: tuple[Key, ...] = ()
    position: Lsn = Lsn(0)  # noqa: RUF009 - an int, immutable
    stage: Stage = "reading"

    def anew(self, key: Key) -> "TableResnapshot":
        """Begin from the first row, by this key."""
        return replace(self, key=key, after=None, moved=(), stage="reading")


@dataclass(frozen=True, slots=True)
class Visibility:
    """Which transactions a snapshot sees: those before `xmin`, and before `xmax` but for `running`."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> "Visibility":
        """Read a `pg_snapshot`, such as `10:20:10,14`."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(xid) % _XIDS for xid in running.split(",") if xid))

    def sees(self, xid: int) -> bool:
        """Say whether a transaction, as the stream names it, without its epoch, has ended before."""
        beyond = (xid - self.xmax) % _XIDS < _XIDS // 2
        return not beyond and xid not in self.running
