"""The sample shop: its tables have every kind of column and key that the merge supports."""

import random
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
from psycopg import sql
from psycopg.types.json import Json, Jsonb

SCHEMA = "shop"
TABLES = ("customers", "products", "orders", "order_lines", "stock", "promotions")
STATUSES = ("new", "paid", "packed", "shipped", "returned")
WAREHOUSES = ("north", "south", "overseas")

# STORAGE EXTERNAL stores long texts out of line and uncompressed, so that an update of other columns leaves
# them as unchanged TOAST.
DEFINITION = """
CREATE SCHEMA shop;
CREATE TYPE shop.order_status AS ENUM ('new', 'paid', 'packed', 'shipped', 'returned');
CREATE TABLE shop.customers (
    id uuid PRIMARY KEY,
    email text NOT NULL,
    name varchar(80),
    born date,
    tags text[],
    address jsonb,
    vip boolean NOT NULL,
    credit numeric,
    last_ip inet,
    created_at timestamptz NOT NULL
);
CREATE TABLE shop.products (
    id bigint PRIMARY KEY,
    title text NOT NULL,
    price numeric(12,2),
    weight real,
    sizes int[],
    attributes json,
    thumbnail bytea,
    description text STORAGE EXTERNAL,
    updated_at timestamp
);
CREATE TABLE shop.orders (
    id bigint PRIMARY KEY,
    customer_id uuid NOT NULL REFERENCES shop.customers ON UPDATE CASCADE ON DELETE CASCADE,
    status shop.order_status NOT NULL,
    placed_at timestamptz NOT NULL,
    total numeric(12,2),
    discount double precision,
    note text
);
CREATE INDEX ON shop.orders (customer_id);
CREATE TABLE shop.order_lines (
    order_id bigint REFERENCES shop.orders ON UPDATE CASCADE ON DELETE CASCADE,
    line_no int,
    product_id bigint NOT NULL,
    quantity smallint NOT NULL,
    price numeric(12,2) NOT NULL,
    engraving text,
    PRIMARY KEY (order_id, line_no)
);
CREATE TABLE shop.stock (
    warehouse text,
    product_id bigint,
    quantity int NOT NULL,
    reserved int4range,
    counted_at timestamptz,
    journal text STORAGE EXTERNAL,
    PRIMARY KEY (warehouse, product_id)
);
ALTER TABLE shop.stock REPLICA IDENTITY FULL;
CREATE TABLE shop.promotions (
    code text PRIMARY KEY,
    percent numeric(5,2),
    ends_at timestamptz,
    ends_on date,
    product_ids bigint[],
    opens time,
    lasts interval
);
"""

_WORDS = (
    "oak",
    "linen",
    "brass",
    "wool",
    "clay",
    "café",
    "Größe",
    "naïve",
    "東京",
    "🫖",
    '"quoted"',
    "back\\slash",
)
_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


def create(uri: str) -> None:
    """Create the shop's schema and its empty tables."""
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(DEFINITION)


def fill(uri: str, seed: int, size: int = 100) -> None:
    """Insert the first rows in one transaction: `size` products, customers and orders, with details."""
    rng = random.Random(seed)  # noqa: S311  a reproducible load, no secret
    products = [product(rng) for _ in range(size)]
    customers = [customer(rng) for _ in range(size)]
    orders = [order(rng, rng.choice(customers)[0]) for _ in range(size)]
    with psycopg.connect(uri) as connection:
        insert(connection, "products", products)
        insert(connection, "customers", customers)
        insert(connection, "orders", orders)
        insert(connection, "order_lines", _chain(order_lines(rng, row[0]) for row in orders))
        insert(connection, "stock", _chain(stock(rng, row[0]) for row in products))
        insert(connection, "promotions", promotions(rng))


def insert(connection: psycopg.Connection[Any], table: str, rows: Iterable[tuple[Any, ...]]) -> int:
    """Insert full rows with one statement; return their number."""
    rows = list(rows)
    row = sql.SQL("({})").format(sql.SQL(", ").join([sql.Placeholder()] * len(rows[0])))
    statement = sql.SQL("INSERT INTO {} VALUES {}").format(
        sql.Identifier(SCHEMA, table), sql.SQL(", ").join([row] * len(rows))
    )
    return connection.execute(statement, [value for row in rows for value in row]).rowcount


