"""Rewrite the table of built-in types in pgcdc_cli/types/pg_type.py: `python update_oids.py CONNINFO`."""

import re
import sys
from pathlib import Path

import psycopg

from pgcdc_cli.types import pg_type

SOURCE = Path(pg_type.__file__)
BEGIN = "# --- generated table ---\n"
END = "# --- end of generated table ---\n"

# Below 10000 (FirstGenbkiObjectId in access/transam.h) an OID is the same on every server.
QUERY = """
    SELECT typname, CASE WHEN typtype = 'b' THEN 'base' ELSE 'other' END, oid,
        CASE WHEN typarray < 10000 THEN typarray ELSE 0 END
    FROM pg_type
    WHERE oid < 10000 AND typtype <> 'p' AND typinput <> 'array_in'::regproc
    ORDER BY oid
"""


def table(connection: psycopg.Connection) -> str:
    """The table as this server has it, markers included."""
    rows = connection.execute(QUERY).fetchall()
    lines = [f'    ("{name}", "{category}", {oid}, {array}),\n' for name, category, oid, array in rows]
    return "".join([BEGIN, "TYPES = (\n", *lines, ")\n", END])


def committed() -> str:
    match = re.search(re.escape(BEGIN) + ".*" + re.escape(END), SOURCE.read_text(), re.DOTALL)
    assert match is not None
    return match.group()


if __name__ == "__main__":
    with psycopg.connect(sys.argv[1]) as server:
        SOURCE.write_text(SOURCE.read_text().replace(committed(), table(server)))
