"""Random histories of tables as PostgreSQL could have sent them, and the tables that they lead to.

A history's rows live in spaces of few keys each, and never leave theirs. So one table holds many small
histories, and one Spark merge tests all of them.
"""

import random
import zlib
from dataclasses import dataclass, field
from itertools import pairwise

from merge_oracle import Change, Key, Row

from pgcdc_cli.changes.table import ReplicaIdentity, TableColumn, TableSchema
from pgcdc_cli.types.pg_type import PgType, builtin

INT4, INT8, TEXT, DATE, JSONB, NUMERIC = 23, 20, 25, 1082, 3802, 1700


def pg_type(oid: int, typmod: int = -1) -> PgType:
    found = builtin(oid, typmod)
    assert found is not None
    return found


def numeric(precision: int, scale: int) -> PgType:
    return pg_type(NUMERIC, (precision << 16 | scale & 0x7FF) + 4)


def table_schema(
    name: str,
    columns: dict[str, PgType],
    key: tuple[str, ...] | None,
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
    *,
    schema: str = "public",
    oid: int | None = None,
    dimensions: int = 1,
) -> TableSchema:
    """Describe a table as the catalog would; `dimensions` is the number declared for its arrays."""
    full = identity is ReplicaIdentity.FULL
    flags = {column: full or column in (key or ()) for column in columns}
    described = tuple(
        TableColumn(c, t.oid, t.typmod, t, t.name, flags[c], None, dimensions if t.element else 0)
        for c, t in columns.items()
    )
    # As on a server, each table has an OID of its own.
    oid = zlib.crc32(f"{schema}.{name}".encode()) if oid is None else oid
    return TableSchema(oid, schema, name, identity, described, key)


COLUMNS = {
    "a": pg_type(INT4),
    "b": pg_type(TEXT),
    "doc": pg_type(TEXT),
    "body": pg_type(JSONB),
    "price": numeric(10, 2),
}
TOAST = ("doc", "body")

_SPACE = 100


@dataclass
class History:
    """One table's changes; `rows` is the table after all of them, by key (a, b) or (a)."""

    table: TableSchema
    random: random.Random
    changes: list[Change] = field(default_factory=list)
    rows: dict[Key, Row] = field(default_factory=dict)
    spaces: int = 1
    truncates: bool = True
    toasts: bool = True
    lsn: int = 1000
    seq: int = 0
    _space: int = 0

    @property
    def key(self) -> tuple[str, ...]:
        assert self.table.key is not None
        return self.table.key

    def parts(self, number: int) -> list[list[Change]]:
        """Cut the changes into parts with equally many transactions."""
        commits = sorted({change.commit_lsn for change in self.changes})
        edges = [0, *(commits[len(commits) * part // number - 1] for part in range(1, number + 1))]
        return [[c for c in self.changes if low < c.commit_lsn <= high] for low, high in pairwise(edges)]

    def grow(self, transactions: int) -> None:
        """Add random transactions: on average this many for each space."""
        for _ in range(transactions * self.spaces):
            self.begin()
            for _ in range(self.random.choice([1, 1, 2, 3, 8])):
                self._space = self.random.randrange(self.spaces) * _SPACE
                self._act()

    def begin(self) -> None:
        self.lsn += self.random.randrange(1, 1 << 20)
        self.seq = 0

    def _act(self) -> None:
        acts = [self.insert] * 3 + [self.update] * 4 + [self.move] * 4 + [self.delete] * 2 + [self.swap]
        acts += [self.truncate] * (self.truncates and self.random.random() < 0.15)
        self.random.choice(acts)()

    def add(
        self, op: str, new: Row | None = None, old: Row | None = None, toast: frozenset[str] = frozenset()
    ) -> None:
        """Add a change with the old image that the table's replica identity calls for."""
        full = self.table.replica_identity is ReplicaIdentity.FULL
        moved = old is not None and new is not None and self._key_of(old) != self._key_of(new)
        image = old if full or moved or op == "D" else None
        if image is not None and not full:
            image = {name: image[name] for name in self.key}
        sent = None if new is None else {n: None if n in toast else v for n, v in new.items()}
        self.changes.append(Change(op, self.lsn, self.seq, sent, image, full, toast))
        self.seq += 1

    def _key_of(self, row: Row) -> Key:
        return tuple(row[name] for name in self.key)

    def _free_key(self) -> Row:
        return {
            "a": str(self._space + self.random.randrange(12)),
            "b": self.random.choice(["x", "Ä", 'q"\\', ""]),
        }

    def values(self) -> Row:
        pick = self.random
        return {
            "doc": pick.choice([None, "", "long " * pick.randrange(1, 30), 'two\nlines, "quoted" \\ \u2028']),
            "body": pick.choice(
                [None, '{"a": 1.50, "b": [null, "x"]}', "null", '"5"', "5", '"a \\"b\\" \\n"', "[]"]
            ),
            "price": pick.choice([None, "0.00", "-99999999.99", f"{pick.randrange(10000) / 100:.2f}"]),
        }

    def insert(self) -> None:
        row = {**self._free_key(), **self.values()}
        if self._key_of(row) not in self.rows:
            self.rows[self._key_of(row)] = row
            self.add("I", row)

    def _some_row(self) -> Row | None:
        rows = self._rows_here()
        return self.random.choice(rows) if rows else None

    def _rows_here(self) -> list[Row]:
        return [row for row in self.rows.values() if int(row["a"] or 0) // _SPACE == self._space // _SPACE]

    def _unchanged(self, row: Row) -> frozenset[str]:
        toast = TOAST if self.toasts else ()
        return frozenset(n for n in toast if row[n] is not None and self.random.random() < 0.6)

    def update(self, key: Row | None = None, row: Row | None = None) -> None:
        row = row or self._some_row()
        if row is None:
            return
        toast = self._unchanged(row)
        new = {**row, **self.values(), **{name: row[name] for name in toast}, **(key or {})}
        if self._key_of(new) != self._key_of(row) and self._key_of(new) in self.rows:
            return
        del self.rows[self._key_of(row)]
        self.rows[self._key_of(new)] = new
        self.add("U", new, row, toast)

    def move(self) -> None:
        self.update(self._free_key())

    def swap(self) -> None:
        """Exchange the keys of two rows, by way of a third key."""
        rows = self._rows_here()
        if len(rows) < 2:
            return
        one, other = self.random.sample(rows, 2)
        spare = {"a": str(self._space + 99), "b": "spare"}
        home = {name: one[name] for name in "ab"}
        self.update(spare, one)
        self.update(home, other)
        self.update({name: other[name] for name in "ab"}, self.rows[tuple(spare[name] for name in self.key)])

    def delete(self) -> None:
        row = self._some_row()
        if row is not None:
            del self.rows[self._key_of(row)]
            self.add("D", old=row)

    def truncate(self) -> None:
        self.rows.clear()
        self.add("T")


def random_history(
    name: str,
    key: tuple[str, ...],
    identity: ReplicaIdentity,
    *,
    spaces: int,
    truncates: bool = False,
    toasts: bool = True,
) -> History:
    """Make a table with some snapshot rows and random changes; equal names give equal histories."""
    table, pick = table_schema(name, COLUMNS, key, identity), random.Random(name)
    history = History(table, pick, spaces=spaces, truncates=truncates, toasts=toasts)
    history.begin()
    for number in range(spaces * 4):
        row = {"a": str(number // 4 * _SPACE + number % 4), "b": "x", **history.values()}
        history.rows[tuple(row[name] for name in key)] = row
        history.changes.append(Change("R", history.lsn, number, row))
    history.grow(30)
    return history
