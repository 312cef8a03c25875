"""Folders of tables in a warehouse, named after them on file systems of all kinds."""

import hashlib
import unicodedata

from .options import CHANGELOG


def folder_name(name: str) -> str:
    """Name the folder of a table or schema after it.

    Letters and digits of any script are kept, and `-`; `_`, except as first character; blanks and full stops,
    except at the ends. Each byte of other characters becomes `~` and two hex digits. No name ends in
    `.changelog`.
    """
    last = len(name) - 1
    suffix = last - len(CHANGELOG) if name.lower().endswith(f".{CHANGELOG}") else -1
    return "".join(
        character
        if _is_letter(character)
        or character == "-"
        or (character == "_" and at > 0)
        or (character in " ." and 0 < at < last and at != suffix)
        else "".join(f"~{byte:02X}" for byte in character.encode())
        for at, character in enumerate(name)
    )


def _is_letter(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character).startswith("M")


def name_mark(name: str) -> str:
    """Return a suffix that distinguishes a table's folder from a similar one on some file systems."""
    return f"~~{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def folded(name: str) -> str:
    """Normalise a name, so that names that some file system takes for the same are equal."""
    upper = unicodedata.normalize("NFKC", name).casefold().upper()
    return unicodedata.normalize("NFKD", upper.casefold())
