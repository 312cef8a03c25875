"""The shop's load: several concurrent clients, whose actions are one transaction each.

An action gets its transaction, a `Scene`, and adds what it did to a counter, which counts only if the
transaction commits. Rows are picked by the next key at or above a random one, so that all clients use all
rows, and wait for, deadlock with and overtake each other, as clients do elsewhere.

The seed determines what each client does, but not the order among clients.
"""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Self

import psycopg

from pgcdc_cli.demo import shop

Connection = psycopg.Connection[Any]


class LoadKind(StrEnum):
    """What the load does, and counts."""

    TRANSACTION = "transactions committed"
    ROLLBACK = "transactions rolled back"
    RETRY = "transactions retried"
    INSERT = "inserts"
    UPDATE = "updates"
    UPDATE_BESIDE_TOAST = "updates beside a long text"
    UPDATE_TOAST = "updates of a long text"
    UPDATE_FULL = "updates with full identity"
    DELETE = "deletes"
    MULTI_ROW = "multi-row statements"
    KEY_CHANGE = "key changes"
    KEY_CHANGE_THEN_UPDATE = "key changes with later updates"
    KEY_SWAP = "keys swapped"
    REPLACE = "rows replaced under their key"
    SAVEPOINT_ROLLBACK = "savepoints rolled back"
    TRUNCATE = "truncates"


class RolledBackError(Exception):
    """Raised by an action to roll back its whole transaction."""


