"""Names that aren't valid text are still shown by every command that looks at them."""

import json
from contextlib import contextmanager

import psycopg
import pytest
from servers import Encoded, new_slot_name

BYTES = {"SQL_ASCII": b"\xe9", "WIN1252": b"\x81"}
CATALOG = (
    b'CREATE TABLE "t~" (a int PRIMARY KEY, "b~" text NOT NULL, "c~" text DEFAULT \'d~\')',
    b'CREATE SCHEMA "s~"',
    b'CREATE TABLE "s~".u (a int PRIMARY KEY)',
    b'CREATE TABLE v (a int PRIMARY KEY, "w~" text)',
    b"CREATE TABLE d (a int PRIMARY KEY, b text DEFAULT 'e~')",
    b"INSERT INTO t VALUES (1, 'one')",
    b"INSERT INTO \"t~\" VALUES (2, 'two', 'text')",
    b'INSERT INTO "s~".u VALUES (3)',
    b"INSERT INTO v VALUES (4, 'four')",
    b"INSERT INTO d VALUES (5, 'five')",
    b'CREATE PUBLICATION "p~" FOR TABLE t, "t~" (a, "b~") WHERE (a = 2)',
    b'CREATE PUBLICATION s FOR TABLES IN SCHEMA "s~"',
)


@pytest.fixture(params=BYTES)
def odd(encoded, request):
    """A database whose names have bytes that aren't valid text, written as ~ here."""
    database = encoded(request.param)
    database.bytes = BYTES[request.param]
    for statement in CATALOG:
        database.send(statement.replace(b"~", database.bytes))
    return database


def shown(database: Encoded, text: str) -> str:
    return text.replace("~", f"\\x{database.bytes.hex()}")


def test_publications_are_listed_and_shown(odd, pgcdc):
    listed = pgcdc("publication", "list", "-d", odd.uri)
    assert (listed.status, listed.err) == (0, "")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["NAME", "pub", shown(odd, "p~"), "s"]
    one = pgcdc("publication", "show", "-d", odd.uri, shown(odd, "p~"), "--json")
    assert (one.status, one.err) == (0, "")
    told = json.loads(one.out)
    tables = {table["name"]: table["columns"] for table in told["tables"]}
    assert tables == {"t": None, shown(odd, "t~"): ["a", shown(odd, "b~")]}
    lines = pgcdc("publication", "show", "-d", odd.uri, "s").out.splitlines()
    assert ["schema", shown(odd, "s~")] in [line.split() for line in lines]


def test_a_publication_that_cannot_be_named_is_to_be_renamed(odd, refused):
    refused(
        *("snapshot", "-d", odd.uri, "--publication", shown(odd, "p~")),
        status=7,
        error=f'could not find publication "{shown(odd, "p~")}"',
        hint="the name of the one that resembles it is not valid text: rename it",
    )


def test_a_snapshot_says_what_it_cannot_name_and_reads_the_rest(odd, pgcdc, refused):
    """No statement of the snapshot could contain such a name, whatever --invalid-text says."""
    snapshot = ("snapshot", "-d", odd.uri, "-f", "-", "--invalid-text", "escape")
    without = ("--publication", "pub", "--exclude-table", "public.t?*", "--exclude-table", "s*.u")
    hint = "no statement can name it: rename it, or leave it out, with --exclude-table or --exclude-column"
    for arguments, name in (
        (("--publication", "pub"), f'the name of table "public.{shown(odd, "t~")}"'),
        (
            ("--publication", "pub", "--invalid-text", "stop"),
            f'the name of table "public.{shown(odd, "t~")}"',
        ),
        (("--publication", "s"), f'the name of table "{shown(odd, "s~")}.u"'),
        (without, f'the name of column "{shown(odd, "w~")}" of table "public.v"'),
    ):
        refused(
            *snapshot, *arguments, status=8, error=f"could not read rows: {name} is not valid text", hint=hint
        )
    ran = pgcdc(*snapshot, *without, "--exclude-column", "*.v.w*")
    assert (ran.status, ran.err) == (0, "")
    lines = list(map(json.loads, ran.out.splitlines()))
    assert [(line["table"], line["new"]["a"]) for line in lines] == [("d", 5), ("t", 1), ("v", 4)]
    one = pgcdc("snapshot", "-d", odd.uri, "-f", "-", "--table", "public.t")
    assert (one.status, one.err, one.out.count("\n")) == (0, "", 1)


