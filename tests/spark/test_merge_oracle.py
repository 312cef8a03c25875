"""The oracle compared with PostgreSQL: folding what a slot sends gives the server's table."""

import random

import pytest
from merge_oracle import MISSING, Change, Row, fold

from pgcdc_cli.pgoutput import messages as m
from pgcdc_cli.pgoutput.decode import decode

COLUMNS = ["a", "b", "doc", "price"]
LONG = "repeat(md5(random()::text), 100)"


def row_of(image: m.FullTuple | m.KeyTuple, *, key_only: bool = False) -> Row:
    row: Row = {}
    for name, value in zip(COLUMNS, image.values, strict=True):
        if isinstance(value, m.Text):
            row[name] = value.data.decode()
        elif not key_only:
            row[name] = None
    return row


def changes_of(stream: list[bytes]) -> list[Change]:
    """Read a slot's messages as changes of its one table."""
    found: list[Change] = []
    lsn = seq = 0
    for data in stream:
        message = decode(data)
        if isinstance(message, m.Begin):
            lsn, seq = message.final_lsn, 0
        elif isinstance(message, m.Insert | m.Update | m.Delete | m.Truncate):
            found.append(change_of(message, lsn, seq))
            seq += 1
    return found


def change_of(message: m.Insert | m.Update | m.Delete | m.Truncate, lsn: int, seq: int) -> Change:
    if isinstance(message, m.Truncate):
        return Change("T", lsn, seq)
    old = None if isinstance(message, m.Insert) else message.old
    full = isinstance(old, m.FullTuple)
    image = None if old is None else row_of(old, key_only=not full)
    if isinstance(message, m.Delete):
        return Change("D", lsn, seq, None, image, full)
    unchanged = {
        name for name, v in zip(COLUMNS, message.new.values, strict=True) if isinstance(v, m.UnchangedToast)
    }
    op = "I" if isinstance(message, m.Insert) else "U"
    return Change(op, lsn, seq, row_of(message.new), image, full, frozenset(unchanged))


def statements(pick: random.Random) -> list[str]:
    """Random statements for one transaction."""

    def where() -> str:
        return f"a = {pick.randrange(8)} AND b = '{pick.choice('xy')}'"

    def free(a: int, b: str) -> str:
        return f"NOT EXISTS (SELECT FROM t WHERE a = {a} AND b = '{b}')"

    def move() -> str:
        a, b = pick.randrange(8), pick.choice("xy")
        return f"UPDATE t SET a = {a}, b = '{b}' WHERE {where()} AND {free(a, b)}"

    def swap() -> str:
        return (
            "UPDATE t SET a = 99 WHERE a = 1 AND b = 'x'; UPDATE t SET a = 1 WHERE a = 2 AND b = 'x';"
            " UPDATE t SET a = 2 WHERE a = 99"
        )

    acts = [
        lambda: f"INSERT INTO t VALUES ({pick.randrange(8)}, 'x', {LONG}, 1.5) ON CONFLICT DO NOTHING",
        lambda: f"INSERT INTO t VALUES ({pick.randrange(8)}, 'y', 'short', NULL) ON CONFLICT DO NOTHING",
        lambda: f"UPDATE t SET price = price + 1 WHERE {where()}",
        lambda: f"UPDATE t SET doc = {LONG} WHERE {where()}",
        lambda: f"SAVEPOINT s; DELETE FROM t WHERE {where()}; ROLLBACK TO s",
        lambda: f"DELETE FROM t WHERE {where()}",
        move,
        move,
        swap,
    ]
    return [pick.choice(acts)() for _ in range(pick.choice([1, 2, 6]))]


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL", "USING INDEX t_ba"])
def test_folding_a_slot_gives_the_table(database, identity):
    execute = database.execute
    execute(
        "CREATE TABLE t (a int NOT NULL, b text NOT NULL, doc text, price numeric(10,2), PRIMARY KEY (a, b))"
    )
    execute("ALTER TABLE t ALTER doc SET STORAGE EXTERNAL")
    execute("CREATE UNIQUE INDEX t_ba ON t (b, a)")
    execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    execute("CREATE PUBLICATION p FOR TABLE t")
    slot = database.create_slot()
    pick = random.Random(identity)
    for number in range(150):
        some = ["TRUNCATE t"] if number == 40 else statements(pick)
        execute("BEGIN; " + "; ".join(some) + "; COMMIT")
    stream = execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'p')",
        (slot,),
    ).fetchall()
    changes = changes_of([bytes(data) for (data,) in stream])

    table = {
        (a, b): {"a": a, "b": b, "doc": doc, "price": price}
        for a, b, doc, price in execute("SELECT a::text, b, doc, price::text FROM t").fetchall()
    }
    assert {change.op for change in changes} == set("IUDT")
    assert any(change.unchanged for change in changes)
    assert fold(changes, ("a", "b")) == table


def test_a_value_that_nothing_carries_is_missing():
    unsent = Change("U", 1, 0, {"a": "2", "doc": None}, {"a": "1"}, unchanged=frozenset({"doc"}))
    assert fold([unsent], ["a"]) == {("2",): {"a": "2", "doc": MISSING}}