def new_id(rng: random.Random) -> int:
    """Draw from so wide a range that no two are equal in practice."""
    return rng.getrandbits(48)


def new_uuid(rng: random.Random) -> uuid.UUID:
    return uuid.UUID(int=rng.getrandbits(128), version=4)


def moment(rng: random.Random) -> datetime:
    return _EPOCH + timedelta(microseconds=rng.randrange(10**14))


def text(rng: random.Random, words: int = 3) -> str:
    return " ".join(rng.choices(_WORDS, k=words))


def long_text(rng: random.Random) -> str:
    """Make 3,000 characters or more: beyond the 2 kB at which PostgreSQL moves a value out of line."""
    return f"{text(rng, 8)}\n\t" * rng.randint(90, 120)


def money(rng: random.Random) -> Decimal:
    return Decimal(rng.randrange(10**6)) / 100


def _maybe(rng: random.Random, value: Any) -> Any:  # noqa: ANN401  a value of any column
    return None if rng.random() < 0.1 else value


def customer(rng: random.Random) -> tuple[Any, ...]:
    address = {"city": text(rng, 1), "lines": [text(rng), None], "zip": rng.randrange(10**5)}
    return (
        new_uuid(rng),
        f"{rng.getrandbits(32):x}@example.com",
        _maybe(rng, text(rng)),
        _maybe(rng, date(1940, 1, 1) + timedelta(days=rng.randrange(25_000))),
        _maybe(rng, [_maybe(rng, text(rng, 1)) for _ in range(rng.randrange(4))]),
        _maybe(rng, Jsonb(address)),
        rng.random() < 0.2,
        _maybe(rng, money(rng).scaleb(-rng.randrange(6))),
        _maybe(rng, f"10.0.{rng.randrange(256)}.{rng.randrange(256)}"),
        moment(rng),
    )


def product(rng: random.Random) -> tuple[Any, ...]:
    return (
        new_id(rng),
        text(rng),
        _maybe(rng, money(rng)),
        _maybe(rng, rng.choice([rng.random() * 100, float("nan")])),
        _maybe(rng, [_maybe(rng, rng.randrange(60)) for _ in range(rng.randrange(5))]),
        _maybe(rng, Json({"colour": text(rng, 1), "rating": round(rng.random() * 5, 1)})),
        _maybe(rng, rng.randbytes(rng.randrange(20))),
        long_text(rng),
        moment(rng).replace(tzinfo=None),
    )


def order(rng: random.Random, customer_id: uuid.UUID) -> tuple[Any, ...]:
    discount = _maybe(rng, rng.choice([0.0, 0.1, rng.random(), 1e-300]))
    return (new_id(rng), customer_id, "new", moment(rng), money(rng), discount, _maybe(rng, text(rng, 5)))


def order_lines(rng: random.Random, order_id: int) -> list[tuple[Any, ...]]:
    return [
        (order_id, line_no, new_id(rng), rng.randint(1, 9), money(rng), _maybe(rng, text(rng, 2)))
        for line_no in range(1, rng.randint(2, 6))
    ]


def stock(rng: random.Random, product_id: int) -> list[tuple[Any, ...]]:
    """Make one row per warehouse."""
    return [
        (
            warehouse,
            product_id,
            rng.randrange(1000),
            _maybe(rng, f"[1,{rng.randint(2, 50)})"),
            _maybe(rng, moment(rng)),
            _maybe(rng, long_text(rng)),
        )
        for warehouse in WAREHOUSES
    ]


def promotions(rng: random.Random) -> list[tuple[Any, ...]]:
    """Make a dozen rows; some never end (infinity)."""
    return [
        (
            f"{text(rng, 1)}-{number}",
            Decimal(rng.randrange(10_000)) / 100,
            rng.choice(["infinity", moment(rng).isoformat()]),
            rng.choice(["infinity", "-infinity", "2030-12-31"]),
            _maybe(rng, [new_id(rng) for _ in range(rng.randrange(4))]),
            f"{rng.randrange(24):02}:{rng.randrange(60):02}:00",
            f"{rng.randrange(40)} days {rng.randrange(10**5)} seconds",
        )
        for number in range(12)
    ]


def _chain(groups: Iterable[list[tuple[Any, ...]]]) -> Iterator[tuple[Any, ...]]:
    for group in groups:
        yield from group
