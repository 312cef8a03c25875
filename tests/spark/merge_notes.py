"""Tables of an id and a note, and changes to them: for tests in which the rows themselves don't matter."""

from merge_histories import INT4, TEXT, pg_type, table_schema
from merge_oracle import Change

COLUMNS = {"id": pg_type(INT4), "note": pg_type(TEXT)}
ONE, TWO = (table_schema(name, COLUMNS, ("id",)) for name in ("one", "two"))


def insert(lsn: int, id_: int, note: str | None = "new") -> Change:
    return Change("I", lsn, 0, {"id": str(id_), "note": note})


def update(lsn: int, id_: int, note: str | None) -> Change:
    return Change("U", lsn, 0, {"id": str(id_), "note": note})


def delete(lsn: int, id_: int) -> Change:
    return Change("D", lsn, 0, old={"id": str(id_)})
