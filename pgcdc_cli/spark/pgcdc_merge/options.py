"""What a run is told."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .extras import Extras
from .lake import CHANGELOG, MERGE


@dataclass(frozen=True)
class Options:
    """See `--help` of merge.py.

    `until` is an LSN, `tables` are patterns for `schema.table`, `retain` is in hours (None: for ever).
    """

    input: str
    warehouse: str
    format: str = "delta"
    catalog: str | None = None
    mode: str = MERGE
    tables: Sequence[str] = ()
    until: int | None = None
    dry_run: bool = False
    metadata: bool = False
    soft_delete: bool = False
    compact: bool = False
    retain: int | None = None

    @property
    def modes(self) -> tuple[str, ...]:
        return (MERGE, CHANGELOG) if self.mode == "both" else (self.mode,)

    @property
    def extras(self) -> Extras:
        return Extras(self.metadata, self.soft_delete)

    def selects(self, table: str) -> bool:
        return not self.tables or any(fnmatchcase(table, pattern) for pattern in self.tables)


def parse_lsn(text: str) -> int:
    """Read PostgreSQL's text of a position, `XXXXXXXX/XXXXXXXX`; raises ValueError."""
    high, slash, low = text.partition("/")
    if not slash or not (0 < len(high) <= 8 and 0 < len(low) <= 8):
        raise ValueError(f'"{text}" is no LSN, such as 0/1A2B3C8')
    return int(high, 16) << 32 | int(low, 16)
