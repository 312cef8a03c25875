"""The Arrow schema of a table's files: what the columns of a change are called and what they hold.

`_op`, `_lsn`, `_commit_lsn`, `_commit_ts`, `_xid`, `_seq`, `_unchanged`, `_truncate`, then the table's
columns, then `_old` and `_unfit`:

- `_op` is I, U, D, R or T. LSNs are integers. `_xid` is null outside of transactions.
- `_unchanged` names the columns that the server didn't send; null where it sent all.
- `_truncate` lists the options of a T ("cascade", "restart_identity"; empty for none), whose row is null
  otherwise; it is null for every other operation.
- `_old` is the old image as a struct of the table's columns, null unless sent. Of a key-only image the
  columns outside the replica identity are null.
- `_unfit` maps a column (`_old.NAME` for one of the old image) to PostgreSQL's text of a value that the
  column's Arrow type can't hold and that is therefore null there; null where there is none.

A file of logical messages has `_op` (M) to `_seq`, then `transactional`, `prefix` and `content`.
"""

from typing import Any, TypeAlias

import pyarrow as pa

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.table import TableSchema
from pgcdc_cli.types.convert import arrow_type

Field: TypeAlias = "pa.Field[Any]"

FORMAT_VERSION = 1

STAMP_FIELDS: tuple[Field, ...] = (
    pa.field("_op", pa.string(), nullable=False),
    pa.field("_lsn", pa.int64(), nullable=False),
    pa.field("_commit_lsn", pa.int64(), nullable=False),
    pa.field("_commit_ts", pa.timestamp("us", "UTC"), nullable=False),
    pa.field("_xid", pa.int64()),
    pa.field("_seq", pa.int64(), nullable=False),
)
NAMES = pa.list_(pa.string())
UNFIT = pa.map_(pa.string(), pa.string())
OWN_NAMES = frozenset([*(field.name for field in STAMP_FIELDS), "_unchanged", "_truncate", "_old", "_unfit"])

_MESSAGE_FIELDS: tuple[Field, ...] = (
    *STAMP_FIELDS[:3],
    STAMP_FIELDS[3].with_nullable(nullable=True),
    *STAMP_FIELDS[4:],
    pa.field("transactional", pa.bool_(), nullable=False),
    pa.field("prefix", pa.string(), nullable=False),
    pa.field("content", pa.binary(), nullable=False),
)
MESSAGE_SCHEMA = pa.schema(_MESSAGE_FIELDS, {"format_version": str(FORMAT_VERSION)})


def row_fields(table: TableSchema) -> list[Field]:
    """Give the table's columns their types; a USAGE error where one is called as one of pgcdc's own."""
    for column in table.columns:
        if column.name in OWN_NAMES:
            raise PgcdcError(
                ErrorKind.USAGE,
                f'could not encode table "{table.display}" as Arrow: it has a column "{column.name}"',
                hint="that name is one of pgcdc's own in Arrow files: use --format jsonl",
            )
    return [pa.field(column.name, arrow_type(column.type)) for column in table.columns]


def table_schema(table: TableSchema) -> pa.Schema:
    """Build the schema; its metadata say which version of which table it is."""
    row = row_fields(table)
    metadata: dict[str | bytes, str | bytes] = {
        "table": table.display,
        "schema_fingerprint": table.fingerprint,
        "format_version": str(FORMAT_VERSION),
    }
    fields: list[Field] = [
        *STAMP_FIELDS,
        pa.field("_unchanged", NAMES),
        pa.field("_truncate", NAMES),
        *row,
        pa.field("_old", pa.struct(row)),
        pa.field("_unfit", UNFIT),
    ]
    return pa.schema(fields, metadata)
