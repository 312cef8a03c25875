"""`pgcdc doctor`: what it prints, as text, JSON and SQL, and its exit status."""

import json
import uuid

import psycopg
import pytest

UPDATES_FAIL = 'updates and deletes of table "public.orders" fail on the source: it has no replica identity'
NO_KEY = 'table "public.orders" has no primary key: its changes can be streamed, but not merged by key'
KEY = "ADD COLUMN pgcdc_key bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY;"


@pytest.fixture
def shop(database):
    """A published table without a replica identity."""
    database.execute("CREATE TABLE orders (id int)")
    database.execute("CREATE PUBLICATION p FOR TABLE orders")
    return database


def test_an_error_has_its_statement_and_the_exit_status_15(shop, pgcdc):
    ran = pgcdc("doctor", "-d", shop.uri, "--publication", "p")
    assert ran.status == 15
    assert ran.out.splitlines()[:4] == [
        f"error    {UPDATES_FAIL}",
        '         ALTER TABLE "public"."orders" REPLICA IDENTITY FULL;',
        f"warning  {NO_KEY}",
        f'         ALTER TABLE "public"."orders" {KEY}',
    ]
    assert ran.err == (
        "pgcdc: error: could not find everything in order: 1 error, 1 warning\n"
        "hint: the statements under each error fix it: run them, then pgcdc doctor again\n"
    )


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("PRIMARY KEY", "no statement fixes this: follow the advice under each error, then run"),
        ("", "run the statements under the errors, follow the advice under those that no statement fixes,"),
    ],
)
def test_the_hint_says_that_errors_have_no_statements(database, pgcdc, key, hint):
    database.execute(f"CREATE TABLE t (id int {key})")
    database.execute("CREATE PUBLICATION shop_pub FOR TABLE t")
    ran = pgcdc("doctor", "-d", database.uri, "--publication", "shop_pup", "--publication", "shop_pub")
    assert ran.status == 15
    assert ran.out.startswith('error    publication "shop_pup" does not exist\n         (did you mean')
    assert ran.err.splitlines()[-1].startswith(f"hint: {hint}")


def test_what_several_publications_share_is_said_once(shop, pgcdc):
    shop.execute("CREATE PUBLICATION q FOR TABLE orders; CREATE PUBLICATION r FOR ALL TABLES")
    ran = pgcdc("doctor", "-d", shop.uri)
    assert ran.out.count(UPDATES_FAIL) == 1
    assert "in order: 1 error, 1 warning" in ran.err
    assert "too" not in ran.out
    found = json.loads(pgcdc("doctor", "-d", shop.uri, "--json").out)["findings"]
    assert [one["message"] for one in found].count(UPDATES_FAIL) == 1


def test_nothing_wrong_is_success(shop, pgcdc):
    shop.execute("ALTER TABLE orders ADD PRIMARY KEY (id)")
    ran = pgcdc("doctor", "-d", shop.uri, "--publication", "p")
    assert (ran.status, ran.err) == (0, "")
    assert all(line.startswith("ok       ") for line in ran.out.splitlines())


def test_json_has_all_findings_and_the_same_status(shop, pgcdc):
    ran = pgcdc("doctor", "-d", shop.uri, "--publication", "p", "--json")
    assert ran.status == 15
    content = json.loads(ran.out)
    assert content["format_version"] == 1
    assert content["findings"][0] == {
        "check": "replica-identity",
        "level": "error",
        "message": UPDATES_FAIL,
        "subject": "public.orders",
        "statements": ['ALTER TABLE "public"."orders" REPLICA IDENTITY FULL;'],
        "advice": None,
    }
    assert {one["level"] for one in content["findings"]} == {"error", "warning", "ok"}


GENERATED = "a int, g int GENERATED ALWAYS AS (a + 1), s int GENERATED ALWAYS AS (a + 2) STORED"


@pytest.mark.parametrize("key", ["", "PRIMARY KEY DEFERRABLE"])
def test_all_statements_run_one_after_the_other(database18, pgcdc, key):
    """An error and a warning of one table have the same remedy: it is there once."""
    database18.execute(f"CREATE TABLE t (id int {key}, {GENERATED})")
    database18.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    database18.execute("CREATE PUBLICATION p FOR TABLE t; CREATE PUBLICATION q FOR TABLE t")
    ran = pgcdc("doctor", "-d", database18.uri)
    lines = [line.strip() for line in ran.out.splitlines()]
    warning = next(n for n, line in enumerate(lines) if line.startswith('warning  table "public.t" has no'))
    assert lines[warning + 1] == "(the statements above fix this, too)"
    printed = [line for line in lines if line.endswith(";")]
    found = json.loads(pgcdc("doctor", "-d", database18.uri, "--json").out)["findings"]
    assert printed == [statement for one in found for statement in one["statements"]]
    for statement in printed:
        database18.execute(statement)
    assert pgcdc("doctor", "-d", database18.uri).status == 0


def test_a_slot_of_a_similar_name_is_proposed(shop, pgcdc):
    name = shop.create_slot()
    ran = pgcdc("doctor", "-d", shop.uri, "-S", name + "s")
    assert f'(or did you mean "{name}"?)' in ran.out


def test_a_role_with_these_grants_and_no_more_can_stream_and_read(shop, pgcdc):
    shop.execute("ALTER TABLE orders ADD PRIMARY KEY (id)")
    shop.execute("CREATE TABLE secrets (id int)")
    slot, role = shop.create_slot(), f"r_{uuid.uuid4().hex[:12]}"
    ran = pgcdc("doctor", "-d", shop.uri, "--role", role, "--publication", "p")
    assert (ran.status, ran.err) == (0, "")
    shop.execute(f'REVOKE CONNECT ON DATABASE "{shop.name}" FROM PUBLIC')
    shop.execute(ran.out)
    try:
        uri = shop.server.uri(shop.name, user=role)
        shop.execute("INSERT INTO orders VALUES (1)")
        found = pgcdc("doctor", "-d", uri, "-S", slot, "--publication", "p")
        assert (found.status, "warning" in found.out) == (0, False)
        line = ("-S", slot, "--publication", "p", "--endpos", "now")
        streamed = pgcdc("stream", "-d", uri, *line)
        assert (streamed.status, streamed.out.count('"op":"I"')) == (0, 1)
        with psycopg.connect(uri) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT FROM secrets")
        again = pgcdc("doctor", "-d", shop.uri, "--role", role, "--publication", "p").out
        assert again.startswith(f'ALTER ROLE "{role}" LOGIN REPLICATION;\n')
    finally:
        shop.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_role_prints_sql_only(shop, pgcdc):
    ran = pgcdc("doctor", "-d", shop.uri, "--role", "r", "--json")
    assert ran.status == 2
    assert "--role prints SQL" in ran.err
