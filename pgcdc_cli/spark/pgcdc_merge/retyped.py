"""Which changes of a column's type leave the text of its values as it was.

What PostgreSQL converts at ALTER TABLE isn't in its log: rows of which nothing came have what they had.
"""

from typing import Any

_LONGER = frozenset({"varchar", "varbit", "time", "timetz", "timestamp", "timestamptz"})
"""With a larger modifier they hold the same values."""

_SHOWN_OTHERWISE = frozenset({"bpchar", "inet"})
"""As text they are otherwise than they are printed: without blanks at the end, with a netmask."""


def source_type(pg_type: dict[str, Any]) -> str:
    """Name the type of a schema file's column, with its modifier: `bpchar(8)`, `varchar[](14)`."""
    modifier = "" if pg_type["typmod"] < 0 else f"({pg_type['typmod']})"
    return f"{pg_type['name']}{modifier}"


def keeps_values(old: str, new: str) -> bool:
    """Say whether no value is another text after a change from one type to another, made without USING."""
    (old_name, old_modifier), (new_name, new_modifier) = map(_parts, (old, new))
    if old_name == new_name:
        if new_modifier is None or old_modifier is None:
            return new_modifier is None
        grows = old_name.removesuffix("[]") in _LONGER and int(new_modifier) > int(old_modifier)
        return grows or new_modifier == old_modifier
    arrays = {name.endswith("[]") for name in (old_name, new_name)}
    before, now = (name.removesuffix("[]") for name in (old_name, new_name))
    as_text = now in {"text", "varchar"} and before not in _SHOWN_OTHERWISE
    return len(arrays) == 1 and new_modifier is None and (as_text or (before, now) == ("jsonb", "json"))


def _parts(source: str) -> tuple[str, str | None]:
    name, _, modifier = source.partition("(")
    return name, modifier.rstrip(")") or None
