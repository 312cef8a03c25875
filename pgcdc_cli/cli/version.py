"""Which versions run, for `--version` and for reports of errors."""

import sys

from pgcdc_cli import __version__


def version_line() -> str:
    """Tell the versions that matter for a bug report; libpq's where it was used, for it is slow to import."""
    libraries = []
    if "psycopg" in sys.modules:
        from psycopg import pq

        libpq = pq.version()
        libraries.append(f"libpq {libpq // 10000}.{libpq % 10000}")
    libraries.append(f"Python {sys.version.split(maxsplit=1)[0]}")
    return f"pgcdc {__version__} ({', '.join(libraries)})"
