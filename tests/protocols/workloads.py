"""Workloads of several sessions, in tables of every kind, that all protocols must read alike.

`PLAYS` are written by hand, each for one thing that can go wrong. With
`logical_decoding_work_mem=64kB` the server streams a transaction after some 350 short rows.
"""

from collections.abc import Callable
from typing import Self

import psycopg
from processes import wait_until

TABLES = """
CREATE TYPE account_state AS ENUM ('open', 'closed');
CREATE TABLE accounts (
    id bigint PRIMARY KEY, owner text, balance numeric(12,2), seen timestamptz,
    state account_state DEFAULT 'open'
);
CREATE TABLE documents (id uuid PRIMARY KEY, title text, body text);
ALTER TABLE documents ALTER body SET STORAGE EXTERNAL;
CREATE TABLE parts (product int, part text, amount int, note text, PRIMARY KEY (product, part));
CREATE TABLE audit (account bigint, note text);
ALTER TABLE audit ALTER note SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
CREATE TABLE measures (day date, sensor int, value float8, PRIMARY KEY (day, sensor))
    PARTITION BY RANGE (day);
CREATE TABLE measures_old PARTITION OF measures FOR VALUES FROM ('2020-01-01') TO ('2025-01-01');
CREATE TABLE measures_new PARTITION OF measures FOR VALUES FROM ('2025-01-01') TO ('2030-01-01');
CREATE TABLE shapes (id int PRIMARY KEY, size int, note text);
CREATE SCHEMA special;
CREATE TABLE special.rooted (id int, half int, note text, PRIMARY KEY (id, half)) PARTITION BY LIST (half);
CREATE TABLE special.rooted_1 PARTITION OF special.rooted FOR VALUES IN (1);
CREATE TABLE special.rooted_2 PARTITION OF special.rooted FOR VALUES IN (2);
CREATE TABLE special.filtered (id int, kept boolean, note text);
ALTER TABLE special.filtered ALTER note SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
CREATE SCHEMA private;
CREATE TABLE private.secrets (id int PRIMARY KEY, note text);
CREATE TABLE private.beats (id int);
CREATE SEQUENCE private.keys START 1000000;
CREATE PUBLICATION pub FOR TABLES IN SCHEMA public;
CREATE PUBLICATION special FOR TABLE special.rooted, special.filtered WHERE (kept)
    WITH (publish_via_partition_root);
"""

ROW_COUNT = 450
"""So many rows make a transaction large enough to be streamed."""

ROWS = {
    "accounts": "g, 'owner ' || g, g / 7.0, timestamptz '2026-01-01 00:00+00' + g * interval '1 min', 'open'",
    "documents": "md5(g::text)::uuid, 'title \"' || g, repeat(md5(g::text), 100)",
    "parts": "g / 10, 'part ' || g % 10, g, repeat('n', 40)",
    "audit": "g, CASE g % 5 WHEN 0 THEN NULL ELSE repeat('ä', 40) END",
    "measures": "date '2024-06-01' + g % 400, g, g / 3.0",
    "shapes": "g, g * 2, repeat('shape ', 8)",
    "special.rooted": "g, 1 + g % 2, repeat('r', 40)",
    "special.filtered": "g, g % 2 = 0, repeat('f', 3000)",
    "private.secrets": "g, repeat('hidden', 10)",
}


def rows(table: str, low: int, count: int = ROW_COUNT) -> str:
    return f"INSERT INTO {table} SELECT {ROWS[table]} FROM generate_series({low}, {low + count - 1}) g"


def message(content: str, *, transactional: bool) -> str:
    return f"SELECT pg_logical_emit_message({transactional}, 'prefix', '{content}')"


class Stage:
    """Numbered sessions of one database; statements begin and end their transactions."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._sessions: dict[int, psycopg.Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for session in self._sessions.values():
            session.close()

    def session(self, number: int) -> psycopg.Connection:
        if number not in self._sessions:
            self._sessions[number] = psycopg.connect(self._uri, autocommit=True)
        return self._sessions[number]

    def __call__(self, number: int, *statements: str) -> None:
        for statement in statements:
            self.session(number).execute(statement)

    def catch_up(self) -> None:
        """Wait until the readers of this database's log have been sent all of it, committed or not."""
        admin = self.session(-1)
        [written] = admin.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        admin.execute("INSERT INTO private.beats VALUES (1)")  # its commit flushes what others have written
        late = (
            "SELECT count(*) FROM pg_stat_replication JOIN pg_replication_slots ON pid = active_pid"
            # One that is about to begin has sent nothing.
            " WHERE database = current_database() AND (sent_lsn >= %s::pg_lsn) IS NOT TRUE"
        )
        wait_until(lambda: admin.execute(late, (written,)).fetchone() == (0,))


