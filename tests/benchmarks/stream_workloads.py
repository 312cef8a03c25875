"""The tables and changes that wait in the slot when a client is timed."""

from dataclasses import dataclass
from itertools import cycle, islice

TABLE = "CREATE TABLE bench (id bigint PRIMARY KEY, a int, b text, c numeric(12,2), ts timestamptz)"
INSERT = """INSERT INTO bench SELECT g, g % 1000, 'row number ' || g || ' xx', (g % 100000)::numeric / 100,
    '2024-01-01'::timestamptz + g * interval '1 second 1234 microseconds' FROM generate_series({}, {}) g"""
FULL_TABLE = f"{TABLE}; ALTER TABLE bench REPLICA IDENTITY FULL; {INSERT.format(1, '{rows}')}"
UPDATE_AND_DELETE = """WITH updated AS
    (UPDATE bench SET a = a + 1 WHERE id BETWEEN {0} AND {1} AND id % 2 = 0)
    DELETE FROM bench WHERE id BETWEEN {0} AND {1} AND id % 2 = 1"""
TYPES = {
    "smallint": "g % 100",
    "int": "g",
    "real": "g / 7.0",
    "double precision": "g / 3.0",
    "numeric(12,2)": "g % 1000 / 100.0",
    "numeric": "g / 8.0",
    "bool": "g % 2 = 0",
    "text": "'text ' || g",
    "varchar(20)": "'v' || g % 99",
    "char(8)": "'c'",
    "jsonb": "jsonb_build_object('a', g)",
    "uuid": "md5(g::text)::uuid",
    "bytea": "decode(md5(g::text), 'hex')",
    "date": "date '2024-01-01' + g % 999",
    "time": "time '00:00' + g * interval '1 s'",
    "timestamp": "timestamp '2024-01-01' + g * interval '1 s'",
    "timestamptz": "timestamptz '2024-01-01' + g * interval '1 s'",
    "interval": "g * interval '1 min'",
    "inet": "inet '10.0.0.0' + g % 255",
    "int[]": "ARRAY[g, NULL]",
    "text[]": "ARRAY['a', 'b c']",
    "int4range": "int4range(g, g + 5)",
}
ESCAPED = r"""repeat(E'a "quoted" word,\ta back\\slash\n', 35) || g"""
LARGE_JSON = """jsonb_build_object('id', g, 'items', (SELECT jsonb_agg(jsonb_build_object('number', i, 'name',
    'item ' || i, 'paid', i % 2 = 0, 'price', i / 4.0)) FROM generate_series(1, 80) i))"""
ARRAYS = {
    "int[]": "ARRAY(SELECT g + i FROM generate_series(1, 20) i)",
    "text[]": "ARRAY(SELECT 'word ' || i FROM generate_series(1, 10) i)",
    "numeric[]": "ARRAY(SELECT i / 8.0 FROM generate_series(1, 5) i)",
}
# The tables of pgbench with 100,000 accounts, and its transaction.
TPCB_TABLE = """CREATE TABLE branches (bid int PRIMARY KEY, bbalance int, filler char(88));
    CREATE TABLE tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84));
    CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84));
    CREATE TABLE history (tid int, bid int, aid int, delta int, mtime timestamp, filler char(22));
    INSERT INTO branches VALUES (1, 0);
    INSERT INTO tellers SELECT g, 1, 0 FROM generate_series(1, 10) g;
    INSERT INTO accounts SELECT g, 1, 0, '' FROM generate_series(1, 100000) g"""
TPCB_TRANSACTIONS = """DO $$ BEGIN FOR g IN {} / 4 .. {} / 4 - 1 LOOP
    UPDATE accounts SET abalance = abalance + g % 10000 - 5000 WHERE aid = 1 + g * 7919::bigint % 100000;
    UPDATE tellers SET tbalance = tbalance + g % 10000 - 5000 WHERE tid = 1 + g % 10;
    UPDATE branches SET bbalance = bbalance + g % 10000 - 5000 WHERE bid = 1;
    INSERT INTO history
        VALUES (1 + g % 10, 1, 1 + g * 7919::bigint % 100000, g % 10000 - 5000, clock_timestamp());
    COMMIT; END LOOP; END $$"""
MANY_TABLES = """DO $$ BEGIN FOR i IN 0 .. 999 LOOP
    EXECUTE format('CREATE TABLE bench_%s (id bigint PRIMARY KEY, b text)', i); END LOOP; END $$"""
ROUND_ROBIN = """DO $$ BEGIN FOR g IN {} .. {} LOOP
    EXECUTE format('INSERT INTO bench_%s VALUES ($1, $2)', g % 1000) USING g, 'row ' || g; END LOOP; END $$"""


@dataclass(frozen=True)
class Workload:
    """`share` of the requested rows, in transactions of so many (0: one transaction).

    `table` makes the tables, with rows if it contains `{rows}`. `change` makes the rows from one number to
    another; with `commits` it also ends the transactions.
    """

    what: str
    table: str
    change: str
    rows_a_transaction: int
    share: float = 1.0
    commits: bool = False

    def transactions(self, rows: int) -> range:
        """The number of each transaction's first row."""
        return range(1, rows + 1, self.rows_a_transaction or rows)

    def statements(self, rows: int) -> list[str]:
        """The statements that make so many rows."""
        if self.commits:
            return [self.change.format(self.rows_a_transaction, rows + self.rows_a_transaction)]
        starts = self.transactions(rows)
        return [self.change.format(start, min(rows, start + starts.step - 1)) for start in starts]


def inserts(what: str, columns: list[tuple[str, str]], share: float) -> Workload:
    """Insert rows of these columns, each a type and the expression of its value, in one transaction."""
    types = ", ".join(f"c{number} {type_}" for number, (type_, _) in enumerate(columns))
    values = ", ".join(value for _, value in columns)
    insert = f"INSERT INTO bench SELECT g, {values} FROM generate_series({{}}, {{}}) g"
    return Workload(what, f"CREATE TABLE bench (id bigint PRIMARY KEY, {types})", insert, 0, share)


WORKLOADS = {
    "one": Workload("five columns, inserted in one transaction", TABLE, INSERT, 0),
    "many": Workload("the same, 100 rows a transaction", TABLE, INSERT, 100),
    "tpcb": Workload("pgbench's TPC-B", TPCB_TABLE, TPCB_TRANSACTIONS, 4, 0.4, commits=True),
    "updates": Workload(
        "updates and deletes, REPLICA IDENTITY FULL", FULL_TABLE, UPDATE_AND_DELETE, 100, 0.4
    ),
    "types": inserts("22 columns, each of another type", list(TYPES.items()), 0.5),
    "wide": inserts("60 columns of all these types", list(islice(cycle(TYPES.items()), 60)), 0.15),
    "text": inserts("1 kB of text that needs escaping", [("text", ESCAPED)], 0.3),
    "jsonb": inserts("5 kB of jsonb", [("jsonb", LARGE_JSON)], 0.08),
    "arrays": inserts("three arrays, of 35 elements in all", list(ARRAYS.items()), 0.3),
    "tables": Workload("1,000 tables in turn, 1,000 rows a transaction", MANY_TABLES, ROUND_ROBIN, 1000, 0.4),
}
