"""A busy server: sessions that do, at random, everything that a log can contain."""

import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

import psycopg
from psycopg import errors

BASE = (
    "id bigint NOT NULL, label text DEFAULT 'as yet', amount numeric(12,2), size int, flag boolean, body text"
)
KEYED = ("keyed_a", "keyed_b", "keyed_c")
FULL = ("full_a", "full_b")
MANY = tuple(f"many_{number}" for number in range(20))
CHANGED = (*KEYED, *FULL, "indexed", "keyless")
"""Tables whose rows are changed in all ways; "appended" has neither key nor replica identity."""
SHAPED = (*CHANGED, "appended")

TABLES = "\n".join(
    [
        *(f"CREATE TABLE {name} ({BASE}, PRIMARY KEY (id));" for name in (*KEYED, *FULL)),
        *(f"CREATE TABLE {name} ({BASE});" for name in ("indexed", "keyless", "appended")),
        *(f"ALTER TABLE {name} ALTER body SET STORAGE EXTERNAL;" for name in SHAPED),
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL;" for name in (*FULL, "keyless")),
        "CREATE UNIQUE INDEX indexed_id ON indexed (id);",
        "ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_id;",
        *(f"CREATE TABLE {name} (id bigint PRIMARY KEY, label text);" for name in MANY),
        "CREATE TABLE contended (id bigint PRIMARY KEY, size int);",
        "INSERT INTO contended SELECT g, 0 FROM generate_series(1, 4) g;",
        "CREATE SCHEMA private;",
        "CREATE SEQUENCE private.ids;",
        "CREATE TABLE private.unpublished (id bigint);",
        "CREATE PUBLICATION pub FOR TABLES IN SCHEMA public;",
    ]
)

ROWS = (
    "SELECT nextval('private.ids'), g / 7.0, g % 30000, g % 2 = 0,"
    " CASE WHEN g % {each} = 0 THEN repeat(md5(random()::text), 90) END FROM generate_series(1, {count}) g"
)
SUBTRANSACTIONS = """
DO $$ BEGIN
    FOR turn IN 1..{count} LOOP
        BEGIN
            INSERT INTO {table} (id, amount) SELECT nextval('private.ids'), g FROM generate_series(1, 9) g;
            IF turn % 2 = 0 THEN RAISE EXCEPTION 'undone'; END IF;
        EXCEPTION WHEN raise_exception THEN NULL;
        END;
    END LOOP;
END $$
"""

MISTAKES = (errors.UndefinedColumn, errors.DuplicateColumn, errors.UniqueViolation)
"""What a session can't foresee: another one renamed a column, or a key is taken."""

CHANGE_SOMETHING = "INSERT INTO private.unpublished VALUES (1)"
"""If a prepared transaction only locks something, servers send its end without its beginning."""

PREPARED_LIMIT = 4
SHARED, ALONE = "SELECT pg_advisory_xact_lock_shared(1)", "SELECT pg_advisory_xact_lock(1)"
"""Locks that prevent what servers do wrong if they send transactions early (seen with 15, 16 and 18).

If another session's commit changes tables between a savepoint and its rollback, servers that have streamed
changes forget that: `ReorderBufferResetTXN` discards the snapshots, too. Later rows lack columns, or "could
not map filenumber" ends all reading. The latter may also happen if a prepared transaction changes tables.
"""

WAITING = "SET deadlock_timeout = '40ms'; SET lock_timeout = '120ms'"