def interleaved(do: Stage) -> None:
    """Four large transactions in turn with small ones between, committed in another order than begun."""
    tables = ("accounts", "parts", "audit", "shapes")
    for number in range(4):
        do(number, "BEGIN")
    for turn in range(5):
        for number, table in enumerate(tables):
            do(number, rows(table, 1000 * turn, 150))
        do(5, rows("measures", 500 * turn, 3))
        do.catch_up()
    for number in (2, 0, 3, 1):
        do(number, "COMMIT")


def same_table_by_two(do: Stage) -> None:
    """Two open transactions share a table: its definition is sent in each, and in a small one between."""
    do(0, "BEGIN", rows("shapes", 10_000))
    do(1, "BEGIN", rows("shapes", 11_000))
    do.catch_up()
    do(2, rows("shapes", 12_000, 1))
    do(1, rows("shapes", 13_000), "COMMIT")
    do(0, "ROLLBACK")
    do(2, rows("shapes", 14_000, 1))


def savepoints_three_deep(do: Stage) -> None:
    """Savepoints rolled back from the inside and from the outside, before and after they were sent."""
    do(0, "BEGIN", rows("accounts", 100_000), "SAVEPOINT a", rows("parts", 100_000))
    do.catch_up()
    do(0, "SAVEPOINT b", rows("parts", 101_000), "SAVEPOINT c", rows("shapes", 100_000))
    do.catch_up()
    do(0, "ROLLBACK TO c", rows("shapes", 101_000), "RELEASE c", rows("parts", 102_000))
    do.catch_up()
    do(0, "ROLLBACK TO b", rows("audit", 100_000))
    do.catch_up()
    do(0, "SAVEPOINT c", rows("accounts", 101_000), "RELEASE a", rows("parts", 103_000), "SAVEPOINT a")
    do(0, rows("audit", 101_000))
    do.catch_up()
    do(0, "ROLLBACK TO a", rows("audit", 102_000, 1), "COMMIT")


def a_table_first_used_in_what_is_rolled_back(do: Stage) -> None:
    """The table's definition is sent with the part that is rolled back."""
    do(0, "BEGIN", rows("accounts", 110_000), "SAVEPOINT a", rows("special.rooted", 110_000))
    do.catch_up()
    do(0, "ROLLBACK TO a", rows("special.rooted", 111_000), "COMMIT")
    do(1, rows("special.rooted", 112_000, 2))


def whole_aborts(do: Stage) -> None:
    do(0, "BEGIN", rows("accounts", 120_000))
    do.catch_up()
    do(1, rows("accounts", 121_000, 2))
    do(0, "SAVEPOINT a", rows("accounts", 122_000))
    do.catch_up()
    do(0, "ROLLBACK")
    do(1, rows("accounts", 123_000, 2))
    do(0, "BEGIN", rows("parts", 120_000), "ROLLBACK")
    do(0, "BEGIN", "SAVEPOINT a", rows("parts", 121_000))
    do.catch_up()
    do(0, "ROLLBACK TO a", "COMMIT")


def columns_added(do: Stage) -> None:
    do(0, "CREATE TABLE growing (id int PRIMARY KEY, note text)", "BEGIN")
    fill = "INSERT INTO growing SELECT g, repeat('x', 50) FROM generate_series({}, {}) g"
    do(0, fill.format(1, 400), "ALTER TABLE growing ADD COLUMN more int DEFAULT 7", fill.format(401, 800))
    do.catch_up()
    do(0, "SAVEPOINT a", "ALTER TABLE growing ADD COLUMN yet_more text", fill.format(801, 1200))
    do.catch_up()
    do(0, "RELEASE a", "UPDATE growing SET yet_more = 'now' WHERE id % 10 = 0", "COMMIT")
    do(0, fill.format(1201, 1202))


def a_table_made_and_filled(do: Stage) -> None:
    do(0, "BEGIN", "CREATE TABLE made (id int PRIMARY KEY, note text)")
    do(0, "INSERT INTO made SELECT g, repeat('y', 50) FROM generate_series(1, 700) g")
    do.catch_up()
    do(0, "DELETE FROM made WHERE id > 600", "COMMIT")
    do(1, "INSERT INTO made VALUES (1000, NULL)")


