"""Shell scripts in place of Java's and Spark's own programs."""

from pathlib import Path


def executable(path: Path, text: str) -> Path:
    """Write a shell script, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path