def test_the_doctor_looks_at_all_publications_and_tables(odd, pgcdc):
    ran = pgcdc("doctor", "-d", odd.uri, "--json")
    assert (ran.status, ran.err) == (0, "")
    counts = {
        one["subject"]: one["message"].rpartition("has ")[2]
        for one in json.loads(ran.out)["findings"]
        if one["check"] == "publication-empty"
    }
    assert counts == {shown(odd, "p~"): "2 tables", "pub": "5 tables", "s": "1 table"}
    grants = pgcdc("doctor", "-d", odd.uri, "--role", "somebody")
    assert (grants.status, grants.err) == (0, "")
    assert shown(odd, 'GRANT SELECT ON TABLE "s~"."u" TO "somebody";') in grants.out


def test_completion_offers_what_can_be_typed(odd, pgcdc):
    for kind, offered in (("publications", ["pub", "s"]), ("tables", ["public.d", "public.t", "public.v"])):
        env = {"PGCDC_DBNAME": odd.uri, "PGCDC_COMPLETION_SECONDS": "60"}
        assert pgcdc("__complete", kind, "pgcdc stream ", env=env).out.split() == offered


def test_peek_says_which_publication_it_leaves_out(odd, pgcdc):
    slot = odd.create_slot()
    odd.send(b"INSERT INTO \"t~\" VALUES (6, 'six')".replace(b"~", odd.bytes))
    for form in ("pretty", "jsonl"):
        ran = pgcdc("slot", "peek", "-d", odd.uri, slot, "--format", form)
        assert ran.status == 0, ran.err
        assert f'publication "{shown(odd, "p~")}" is left out: its name is not valid text' in ran.err
        assert shown(odd, "t~") in ran.out.replace("\\\\", "\\")


@contextmanager
def shared_names(ascii_database):
    """A role, and a database with a slot, whose names aren't valid text in any database of the server."""
    name, slot = f"r_{ascii_database.name}".encode() + b"\xe9", new_slot_name()
    ascii_database.send(b'CREATE ROLE "%b" SUPERUSER' % name)
    ascii_database.send(b'CREATE DATABASE "%b" TEMPLATE template0' % ascii_database.name.upper().encode())
    other = ascii_database.server.uri(ascii_database.name.upper())
    with psycopg.connect(other, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    rename = b'ALTER DATABASE "%b" RENAME TO "%b"' % (ascii_database.name.upper().encode(), name)
    ascii_database.send(rename)
    yield slot, name.decode(errors="backslashreplace")
    ascii_database.drop_slot(slot)
    ascii_database.send(b'DROP DATABASE "%b"' % name)
    ascii_database.send(b'DROP ROLE "%b"' % name)


@pytest.mark.parametrize("encoding", ["UTF8", "SQL_ASCII", "EUC_JP"])
def test_names_that_databases_share_are_shown_in_all_of_them(encoded, pgcdc, encoding):
    database = encoded(encoding)
    owned = "UPDATE pg_publication SET pubowner = (SELECT oid FROM pg_roles WHERE rolname LIKE %s)"
    with shared_names(encoded("SQL_ASCII")) as (slot, name):
        database.execute(owned, (name.partition("\\")[0] + "%",))
        listed = pgcdc("slot", "list", "-d", database.uri, "--json")
        assert (listed.status, listed.err) == (0, "")
        databases = {one["name"]: one["database"] for one in map(json.loads, listed.out.splitlines())}
        assert databases[slot] == name
        one = pgcdc("slot", "show", slot, "-d", database.uri)
        assert (one.status, one.err) == (0, "")
        assert name in one.out
        publication = pgcdc("publication", "show", "pub", "-d", database.uri, "--json")
        assert (publication.status, publication.err) == (0, "")
        assert json.loads(publication.out)["owner"] == name
        assert pgcdc("doctor", "-d", database.uri).status == 0
        database.execute("ALTER PUBLICATION pub OWNER TO postgres")