class Load:
    """Sessions of a database, busy until `stop`; `kinds` counts how often each thing has happened."""

    def __init__(
        self, uri: str, seed: int, *, early: bool, messages: bool, sessions: int = 5, patient: bool = False
    ) -> None:
        self._uri = uri
        self._ended = threading.Event()
        self.shared = Shared(early=early, messages=messages, patient=patient)
        self._sessions = [
            Session(uri, random.Random(f"{seed} {number}"), number, self.shared, self._ended)
            for number in range(sessions)
        ]

    def __enter__(self) -> Self:
        for session in self._sessions:
            session.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        for session in self._sessions:
            session.join()

    @property
    def kinds(self) -> Counter[str]:
        return sum((session.kinds for session in self._sessions), Counter())

    def missing(self) -> set[str]:
        """What has not happened yet, of all that should have when a load ends."""
        for session in self._sessions:
            if session.failure is not None:
                raise session.failure
        return self.shared.expected() - self.kinds.keys()

    def stop(self) -> None:
        """End the sessions, and commit what they left prepared."""
        self.__exit__()
        missing = self.missing()
        assert self.shared.patient or not missing
        with psycopg.connect(self._uri, autocommit=True) as connection:
            query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            for (gid,) in connection.execute(query).fetchall():
                connection.execute(f"COMMIT PREPARED '{gid}'")


class Shared:
    """What the sessions of a load share."""

    def __init__(self, *, early: bool, messages: bool, patient: bool) -> None:
        self.patient = patient
        """Sessions go on after the server was gone; transactions in doubt then may stay prepared."""
        self.early = early
        """The server sends transactions to its reader before they commit."""
        self.messages = messages
        """Logical messages are written."""
        self.prepared: deque[tuple[int, str]] = deque()
        """Sessions and gids of prepared transactions that nobody has ended yet."""

    def expected(self) -> set[str]:
        kinds = {"commit", "roll back", "roll back to savepoint", "three deep", "nothing"}
        kinds |= {action.__name__ for action in ACTIONS} | {"deadlock", "lock time-out"}
        kinds |= {"prepare", "commit prepared", "roll back prepared"}
        return kinds if self.messages else kinds - {"message"}


