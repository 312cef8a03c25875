"""What a run is told."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .column_types import WIDEST_DECIMAL, Choices
from .fold import Extras
from .lake import CHANGELOG, MERGE


@dataclass(frozen=True)
class Options:
    """See `--help` of merge.py.

    `until` is an LSN, `tables` are patterns for `schema.table`, `retain` is in hours (None: for ever).
    `decimal` is a type, as `decimal(38,18)`.
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
    infinity: str = "null"
    decimal: str | None = None
    variant: bool = False
    missing_toast: str = "error"

    @property
    def modes(self) -> tuple[str, ...]:
        return (MERGE, CHANGELOG) if self.mode == "both" else (self.mode,)

    @property
    def extras(self) -> Extras:
        return Extras(self.metadata, self.soft_delete, missing_is_null=self.missing_toast == "null")

    @property
    def choices(self) -> Choices:
        return Choices(self.infinity == "string", self.decimal or "string", self.variant)

    def selects(self, table: str) -> bool:
        return not self.tables or any(fnmatchcase(table, pattern) for pattern in self.tables)


def parse_lsn(text: str) -> int:
    """Read PostgreSQL's text of a position, `XXXXXXXX/XXXXXXXX`; raises ValueError."""
    high, slash, low = text.partition("/")
    if not slash or not (0 < len(high) <= 8 and 0 < len(low) <= 8):
        raise ValueError(f'"{text}" is no LSN, such as 0/1A2B3C8')
    return int(high, 16) << 32 | int(low, 16)


def parse_decimal(text: str) -> str:
    """Read `P,S` and name the type; raises ValueError."""
    digits, comma, scale = text.partition(",")
    if not comma or not 0 <= int(scale) <= int(digits) <= WIDEST_DECIMAL or int(digits) == 0:
        raise ValueError(f'"{text}" is no precision and scale, such as 38,18')
    return f"decimal({int(digits)},{int(scale)})"
