"""A shop and a slot with every kind of change, and `pgcdc show` of what was written, also on a terminal."""

import os
import subprocess

from processes import PGCDC, shown_on

TABLES = """
CREATE TABLE orders (
    id int8 PRIMARY KEY, total numeric(10,2), price numeric, note text, doc jsonb, raw json, at timestamptz,
    local timestamp, day date, clock time, numbers int4[], words text[], small float4, large float8, ok bool,
    bytes bytea, part int4range, gone uuid);
CREATE TABLE items (sku text PRIMARY KEY, n int);
ALTER TABLE items REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR ALL TABLES;
"""

CHANGES = [
    r"""INSERT INTO orders VALUES
        (1, 12.50, 1e30, E'a\x1b[31mred\u009b2J \\ " é', '{"k": [1.10, null]}', E'{"a":\n1, "a": 2}',
         '2026-01-02 03:04:05.5+00', '0044-03-15 10:00:00 BC', '10000-01-01', '23:59:59.999999',
         '{1,NULL,3}', '{"a b",NULL,"NULL","","x,y","q\"\\"}', 0.1, -1.5e-7, true, '\x00ff', '[1,5)',
         '00000000-0000-0000-0000-000000000001'),
        (2, 'NaN', 'NaN', '', 'null', '1', 'infinity', '-infinity', 'infinity', '24:00',
         '{{1,2},{3,4}}', '[0:1]={a,b}', 'NaN', '-Infinity', false, '', 'empty', NULL),
        (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
         '{}', NULL, 3.4e38, 1e-320, NULL, NULL, NULL, NULL)""",
    "INSERT INTO items SELECT 'sku' || n, n FROM generate_series(1, 5) n",
    "BEGIN; UPDATE items SET n = n + 1 WHERE n > 3; UPDATE orders SET id = 20 WHERE id = 2; COMMIT",
    "INSERT INTO orders (id, note) SELECT 50, string_agg(md5(i::text), '') FROM generate_series(1, 1000) i",
    "UPDATE orders SET total = 1 WHERE id = 50",
    "DELETE FROM orders WHERE id = 1",
    "SELECT pg_logical_emit_message(true, 'app', 'hi'), pg_logical_emit_message(true, 'app', '\\xff'::bytea)",
    "TRUNCATE orders, items CASCADE",
    "INSERT INTO items VALUES ('last', 1)",
]


def with_changes(database):
    """Make every kind of change, which the database's slot then has."""
    database.execute(TABLES)
    database.slot = database.create_slot()
    for change in CHANGES:
        database.execute(change)
    return database


def show(pgcdc, *arguments, **settings):
    ran = pgcdc("show", *arguments, **settings)
    assert (ran.status, ran.err) == (0, "")
    return ran.out


def capture(shop, path, version="1", **options):
    """Write a file as pg_recvlogical would."""
    options = {"proto_version": version, "publication_names": "p", **options}
    given = [part for option in options.items() for part in option]
    query = "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, VARIADIC %s)"
    rows = shop.execute(query, (shop.slot, given))
    path.write_bytes(b"".join(bytes(data) + b"\n" for (data,) in rows))


def on_a_terminal(arguments, cwd, *, program=PGCDC, **env):
    """Run pgcdc with a terminal as standard output; return what reached it."""
    controller, terminal = os.openpty()
    given = {**os.environ, "NO_COLOR": None, "TERM": "xterm", "PAGER": "", **env}
    env = {name: value for name, value in given.items() if value is not None}
    process = subprocess.Popen([*program, *arguments], stdout=terminal, cwd=cwd, env=env)
    os.close(terminal)
    output = shown_on(controller)
    assert process.wait(60) == 0
    return output.decode()
