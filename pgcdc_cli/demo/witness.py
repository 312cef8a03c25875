"""A second reader of the same log, inside the server: it counts the changes that the files should hold."""

from typing import Any

import psycopg

# pgoutput's messages by their first byte: insert, update and delete carry the relation's OID next; truncate
# carries a count and an option byte before it ("Logical Replication Message Formats"). The shop truncates one
# table at a time.
_COUNT = """
SELECT c.oid::regclass::text, count(*) FROM (
    SELECT ('x' || encode(substr(data, CASE get_byte(data, 0) WHEN ascii('T') THEN 7 ELSE 2 END, 4), 'hex'))
        ::bit(32)::int8::oid AS relation
    FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)
    WHERE chr(get_byte(data, 0)) IN ('I', 'U', 'D', 'T')
) AS change JOIN pg_class c ON c.oid = change.relation GROUP BY 1
"""


def create(connection: psycopg.Connection[Any], slot: str, copy: str) -> None:
    """Make a slot that stays where `slot` is now."""
    connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (slot, copy))


def count_changes(connection: psycopg.Connection[Any], slot: str, publication: str) -> dict[str, int]:
    """Count inserted, updated and deleted rows and truncates since the slot's position, by `schema.table`."""
    return dict(connection.execute(_COUNT, (slot, publication)).fetchall())
