"""The members of a JSON object, column by column: `"id":1,"name":"x"` for n rows at once.

What every row shares is one constant; where rows differ (a NULL without quotes, a value that the server
didn't send) there is a fragment per row.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pgcdc_cli.formats.escape import quote
from pgcdc_cli.formats.jsonvalue import JsonValue
from pgcdc_cli.pgoutput.changes import Int64s
from pgcdc_cli.types import kernels
from pgcdc_cli.types.kernels import Column, Mask, Part, as_mask


class Member(NamedTuple):
    """One column's name and values; `absent` rows don't have the member at all."""

    name: str
    value: JsonValue
    absent: Mask | None


def object_parts(members: Iterable[Member]) -> Iterator[Part]:
    """Yield what, joined row by row, is the object."""
    yield b"{"
    preceded: Mask | bool = False
    for member in members:
        yield from _member(member, preceded)
        preceded = True if member.absent is None else preceded | ~member.absent
    yield b"}"


def _member(member: Member, preceded: Mask | bool) -> Iterator[Part]:
    name = quote(member.name) + b":"
    text, bare = member.value
    if text.null_count and bare is not True:
        bare = bare | as_mask(text.is_null())
    comma = b"," if preceded is True else b""
    if isinstance(bare, bool) and member.absent is None and isinstance(preceded, bool):
        mark = b"" if bare else b'"'
        yield from (comma + name + mark, text, mark)
        return
    if member.absent is not None:
        text = kernels.replace_where(text, member.absent, b"")
    state = _state(member, bare, preceded)
    yield _pick((name + b'"', name, b"", b"," + name + b'"', b"," + name, b""), state)
    yield text
    yield _pick((b'"', b"", b"", b'"', b"", b""), state)


def _state(member: Member, bare: Mask | bool, preceded: Mask | bool) -> Int64s:
    """Per row: 0 quoted, 1 bare, 2 absent; and 3 more where a comma comes before."""
    state = np.zeros(len(member.value.text), np.int64)
    state[...] = bare
    if member.absent is not None:
        state[member.absent] = 2
    return state + 3 * np.asarray(preceded, np.int64)


def _pick(options: Sequence[bytes], choice: Int64s) -> Part:
    return kernels.take(kernels.binary(options), choice)


def listing(label: str, marked: Sequence[tuple[str, Mask]]) -> Part:
    """`,"label":["a","b"]` with the names whose mask is set in a row; nothing where none is."""
    if not marked:
        return b""
    patterns, choice = np.unique(np.stack([mask for _, mask in marked], axis=1), axis=0, return_inverse=True)
    return _pick([_list_member(label, marked, pattern) for pattern in patterns], choice.reshape(-1))


def _list_member(label: str, marked: Sequence[tuple[str, Mask]], pattern: Mask) -> bytes:
    names = [quote(name) for (name, _), chosen in zip(marked, pattern, strict=True) if chosen]
    return b"," + quote(label) + b":[" + b",".join(names) + b"]" if names else b""


def joined(parts: Iterable[Part]) -> Column:
    """Concatenate row by row; neighbouring constants become one."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    return kernels.join(merged)