class Session(threading.Thread):
    """One connection that runs transaction after transaction."""

    def __init__(
        self, uri: str, dice: random.Random, number: int, shared: Shared, ended: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self.dice = dice
        self.kinds: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._uri = uri
        self._number = number
        self._shared = shared
        self._ended = ended
        self._count = 0
        self._reshaped = False
        self._actions: list[Action] = []

    def run(self) -> None:
        try:
            while not self._ended.wait(0.1):
                with self._server_may_go():
                    self._work()
        except BaseException as failure:  # noqa: BLE001  raised again where the load is watched
            self.failure = failure

    @contextmanager
    def _server_may_go(self) -> Iterator[None]:
        try:
            yield
        except psycopg.OperationalError:
            if not self._shared.patient:
                raise
            self.kinds["server gone"] += 1

    def _work(self) -> None:
        with psycopg.connect(self._uri, autocommit=True, prepare_threshold=None) as connection:
            self._connection, self.execute = connection, connection.execute
            self.execute(WAITING)
            while not self._ended.wait(self.dice.uniform(0, 0.1)):
                self._end_one_prepared()
                with self._undoing("ROLLBACK"):
                    self._transaction()

    def _transaction(self) -> None:
        if self.dice.random() < 0.5:
            with self._connection.transaction():
                self._act(self._next_action())
            return
        self.execute("BEGIN")
        self._reshaped = False
        if self.dice.random() < 0.1:
            self.execute(CHANGE_SOMETHING)
            self.kinds["nothing"] += 1
        else:
            self._body(0)
        self._end()

    def _end(self) -> None:
        chance = self.dice.random()
        if chance < 0.2:
            self.execute("ROLLBACK")
            self.kinds["roll back"] += 1
        elif chance < 0.5 and self._may_prepare():
            self._count += 1
            gid = f"by {self._number}, number {self._count}"
            self.execute(CHANGE_SOMETHING)
            self.execute(f"PREPARE TRANSACTION '{gid}'")
            self._shared.prepared.append((self._number, gid))
            self.kinds["prepare"] += 1
        else:
            self.execute("COMMIT")
            self.kinds["commit"] += 1

    def _may_prepare(self) -> bool:
        few = len(self._shared.prepared) < PREPARED_LIMIT
        return few and not (self._shared.early and self._reshaped)

    def _end_one_prepared(self) -> None:
        """Commit or roll back what another session has prepared."""
        if self.dice.random() < 0.5:
            return
        try:
            number, gid = self._shared.prepared.popleft()
        except IndexError:
            return
        if number == self._number:
            self._shared.prepared.append((number, gid))
            return
        how = "commit prepared" if self.dice.random() < 0.7 else "roll back prepared"
        self.execute(f"{how.replace('roll back', 'rollback')} '{gid}'")
        self.kinds[how] += 1

    def _body(self, depth: int) -> None:
        for _ in range(self.dice.randint(1, 4)):
            if depth < 3 and self.dice.random() < 0.35:
                self._savepoint(depth)
            else:
                self._act(self._next_action())

    def _savepoint(self, depth: int) -> None:
        if self._shared.early:
            self.execute(SHARED)
        self.execute(f"SAVEPOINT s{depth}")
        with self._undoing(f"ROLLBACK TO s{depth}"):
            self._body(depth + 1)
            if depth == 2:
                self.kinds["three deep"] += 1
            if self.dice.random() < 0.4:
                self.execute(f"ROLLBACK TO s{depth}")
                self.kinds["roll back to savepoint"] += 1
            if self.dice.random() < 0.7:
                self.execute(f"RELEASE s{depth}")

    @contextmanager
    def _undoing(self, statement: str) -> Iterator[None]:
        """Undo with `statement`, and go on, after an error that any application meets."""
        try:
            yield
        except errors.DeadlockDetected:
            self.kinds["deadlock"] += 1
        except errors.LockNotAvailable:
            self.kinds["lock time-out"] += 1
        except MISTAKES:
            self.kinds["mistake"] += 1
        else:
            return
        self.execute(statement)

    def _next_action(self) -> "Action":
        """Return each action in turn, in random order."""
        if not self._actions:
            self._actions = [*ACTIONS]
            self.dice.shuffle(self._actions)
        return self._actions.pop()

    def _act(self, action: "Action") -> None:
        if action is message and not self._shared.messages:
            return
        if self._shared.early and action in (*RESHAPING, subtransactions):
            self._reshaped |= action is not subtransactions
            self.execute(SHARED if action is subtransactions else ALONE)
        for statement in action(self.dice):
            self.execute(statement)
        self.kinds[action.__name__] += 1


Action = Callable[[random.Random], list[str]]


def some(dice: random.Random, table: str, count: int) -> str:
    return f"id IN (SELECT id FROM {table} ORDER BY random() LIMIT {dice.randint(1, count)})"


def insert(dice: random.Random) -> list[str]:
    rows = ROWS.format(each=3, count=dice.randint(1, 8))
    return [f"INSERT INTO {dice.choice(SHAPED)} (id, amount, size, flag, body) {rows}"]


def insert_many(dice: random.Random) -> list[str]:
    """Insert more rows than the server keeps in memory."""
    rows = ROWS.format(each=50, count=dice.randint(300, 500))
    return [f"INSERT INTO {dice.choice(SHAPED)} (id, amount, size, flag, body) {rows}"]


def insert_or_update(dice: random.Random) -> list[str]:
    table = dice.choice(KEYED + FULL)
    rows = f"SELECT id, 1 FROM {table} WHERE {some(dice, table, 9)}"
    return [f"INSERT INTO {table} (id, amount) {rows} ON CONFLICT (id) DO UPDATE SET amount = -1"]


def update(dice: random.Random) -> list[str]:
    """Update rows without changing their long values."""
    table = dice.choice(CHANGED)
    return [f"UPDATE {table} SET amount = {dice.randint(0, 9999)} WHERE {some(dice, table, 30)}"]


def update_long_value(dice: random.Random) -> list[str]:
    table = dice.choice(CHANGED)
    value = f"repeat(md5(random()::text), {dice.choice([1, 90, 300])})"
    return [f"UPDATE {table} SET body = {value} WHERE {some(dice, table, 9)}"]


def update_key(dice: random.Random) -> list[str]:
    table = dice.choice(CHANGED)
    return [f"UPDATE {table} SET id = nextval('private.ids') WHERE {some(dice, table, 20)}"]


def move_into_keys(dice: random.Random) -> list[str]:
    """Change a key to one that existed before."""
    table = dice.choice(KEYED + FULL)
    old, new = dice.sample(range(1, 2000), 2)
    return [f"DELETE FROM {table} WHERE id = {new}", f"UPDATE {table} SET id = {new} WHERE id = {old}"]


def delete(dice: random.Random) -> list[str]:
    table = dice.choice(CHANGED)
    return [f"DELETE FROM {table} WHERE {some(dice, table, 200)}"]


def truncate(dice: random.Random) -> list[str]:
    tables = dice.sample(SHAPED + MANY[:5], dice.randint(1, 3))
    return [f"TRUNCATE {', '.join(tables)} {dice.choice(['', 'RESTART IDENTITY', 'CASCADE'])}"]


def many_tables(dice: random.Random) -> list[str]:
    chosen = dice.sample(MANY, dice.randint(3, len(MANY)))
    return [f"INSERT INTO {table} SELECT nextval('private.ids'), 'one of many'" for table in chosen]


def subtransactions(dice: random.Random) -> list[str]:
    """Make subtransactions, at times more than a backend's cache holds."""
    return [SUBTRANSACTIONS.format(count=dice.choice([8, 90]), table=dice.choice(SHAPED))]


def contend(dice: random.Random) -> list[str]:
    """Lock rows in random order, so that sessions may deadlock."""
    locks = [
        f"UPDATE contended SET size = size + 1 WHERE id = {number}" for number in dice.sample(range(1, 5), 3)
    ]
    return [statement for lock in locks for statement in (lock, "SELECT pg_sleep(0.01)")]


def add_column(dice: random.Random) -> list[str]:
    number = dice.randint(1, 3)
    return [f"ALTER TABLE {dice.choice(SHAPED)} ADD COLUMN IF NOT EXISTS extra_{number} int DEFAULT {number}"]


def drop_column(dice: random.Random) -> list[str]:
    return [f"ALTER TABLE {dice.choice(SHAPED)} DROP COLUMN IF EXISTS extra_{dice.randint(1, 3)}"]


def rename_column(dice: random.Random) -> list[str]:
    old, new = dice.sample(["label", "title"], 2)
    return [f"ALTER TABLE {dice.choice(SHAPED)} RENAME {old} TO {new}"]


def alter_type(dice: random.Random) -> list[str]:
    table = dice.choice(SHAPED)
    one, other = dice.choice(["int", "bigint", "text"]), dice.choice([12, 14])
    return [
        f"ALTER TABLE {table} ALTER size TYPE {one} USING size::text::{one}",
        f"ALTER TABLE {table} ALTER amount TYPE numeric({other},2)",
    ]


def alter_identity(dice: random.Random) -> list[str]:
    return [f"ALTER TABLE {dice.choice(KEYED)} REPLICA IDENTITY {dice.choice(['FULL', 'DEFAULT'])}"]


def message(dice: random.Random) -> list[str]:
    """Its LSN is that of the next record; if another (sub)transaction has that, either may be sent first."""
    emit = f"SELECT pg_logical_emit_message(true, 'soak', 'number {dice.randrange(1000)}')"
    return [emit, CHANGE_SOMETHING]


RESHAPING: tuple[Action, ...] = (
    truncate,
    add_column,
    drop_column,
    rename_column,
    alter_type,
    alter_identity,
)
ACTIONS: tuple[Action, ...] = (
    insert,
    insert_many,
    insert_or_update,
    update,
    update_long_value,
    update_key,
    move_into_keys,
    delete,
    many_tables,
    subtransactions,
    contend,
    *RESHAPING,
    message,
)
