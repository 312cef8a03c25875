"""Random workloads: steps of three sessions in any order, in the tables of `workloads`."""

import psycopg
from hypothesis import strategies as st
from workloads import Stage

Step = tuple[int, str]
"""The number of a session, and an action."""

ACTIONS = {
    "insert": "INSERT INTO accounts (id, owner) SELECT nextval('private.keys'), repeat('o', 30)"
    " FROM generate_series(1, 12)",
    "insert one": "INSERT INTO audit VALUES (nextval('private.keys'), repeat('a', 20))",
    "insert long": "INSERT INTO documents VALUES (gen_random_uuid(), 'title', repeat('b', 9000))",
    "insert filtered": "INSERT INTO special.filtered"
    " VALUES (nextval('private.keys'), random() < 0.5, repeat('f', 3000))",
    "update": "UPDATE accounts SET owner = 'updated' WHERE id % 3 = 0",
    "update beside": "UPDATE documents SET title = title || '!'",
    "update key": "UPDATE accounts SET id = nextval('private.keys') WHERE id % 5 = 0",
    "update filter": "UPDATE special.filtered SET kept = NOT kept",
    "delete": "DELETE FROM accounts WHERE id % 2 = 0",
    "delete full": "DELETE FROM audit",
    "truncate": "TRUNCATE audit, shapes",
    "add column": "ALTER TABLE shapes ADD COLUMN IF NOT EXISTS more int DEFAULT 1",
    "drop column": "ALTER TABLE shapes DROP COLUMN IF EXISTS more",
    "insert altered": "INSERT INTO shapes (id, note)"
    " SELECT nextval('private.keys'), 'shape' FROM generate_series(1, 5)",
    "hidden": "INSERT INTO private.secrets SELECT nextval('private.keys'), repeat('h', 50)",
    "message aside": "SELECT pg_logical_emit_message(false, 'prefix', 'aside')",
}
MESSAGE = {
    # Without the row, it would have the LSN of the next change, maybe of another savepoint.
    "message": "SELECT pg_logical_emit_message(true, 'prefix', 'within');"
    " INSERT INTO private.beats VALUES (1)"
}
"""After a rollback to a savepoint, a reader of this streams no more: so not every script has it."""

ENDINGS = ("begin", "commit", "rollback", "savepoint", "rollback to", "release")


def _of(actions: dict[str, str]) -> st.SearchStrategy[list[Step]]:
    step = st.sampled_from(ENDINGS) | st.sampled_from(sorted(actions))
    return st.lists(st.tuples(st.integers(0, 2), step), min_size=10, max_size=60)


scripts = _of(ACTIONS) | _of(ACTIONS | MESSAGE)


class Player:
    """Performs a script, without the steps that aren't possible at their place."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._depths: dict[int, int] = {}
        """The number of open savepoints, by session in a transaction."""

    def play(self, script: list[Step]) -> None:
        for number, action in script:
            self._stage.session(number).execute("SET lock_timeout = '5ms'")
            try:
                self._step(number, action)
            except psycopg.errors.LockNotAvailable:
                self._step(number, "rollback to" if self._depths.get(number) else "rollback")
        for number in list(self._depths):
            self._step(number, "commit")

    def _step(self, number: int, action: str) -> None:
        depth = self._depths.get(number)
        if action in ACTIONS | MESSAGE:
            self._stage(number, (ACTIONS | MESSAGE)[action])
        elif action == "begin" and depth is None:
            self._stage(number, "BEGIN")
            self._depths[number] = 0
        elif action in {"commit", "rollback"} and depth is not None:
            self._stage(number, action)
            del self._depths[number]
        elif action == "savepoint" and depth is not None and depth < 3:
            self._stage(number, f"SAVEPOINT s{depth}")
            self._depths[number] = depth + 1
        elif action in {"rollback to", "release"} and depth:
            self._stage(number, f"{action} s{depth - 1}")
            self._depths[number] = depth if action == "rollback to" else depth - 1