@dataclass
class Scene:
    """One transaction: its connection, the client's random numbers, and what it has done so far."""

    connection: Connection
    rng: random.Random
    done: Counter[str]

    def run(self, kind: LoadKind, statement: str, *values: object) -> int:
        """Execute a statement; it counts once as `kind` if it affects rows, and as multi-row if several."""
        rows = self.connection.execute(statement, values).rowcount
        if rows > 0:
            self.done[kind] += 1
        if rows > 1:
            self.done[LoadKind.MULTI_ROW] += 1
        return rows

    def insert(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        count = shop.insert(self.connection, table, rows)
        self.done[LoadKind.INSERT] += 1
        if count > 1:
            self.done[LoadKind.MULTI_ROW] += 1

    def pick(self, table: str, *, lock: str = "FOR UPDATE") -> Any | None:  # noqa: ANN401  an id of any type
        """Lock a random row and return its id; None if there is none at or above the random key."""
        start = shop.new_uuid(self.rng) if table == "customers" else shop.new_id(self.rng)
        row = self.connection.execute(
            f"SELECT id FROM shop.{table} WHERE id >= %s ORDER BY id LIMIT 1 {lock}",  # noqa: S608  constants
            (start,),
        ).fetchone()
        return row and row[0]


def register(scene: Scene) -> None:
    scene.insert("customers", [shop.customer(scene.rng) for _ in range(scene.rng.choice([1, 1, 1, 3]))])


def edit_customer(scene: Scene) -> None:
    scene.run(
        LoadKind.UPDATE,
        "UPDATE shop.customers SET vip = NOT vip, credit = %s, tags = array_append(tags, %s) WHERE id = %s",
        scene.rng.choice([None, Decimal("NaN"), shop.money(scene.rng)]),
        shop.text(scene.rng, 1),
        scene.pick("customers"),
    )


def leave(scene: Scene) -> None:
    """Delete a customer and, by cascade, the orders and their lines."""
    scene.run(LoadKind.DELETE, "DELETE FROM shop.customers WHERE id = %s", scene.pick("customers"))


def rename_customer(scene: Scene) -> None:
    """Change the key that orders refer to."""
    scene.run(
        LoadKind.KEY_CHANGE,
        "UPDATE shop.customers SET id = %s WHERE id = %s",
        shop.new_uuid(scene.rng),
        scene.pick("customers"),
    )


def place_order(scene: Scene) -> None:
    customer = scene.pick("customers", lock="FOR KEY SHARE")
    if customer is None:
        return
    order = shop.order(scene.rng, customer)
    scene.insert("orders", [order])
    scene.insert("order_lines", shop.order_lines(scene.rng, order[0]))


def process_order(scene: Scene) -> None:
    scene.run(
        LoadKind.UPDATE,
        "UPDATE shop.orders SET status = %s, total = total * 1.01 WHERE id = %s",
        scene.rng.choice(shop.STATUSES),
        scene.pick("orders"),
    )


def reprice_lines(scene: Scene) -> None:
    scene.run(
        LoadKind.UPDATE,
        "UPDATE shop.order_lines SET price = %s, quantity = quantity %% 9 + 1 WHERE order_id = %s",
        shop.money(scene.rng),
        scene.pick("orders"),
    )


def shift_lines(scene: Scene) -> None:
    """Change one column of a composite key, for all lines of an order at once."""
    order = scene.pick("orders")
    shift = "UPDATE shop.order_lines SET line_no = line_no + 10 WHERE order_id = %s"
    scene.run(LoadKind.KEY_CHANGE, shift, order)


def cancel_order(scene: Scene) -> None:
    scene.run(LoadKind.DELETE, "DELETE FROM shop.orders WHERE id = %s", scene.pick("orders"))


def renumber_order(scene: Scene) -> None:
    """Change a key and, by cascade, a part of its lines' keys; then update the row under its new key."""
    number = shop.new_id(scene.rng)
    change = "UPDATE shop.orders SET id = %s WHERE id = %s"
    if scene.run(LoadKind.KEY_CHANGE, change, number, scene.pick("orders")):
        update = "UPDATE shop.orders SET note = %s WHERE id = %s"
        scene.run(LoadKind.KEY_CHANGE_THEN_UPDATE, update, shop.text(scene.rng), number)


def add_product(scene: Scene) -> None:
    product = shop.product(scene.rng)
    scene.insert("products", [product])
    scene.insert("stock", shop.stock(scene.rng, product[0]))


def reprice_product(scene: Scene) -> None:
    scene.run(
        LoadKind.UPDATE_BESIDE_TOAST,
        "UPDATE shop.products SET price = %s, sizes = array_prepend(%s, sizes[1:6]) WHERE id = %s",
        shop.money(scene.rng),
        scene.rng.randrange(60),
        scene.pick("products"),
    )


def describe_product(scene: Scene) -> None:
    scene.run(
        LoadKind.UPDATE_TOAST,
        "UPDATE shop.products SET description = %s WHERE id = %s",
        scene.rng.choice([None, shop.text(scene.rng), shop.long_text(scene.rng)]),
        scene.pick("products"),
    )


def drop_product(scene: Scene) -> None:
    product = scene.pick("products")
    scene.run(LoadKind.DELETE, "DELETE FROM shop.stock WHERE product_id = %s", product)
    scene.run(LoadKind.DELETE, "DELETE FROM shop.products WHERE id = %s", product)


def renumber_product(scene: Scene) -> None:
    """Change a key beside an unchanged long text, so that the text has to be found under the old key."""
    number = shop.new_id(scene.rng)
    change = "UPDATE shop.products SET id = %s WHERE id = %s"
    if scene.run(LoadKind.KEY_CHANGE, change, number, scene.pick("products")) and scene.rng.random() < 0.5:
        update = "UPDATE shop.products SET price = price + 1 WHERE id = %s"
        scene.run(LoadKind.KEY_CHANGE_THEN_UPDATE, update, number)


def swap_products(scene: Scene) -> None:
    """Swap two keys beside long texts, by way of a third key."""
    one, other = scene.pick("products"), scene.pick("products")
    if None in (one, other) or one == other:
        return
    change, third = "UPDATE shop.products SET id = %s WHERE id = %s", shop.new_id(scene.rng)
    for new, old in ((third, one), (one, other), (other, third)):
        scene.run(LoadKind.KEY_CHANGE, change, new, old)
    scene.done[LoadKind.KEY_SWAP] += 1


def replace_product(scene: Scene) -> None:
    number = scene.pick("products")
    if number is not None:
        scene.run(LoadKind.DELETE, "DELETE FROM shop.products WHERE id = %s", number)
        scene.insert("products", [(number, *shop.product(scene.rng)[1:])])
        scene.done[LoadKind.REPLACE] += 1


def count_stock(scene: Scene) -> None:
    """Update several rows, half of the time under REPEATABLE READ, where some clients fail and retry."""
    if scene.rng.random() < 0.5:
        scene.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    scene.run(
        LoadKind.UPDATE_FULL,
        "UPDATE shop.stock SET quantity = quantity + 1, counted_at = %s WHERE (warehouse, product_id) IN ("
        "SELECT warehouse, product_id FROM shop.stock WHERE product_id >= %s ORDER BY product_id LIMIT %s)",
        shop.moment(scene.rng),
        shop.new_id(scene.rng),
        scene.rng.randint(1, 8),
    )


def move_stock(scene: Scene) -> None:
    """Change a key under REPLICA IDENTITY FULL, beside a long text."""
    moved = scene.run(
        LoadKind.KEY_CHANGE,
        "UPDATE shop.stock SET warehouse = warehouse || %s WHERE warehouse = %s AND product_id = %s",
        f"-{scene.rng.getrandbits(24):x}",
        scene.rng.choice(shop.WAREHOUSES),
        scene.pick("products"),
    )
    scene.done[LoadKind.UPDATE_FULL] += moved


def think_twice(scene: Scene) -> None:
    """Do something, do more and roll that back to a savepoint, and go on."""
    register(scene)
    _undo(scene, _second_thoughts)
    process_order(scene)


def _second_thoughts(draft: Scene) -> None:
    reprice_product(draft)
    register(draft)
    _undo(draft, cancel_order)
    renumber_product(draft)


def _undo(scene: Scene, action: Callable[[Scene], None]) -> None:
    """Run an action after a savepoint, and roll back to that."""
    draft = Scene(scene.connection, scene.rng, Counter())
    with scene.connection.transaction(force_rollback=True):
        action(draft)
    scene.done[LoadKind.SAVEPOINT_ROLLBACK] += 1 + draft.done[LoadKind.SAVEPOINT_ROLLBACK]


def give_up(scene: Scene) -> None:
    """Do several things and roll back all of them."""
    for action in (register, place_order, renumber_product, cancel_order, count_stock_row):
        action(scene)
    raise RolledBackError


def count_stock_row(scene: Scene) -> None:
    count = "UPDATE shop.stock SET quantity = %s WHERE product_id = %s"
    scene.run(LoadKind.UPDATE_FULL, count, scene.rng.randrange(1000), scene.pick("products"))


def end_promotions(scene: Scene) -> None:
    """Truncate; usually with new rows in the same transaction, else the table stays empty for a while."""
    scene.connection.execute("TRUNCATE shop.promotions")
    scene.done[LoadKind.TRUNCATE] += 1
    if scene.rng.random() < 0.7:
        scene.insert("promotions", shop.promotions(scene.rng))


def extend_promotions(scene: Scene) -> None:
    statement = "UPDATE shop.promotions SET lasts = lasts * 1.5, ends_on = 'infinity' WHERE percent > %s"
    scene.run(LoadKind.UPDATE, statement, scene.rng.randrange(100))


ACTIONS: dict[Callable[[Scene], None], int] = {
    place_order: 26,
    process_order: 16,
    reprice_product: 10,
    edit_customer: 8,
    register: 6,
    count_stock: 6,
    reprice_lines: 5,
    cancel_order: 4,
    describe_product: 3,
    renumber_product: 3,
    add_product: 2,
    think_twice: 2,
    give_up: 2,
    renumber_order: 2,
    shift_lines: 1,
    move_stock: 1,
    swap_products: 1,
    replace_product: 1,
    rename_customer: 1,
    drop_product: 1,
    leave: 1,
    extend_promotions: 1,
    end_promotions: 1,
}
"""Actions with their weights."""


_CONFLICTS = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


class Workload:
    """A context in which the clients run; `stop` raises an error of a client.

    `rate` is in transactions per second of all clients together, 0 for no limit; `limit` is in transactions
    per client, None for no limit.
    """

    def __init__(
        self, uri: str, *, seed: int = 1, rate: float = 0.0, clients: int = 4, limit: int | None = None
    ) -> None:
        self._uri = uri
        self._seed = seed
        self._limit = limit
        self._pause = clients / rate if rate > 0 else 0.0
        self._stopping = threading.Event()
        self._counts = [Counter[str]() for _ in range(clients)]
        self._pool = ThreadPoolExecutor(clients, thread_name_prefix="shop")
        self._clients: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._clients = [self._pool.submit(self._client, number) for number in range(len(self._counts))]
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._pool.shutdown()

    @property
    def counts(self) -> Counter[str]:
        """What has been done so far, by `LoadKind`."""
        return sum((counts.copy() for counts in self._counts), Counter())

    def check(self) -> None:
        """Raise the error of a client that failed."""
        for client in self._clients:
            if client.done():
                client.result()

    def stop(self) -> Counter[str]:
        """Let every client finish its transaction; return what was done. Raises a client's error."""
        self._stopping.set()
        return self.wait()

    def wait(self) -> Counter[str]:
        """Wait until every client has reached its limit; return what was done. Raises a client's error."""
        for client in self._clients:
            client.result()
        return self.counts

    def _client(self, number: int) -> None:
        rng = random.Random(f"{self._seed}/{number}")  # noqa: S311  a reproducible load, no secret
        actions = rng.choices(list(ACTIONS), list(ACTIONS.values()), k=10_000)
        start = time.monotonic()
        with psycopg.connect(self._uri, autocommit=True) as connection:
            for count, action in enumerate(itertools.islice(itertools.cycle(actions), self._limit)):
                if self._stopping.wait(max(0.0, start + count * self._pause - time.monotonic())):
                    return
                self._counts[number] += _transaction(connection, rng, action)


def _transaction(connection: Connection, rng: random.Random, action: Callable[[Scene], None]) -> Counter[str]:
    """Run an action in a transaction, and repeat it as long as it conflicts with other clients."""
    retries = 0
    while True:
        done = Counter[str]({LoadKind.RETRY: retries})
        try:
            with connection.transaction():
                action(Scene(connection, rng, done))
        except RolledBackError:
            return Counter({LoadKind.ROLLBACK: 1, LoadKind.RETRY: retries})
        except _CONFLICTS:
            retries += 1
        else:
            done[LoadKind.TRANSACTION] += 1
            return done