def a_type_altered(do: Stage) -> None:
    do(0, "CREATE TABLE altered (id int PRIMARY KEY, size int)", "BEGIN")
    do(0, "INSERT INTO altered SELECT g, g FROM generate_series(1, 700) g")
    do.catch_up()
    do(0, "ALTER TABLE altered ALTER size TYPE text")
    do(0, "INSERT INTO altered SELECT g, 'size ' || g FROM generate_series(701, 1400) g")
    do.catch_up()
    do(0, "UPDATE altered SET size = 'none' WHERE id <= 5", "COMMIT")


def definitions_rolled_back(do: Stage) -> None:
    """A column and a table that are sent, and then rolled back."""
    do(0, "CREATE TABLE kept (id int PRIMARY KEY, note text)", "BEGIN")
    fill = "INSERT INTO kept (id, note) SELECT g, repeat('z', 50) FROM generate_series({}, {}) g"
    do(0, fill.format(1, 400), "SAVEPOINT a", "ALTER TABLE kept ADD COLUMN more int DEFAULT 3")
    do(0, "CREATE TABLE gone (id int PRIMARY KEY, note text)", fill.format(401, 800))
    do(0, "INSERT INTO gone SELECT g, repeat('z', 50) FROM generate_series(1, 400) g")
    do.catch_up()
    do(0, "ROLLBACK TO a", fill.format(801, 1200), "COMMIT")
    do(0, fill.format(1201, 1202))


def keys_changed(do: Stage) -> None:
    do(0, "BEGIN", rows("accounts", 200_000), rows("parts", 200_000))
    do(0, "UPDATE accounts SET id = -id WHERE id BETWEEN 200000 AND 200400")
    do.catch_up()
    do(0, "UPDATE parts SET part = part || '!' WHERE product BETWEEN 20000 AND 20040")
    do(0, "DELETE FROM accounts WHERE id BETWEEN -200300 AND -200000", "COMMIT")


def toast_left_alone(do: Stage) -> None:
    do(0, rows("documents", 1, 60), rows("audit", 300_000, 5))
    do(0, "INSERT INTO audit VALUES (300010, repeat('t', 5000))", "BEGIN", rows("accounts", 300_000))
    do(0, "UPDATE documents SET title = 'again'", "SAVEPOINT a", "UPDATE documents SET body = 'short'")
    do.catch_up()
    do(0, "ROLLBACK TO a", "UPDATE documents SET id = md5(id::text)::uuid WHERE title = 'again'")
    do(0, "UPDATE audit SET account = -1 WHERE account >= 300000", rows("documents", 100, 40))
    do.catch_up()
    do(0, "UPDATE documents SET body = repeat('new', 2000) WHERE title LIKE 'title%'", "COMMIT")


def truncated(do: Stage) -> None:
    do(0, "CREATE TABLE parents (id serial PRIMARY KEY)")
    do(0, "CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents)")
    do(0, "BEGIN", "INSERT INTO parents SELECT FROM generate_series(1, 700)")
    do(0, "INSERT INTO children SELECT g, g FROM generate_series(1, 700) g")
    do.catch_up()
    do(
        0,
        "TRUNCATE parents RESTART IDENTITY CASCADE",
        "INSERT INTO parents SELECT FROM generate_series(1, 700)",
    )
    do(0, "SAVEPOINT a", "TRUNCATE measures, private.secrets, children")
    do.catch_up()
    do(
        0,
        "ROLLBACK TO a",
        "INSERT INTO children VALUES (1, 1)",
        "TRUNCATE children, special.rooted",
        "COMMIT",
    )


def messages(do: Stage) -> None:
    """Messages inside and outside of transactions, between their parts, and in one that is rolled back."""
    do(0, "BEGIN", rows("accounts", 400_000), message("inside", transactional=True))
    do.catch_up()
    do(1, message("from elsewhere", transactional=False), message("alone", transactional=True))
    do(0, message("not of it", transactional=False), "SAVEPOINT a", rows("accounts", 401_000))
    do(0, message("not undone", transactional=False))
    do.catch_up()
    do(0, "ROLLBACK TO a", message("at the end", transactional=True), "COMMIT")
    do(0, "BEGIN", message("rolled back", transactional=True), "ROLLBACK")
    do(
        0,
        "BEGIN",
        "SELECT pg_logical_emit_message(true, 'big', repeat('m', 90000))",
        rows("parts", 400_000, 1),
    )
    do(0, "COMMIT")


