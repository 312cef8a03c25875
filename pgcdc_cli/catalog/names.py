"""Names that somebody may have meant."""

from collections.abc import Sequence
from difflib import get_close_matches


def nearest(name: str, existing: Sequence[str], most: int = 3) -> list[str]:
    """Give the existing names that look most like one that doesn't exist; letters' case doesn't matter."""
    by_folded = {one.casefold(): one for one in existing}
    return [by_folded[one] for one in get_close_matches(name.casefold(), by_folded, most)]


def quoted_list(names: Sequence[str]) -> str:
    """Print `"a", "b"`."""
    return ", ".join(f'"{name}"' for name in names)
