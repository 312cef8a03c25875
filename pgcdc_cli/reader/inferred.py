"""The table of an Arrow file that lies apart from its directory, as far as the file itself tells."""

import pyarrow as pa

from pgcdc_cli.formats.arrowschema import OWN_NAMES
from pgcdc_cli.pgoutput.messages import Relation, RelationColumn, ReplicaIdentity
from pgcdc_cli.table import TableColumn, TableSchema
from pgcdc_cli.types.convert import arrow_type
from pgcdc_cli.types.oids import TYPES
from pgcdc_cli.types.registry import PgType, builtin

_TEXT = 25
"""OID of text."""


def inferred_schema(arrow: pa.Schema) -> TableSchema:
    """Make a table without a key, whose columns have the first type that has the column's Arrow type.

    KeyError or ValueError if the stream isn't pgcdc's.
    """
    if not OWN_NAMES.issubset(arrow.names):
        raise ValueError("it has other columns")
    names = [name for name in arrow.names if name not in OWN_NAMES]
    types = [_pg_type(arrow.field(name).type) for name in names]
    wire = tuple(RelationColumn(n, t.oid, t.typmod, key=False) for n, t in zip(names, types, strict=True))
    columns = tuple(
        TableColumn(n, t, t.name, replica_identity=False) for n, t in zip(names, types, strict=True)
    )
    namespace, _, table = (arrow.metadata or {})[b"table"].decode().partition(".")
    # FULL, since nothing tells which columns an old row of the key alone has.
    return TableSchema(Relation(0, namespace, table, ReplicaIdentity.FULL, wire), columns, None)


def _pg_type(arrow: pa.DataType) -> PgType:
    candidates = (builtin(oid, -1) for _, _, oid, array in TYPES for oid in (oid, array) if oid)
    fitting = (t for t in candidates if t is not None and arrow_type(t) == arrow)
    return next(fitting, PgType(_TEXT, -1, "text"))