def many_relations(do: Stage) -> None:
    names = [f"many_{number}" for number in range(80)]
    do(0, ";".join(f"CREATE TABLE {name} (id int PRIMARY KEY, note text)" for name in names))
    fill = ";".join(
        f"INSERT INTO {name} SELECT g, repeat('n', 40) FROM generate_series(%s, %s) g" for name in names
    )
    for turn in range(3):
        do(0, "BEGIN", fill.replace("%s, %s", f"{turn * 10}, {turn * 10 + 7}"))
        do.catch_up()
        do(1, f"INSERT INTO many_7 VALUES ({-turn - 1}, NULL)")
        do(0, "COMMIT")


def nothing_to_tell(do: Stage) -> None:
    """Transactions without a published change, small and streamed."""
    do(0, "BEGIN", "SELECT pg_current_xact_id()", "COMMIT", rows("private.secrets", 1, 3))
    do(0, "BEGIN", rows("private.secrets", 1000))
    do.catch_up()
    do(0, "COMMIT", "BEGIN", rows("private.secrets", 2000), "SAVEPOINT a", rows("accounts", 500_000))
    do.catch_up()
    do(0, "ROLLBACK TO a", "COMMIT")
    do(0, "BEGIN", "CREATE TABLE private.more (id int)", "DROP TABLE private.more", "COMMIT")


def under_and_over_the_limit(do: Stage) -> None:
    """Subtransactions that fit into memory and some that don't, more of them than a backend's cache holds."""
    do(0, "BEGIN")
    for number in range(150):
        size = 450 if number % 15 == 7 else 4
        do(0, "SAVEPOINT s", rows("accounts", 600_000 + number * 1000, size))
        do(0, "ROLLBACK TO s" if number % 2 else "RELEASE s")
        if number % 15 == 7:
            do.catch_up()
    do(0, "COMMIT", "BEGIN", "SAVEPOINT s", rows("accounts", 800_000, 3), "ROLLBACK TO s")
    do(0, rows("parts", 600_000, 2), "COMMIT")


def parted_and_filtered(do: Stage) -> None:
    """Rows that move between partitions, and into and out of a row filter."""
    do(0, "BEGIN", rows("measures", 100_000, 600), rows("special.rooted", 600_000))
    do(0, "UPDATE measures SET day = day + 200 WHERE sensor BETWEEN 100100 AND 100300")
    do.catch_up()
    do(0, rows("special.filtered", 1, 60), "UPDATE special.filtered SET kept = NOT kept")
    do(0, "UPDATE special.rooted SET half = 3 - half WHERE id BETWEEN 600000 AND 600100")
    do.catch_up()
    do(
        0,
        "DELETE FROM special.filtered WHERE id < 10",
        "DELETE FROM measures WHERE sensor > 100500",
        "COMMIT",
    )


def inserted_in_other_ways(do: Stage) -> None:
    """COPY writes many rows in one record; ON CONFLICT first writes a row speculatively."""
    do(0, "BEGIN")
    with do.session(0).cursor().copy("COPY accounts (id, owner) FROM STDIN") as copy:
        for number in range(900_000, 900_700):
            copy.write_row((number, "copied"))
    do.catch_up()
    do(0, rows("documents", 1000, 30) + " ON CONFLICT (id) DO UPDATE SET title = 'met'")
    do(0, rows("accounts", 900_300, 600) + " ON CONFLICT (id) DO UPDATE SET owner = 'met'")
    do.catch_up()
    do(0, rows("accounts", 900_000, 1000) + " ON CONFLICT DO NOTHING", "COMMIT")


def prepared(do: Stage) -> None:
    """Prepared transactions, for readers that see them only at their commit."""
    do(0, "BEGIN", rows("accounts", 950_000), "PREPARE TRANSACTION 'large'")
    do(0, "BEGIN", rows("parts", 950_000, 3), "PREPARE TRANSACTION 'small'")
    do(0, "BEGIN", rows("shapes", 950_000), "PREPARE TRANSACTION 'undone'")
    do.catch_up()
    do(1, rows("audit", 950_000, 2))
    do(0, "COMMIT PREPARED 'small'", "ROLLBACK PREPARED 'undone'", "COMMIT PREPARED 'large'")


Play = Callable[[Stage], None]

PLAYS: tuple[Play, ...] = (
    interleaved,
    same_table_by_two,
    savepoints_three_deep,
    a_table_first_used_in_what_is_rolled_back,
    whole_aborts,
    columns_added,
    a_table_made_and_filled,
    a_type_altered,
    definitions_rolled_back,
    keys_changed,
    toast_left_alone,
    truncated,
    many_relations,
    nothing_to_tell,
    under_and_over_the_limit,
    parted_and_filtered,
    inserted_in_other_ways,
    prepared,
    messages,  # a reader that streams does so no longer after it
)
