"""`pgcdc publication` against real servers, and how the argument of --table is parsed."""

import json
import re
import shlex

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import remove
from standbys import standby

from pgcdc_cli.catalog import Publication, PublishedTable
from pgcdc_cli.cli.publication import _list, published_table
from pgcdc_cli.formats.terminal import identifier

READ_ONLY = (
    "connect to the primary: a standby is read only; if default_transaction_read_only is on, set"
    " PGOPTIONS='-c default_transaction_read_only=off'"
)
ALL = ["insert", "update", "delete", "truncate"]


def with_tables(database):
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric, note text)")
    database.execute('CREATE SCHEMA "Odd.Schema"')
    database.execute('CREATE TABLE "Odd.Schema"."My ""Table""" ("Id" int PRIMARY KEY, b int)')
    return database


@pytest.fixture
def shop(database18):
    return with_tables(database18)


@pytest.fixture
def any_shop(database):
    return with_tables(database)


def shown(pgcdc, database, name="p"):
    return json.loads(pgcdc("publication", "show", name, "-d", database.uri, "--json").out)


def create(pgcdc, database, *arguments):
    ran = pgcdc("publication", "create", "p", "-d", database.uri, *arguments)
    assert (ran.status, ran.out, ran.err) == (0, "p\n", "")
    return shown(pgcdc, database)


def test_all_tables(any_shop, pgcdc):
    publication = create(pgcdc, any_shop, "--all-tables")
    assert publication["all_tables"] is True
    assert publication["operations"] == ALL
    assert publication["via_root"] is False
    assert publication["owner"] == "postgres"


def test_a_column_that_is_named_twice_is_no_existing_publication(any_shop, refused):
    """The server reports both in the same way."""
    refused(
        *("publication", "create", "p", "-d", any_shop.uri, "--table", "orders(id, id)"),
        status=2,
        error='could not create publication "p": duplicate column "id" in publication column list',
        hint="it is the server that refuses it: in psql, \\d shows its tables and columns, \\dn its schemas",
    )


def test_tables_with_column_list_and_row_filter(any_shop, pgcdc):
    publication = create(
        pgcdc,
        any_shop,
        "--table",
        "public.orders(id, total) WHERE (id > 10 AND (id < 20))",
        "--table",
        '"Odd.Schema"."My ""Table"""("Id")',
    )
    assert publication["tables"] == [
        {"schema": "Odd.Schema", "name": 'My "Table"', "columns": ["Id"], "row_filter": None},
        {
            "schema": "public",
            "name": "orders",
            "columns": ["id", "total"],
            "row_filter": "((id > 10) AND (id < 20))",
        },
    ]
    text = pgcdc("publication", "show", "p", "-d", any_shop.uri).out
    assert "table       public.orders (id, total) WHERE ((id > 10) AND (id < 20))\n" in text
    assert 'table       "Odd.Schema"."My ""Table""" ("Id")\n' in text


def test_capitals_without_quotes_are_those_that_the_server_keeps(any_shop, pgcdc):
    """With UTF-8, it folds only the letters of ASCII."""
    any_shop.execute("CREATE TABLE ÜBERSICHT (ÄNDERUNG int PRIMARY KEY)")
    publication = create(pgcdc, any_shop, "--table", "ÜBERSICHT(ÄNDERUNG)")
    assert names(publication) == [("Übersicht", ["Änderung"], None)]


def test_a_schema_is_shown_as_the_options_take_it(any_shop, pgcdc):
    create(pgcdc, any_shop, "--schema", "Odd.Schema")
    lines = pgcdc("publication", "show", "p", "-d", any_shop.uri).out.splitlines()
    [schema] = [line.split(maxsplit=1)[1] for line in lines if line.startswith("schema")]
    assert alter(pgcdc, any_shop, "--drop-schema", schema)["schemas"] == []


def test_schemas_operations_and_via_root(any_shop, pgcdc):
    publication = create(
        pgcdc, any_shop, "--schema", "Odd.Schema", "--operations", "Delete, insert", "--via-root"
    )
    assert publication["schemas"] == ["Odd.Schema"]
    assert publication["operations"] == ["insert", "delete"]
    assert publication["via_root"] is True


def test_generated_columns(any_shop, pgcdc):
    any_shop.execute(
        "CREATE TABLE priced (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)"
    )
    line = ("publication", "create", "p", "-d", any_shop.uri, "--table", "priced")
    ran = pgcdc(*line, "--generated-columns", "stored")
    if any_shop.server.version < 18:
        assert (ran.status, ran.err.splitlines()) == (
            2,
            [
                "pgcdc: error: could not publish generated columns: that needs PostgreSQL 18",
                "hint: leave out --generated-columns",
            ],
        )
        assert pgcdc(*line).status == 0
        assert shown(pgcdc, any_shop)["generated_columns"] == "none"
        return
    assert ran.status == 0
    assert shown(pgcdc, any_shop)["generated_columns"] == "stored"
    alter = ("publication", "alter", "p", "-d", any_shop.uri, "--generated-columns")
    assert pgcdc(*alter, "none").status == 0
    assert shown(pgcdc, any_shop)["generated_columns"] == "none"


def test_list(any_shop, pgcdc):
    create(pgcdc, any_shop, "--table", "orders", "--schema", "Odd.Schema")
    any_shop.execute("CREATE PUBLICATION nothing")
    listed = pgcdc("publication", "list", "-d", any_shop.uri, "--json").out.splitlines()
    assert [json.loads(line)["name"] for line in listed] == ["nothing", "p"]
    assert pgcdc("publication", "list", "-d", any_shop.uri).out == (
        "NAME     OWNER     TABLES                         OPERATIONS                        VIA ROOT\n"
        "nothing  postgres  none                           insert, update, delete, truncate  no\n"
        'p        postgres  public.orders, "Odd.Schema".*  insert, update, delete, truncate  no\n'
    )


@pytest.mark.parametrize(
    ("width", "heading", "row"),
    [
        (100, "NAME  TABLES  OPERATIONS  VIA ROOT", "p  public.t1, public.t2, public.t3 and 1 more"),
        (60, "NAME  OWNER  TABLES  OPERATIONS  VIA ROOT", "p  postgres  public.t1 and 3 more  all  no"),
        (30, "NAME  TABLES", "p  public.t1 and 3 more"),
    ],
)
def test_a_narrow_terminal_gets_a_shorter_list(monkeypatch, width, heading, row):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    tables = tuple(PublishedTable("public", f"t{number}") for number in range(1, 5))
    lines = _list([Publication("p", tables=tables, owner="postgres")])
    assert max(map(len, lines)) <= width
    assert re.sub("  +", "  ", lines[0]) == heading
    assert re.sub("  +", "  ", lines[1]).startswith(row)


def test_one_without_tables_is_warned_of(any_shop, pgcdc):
    ran = pgcdc("publication", "create", "p", "-d", any_shop.uri)
    assert (ran.status, ran.out) == (0, "p\n")
    assert ran.err == (
        'pgcdc: warning: publication "p" publishes nothing yet:'
        " pgcdc publication alter p --add-table schema.table\n"
    )


def test_drop(any_shop, pgcdc):
    create(pgcdc, any_shop, "--table", "orders")
    ran = pgcdc("publication", "drop", "p", "-d", any_shop.uri)
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    assert pgcdc("publication", "list", "-d", any_shop.uri, "--json").out == ""


def test_a_missing_publication_is_an_error_unless_that_will_do(database18, pgcdc, refused):
    refused(
        "publication",
        "drop",
        "p",
        "-d",
        database18.uri,
        status=7,
        error='could not drop publication "p": it does not exist',
        hint="see which exist with: pgcdc publication list",
    )
    assert pgcdc("publication", "drop", "p", "-d", database18.uri, "--if-exists").status == 0


LONGEST = "é" * 31 + "b"
"""A name of 63 bytes."""


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (("create", f"{LONGEST}c"), ()),
        (("create", "q"), ("--table", f"{LONGEST}c")),
        (("create", "q"), ("--table", f"items({LONGEST}c)")),
        (("create", "q"), ("--schema", f"{LONGEST}c")),
        (("alter", LONGEST), ("--add-table", f"{LONGEST}c.items")),
        (("alter", LONGEST), ("--drop-table", f"{LONGEST}c")),
        (("alter", LONGEST), ("--set-table", f"{LONGEST}c")),
    ],
)
def test_a_name_that_is_too_long_is_not_cut_off_to_that_of_something_else(
    database, pgcdc, refused, command, options
):
    """As the server does: it would publish, or leave out, a table that nobody named."""
    database.execute(f"CREATE TABLE {LONGEST} (id int PRIMARY KEY); CREATE TABLE items ({LONGEST} int)")
    database.execute(f"CREATE SCHEMA {LONGEST}; CREATE TABLE {LONGEST}.items ()")
    database.execute(f"CREATE PUBLICATION {LONGEST} FOR TABLE {LONGEST}")
    before = shown(pgcdc, database, LONGEST)
    verb, name = command
    refused(
        *("publication", *command, *options, "-d", database.uri),
        status=2,
        error=f'could not {verb} publication "{name}": "{LONGEST}c" is longer than any name',
        hint="a name has at most 63 bytes",
    )
    assert shown(pgcdc, database, LONGEST) == before
    assert pgcdc("publication", "show", "q", "-d", database.uri).status == 7


def test_a_name_that_is_too_long_drops_no_other_publication(database, pgcdc, refused):
    database.execute(f"CREATE PUBLICATION {LONGEST}")
    line = ("publication", "drop", f"{LONGEST}c", "-d", database.uri)
    error = f'could not drop publication "{LONGEST}c": it does not exist'
    refused(*line, status=7, error=error, hint=f'did you mean "{LONGEST}"')
    assert pgcdc(*line, "--if-exists").status == 0
    assert shown(pgcdc, database, LONGEST)["name"] == LONGEST


def test_show_of_no_publication(database18, refused):
    refused(
        "publication",
        "show",
        "p",
        "-d",
        database18.uri,
        status=7,
        error='could not find publication "p": it does not exist',
        hint="see which exist with: pgcdc publication list",
    )


def test_an_existing_publication(shop, pgcdc, refused):
    create(pgcdc, shop, "--all-tables")
    refused(
        "publication",
        "create",
        "p",
        "-d",
        shop.uri,
        status=7,
        error='could not create publication "p": publication "p" already exists',
        hint="to change it: pgcdc publication alter p; see it with: pgcdc publication show p",
    )


def test_a_locked_table_does_not_hold_up_a_publication_of_all_tables(shop, pgcdc):
    """Only then can't it be known whether its updates are refused."""
    with psycopg.connect(shop.uri) as other:
        other.execute("LOCK TABLE orders")
        ran = pgcdc("publication", "create", "p", "-d", shop.uri, "--all-tables")
    assert (ran.status, ran.out, ran.err) == (0, "p\n", "")


def test_commands_in_hints_can_be_pasted_whatever_the_name(shop, pgcdc):
    line = ("publication", "create", "the shop's", "--all-tables", "-d", shop.uri)
    assert pgcdc(*line).status == 0
    hint = pgcdc(*line).err.splitlines()[-1]
    command = shlex.split(hint.rpartition("see it with: pgcdc ")[2])
    assert pgcdc(*command, "-d", shop.uri).status == 0


def test_no_right_to_create(shop, pgcdc):
    shop.execute("CREATE ROLE just_looking LOGIN")
    try:
        uri = shop.server.uri(shop.name, user="just_looking")
        ran = pgcdc("publication", "create", "p", "-d", uri, "--table", "orders")
        assert ran.status == 4
        assert ran.err.startswith('pgcdc: error: could not create publication "p": permission denied')
        [_, hint] = ran.err.splitlines()
        assert hint.startswith(f'hint: it needs: GRANT CREATE ON DATABASE "{shop.name}" TO "just_looking"; ')
    finally:
        shop.execute("DROP ROLE just_looking")


@pytest.mark.parametrize(
    ("option", "name", "reason"),
    [
        ("--table", "public.nope", 'relation "public.nope" does not exist'),
        ("--schema", "nope", 'schema "nope" does not exist'),
    ],
)
def test_a_table_or_schema_that_does_not_exist(shop, pgcdc, option, name, reason):
    ran = pgcdc("publication", "create", "p", "-d", shop.uri, option, name)
    assert ran.status == 2
    assert reason in ran.err
    assert "hint: it is the server that refuses it" in ran.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--all-tables", "--table", "a"], "--all-tables excludes --table and --schema"),
        (["--all-tables", "--schema", "a"], "--all-tables excludes --table and --schema"),
        (
            ["--operations", "insert,merge"],
            '--operations: "merge" is not one of insert, update, delete, truncate',
        ),
        (["--table", "a b"], '--table: "a b" is not like schema.table(column, ...) WHERE (filter)'),
    ],
)
def test_contradictions_are_usage_errors_before_the_server_is_asked(refused, arguments, reason):
    refused(
        "publication",
        "create",
        "p",
        "-h",
        "/nowhere",
        *arguments,
        status=2,
        error=f"could not read the command line: {reason}",
        hint="see pgcdc publication create --help",
    )


@pytest.mark.parametrize("option", ["--add-table", "--drop-table", "--add-schema", "--drop-schema"])
def test_what_lists_every_table_neither_adds_nor_drops_one(refused, option):
    reason = "--set-table lists every table: it excludes options that add or drop"
    refused(
        *("publication", "alter", "p", "-h", "/nowhere", "--set-table", "a", option, "b"),
        status=2,
        error=f"could not read the command line: {reason}",
        hint="see pgcdc publication alter --help",
    )


def test_a_name_cannot_steer_the_terminal(database18, pgcdc):
    database18.execute('CREATE PUBLICATION "\x1b[31mred\x9b"')
    for arguments in (["list"], ["list", "--json"], ["show", "\x1b[31mred\x9b"]):
        ran = pgcdc("publication", *arguments, "-d", database18.uri)
        assert ran.status == 0
        assert ran.out.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("orders", PublishedTable("public", "orders")),
        ("Shop.Orders", PublishedTable("shop", "orders")),
        ('"Shop"."Or.ders"', PublishedTable("Shop", "Or.ders")),
        (' shop . orders ( a , "B" ) ', PublishedTable("shop", "orders", ("a", "B"))),
        ("o where (a IN (1, 2))", PublishedTable("public", "o", None, "a IN (1, 2)")),
        ("o(a)WHERE(a = ')')", PublishedTable("public", "o", ("a",), "a = ')'")),
        ("größe", PublishedTable("public", "größe")),
        ("ÜBER", PublishedTable("public", "Über")),
    ],
)
def test_a_table_is_read_as_sql_reads_it(text, table):
    assert published_table("--table", text) == table


names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=10)


@settings(deadline=None)
@given(names, names, st.none() | st.lists(names, min_size=1, max_size=3).map(tuple))
def test_what_is_shown_of_a_table_is_read_back_as_the_same(schema, name, columns):
    text = f"{identifier(schema)}.{identifier(name)}"
    if columns is not None:
        text += f" ({', '.join(map(identifier, columns))})"
    assert published_table("--table", text) == PublishedTable(schema, name, columns)


def alter(pgcdc, database, *arguments):
    ran = pgcdc("publication", "alter", "p", "-d", database.uri, *arguments)
    assert (ran.status, ran.out, ran.err) == (0, "", "")
    return shown(pgcdc, database)


def names(publication):
    return [(table["name"], table["columns"], table["row_filter"]) for table in publication["tables"]]


def test_alter_changes_what_is_given_and_nothing_else(any_shop, pgcdc):
    create(pgcdc, any_shop, "--table", '"Odd.Schema"."My ""Table"""')
    altered = alter(pgcdc, any_shop, "--add-table", "orders(id, total) WHERE (id > 10)", "--via-root")
    assert names(altered) == [('My "Table"', None, None), ("orders", ["id", "total"], "(id > 10)")]
    assert (altered["via_root"], altered["operations"]) == (True, ALL)
    altered = alter(pgcdc, any_shop, "--drop-table", "orders", "--add-schema", "public")
    assert (names(altered), altered["schemas"]) == ([('My "Table"', None, None)], ["public"])
    altered = alter(pgcdc, any_shop, "--drop-schema", "public", "--operations", "insert", "--no-via-root")
    assert (altered["schemas"], altered["operations"], altered["via_root"]) == ([], ["insert"], False)
    assert names(alter(pgcdc, any_shop, "--set-table", "orders")) == [("orders", None, None)]


DESCRIBED = "it is the server that refuses it: in psql, \\d shows its tables and columns, \\dn its schemas"
PUBLISHED = "see what it publishes with: pgcdc publication show p"


def test_alter_is_all_or_nothing(shop, pgcdc):
    before = create(pgcdc, shop, "--table", "orders")
    ran = pgcdc("publication", "alter", "p", "-d", shop.uri, "--add-schema", "public", "--drop-table", "nix")
    assert ran.status == 2
    assert shown(pgcdc, shop) == before


def test_alter_of_no_publication_or_of_nothing(shop, pgcdc):
    ran = pgcdc("publication", "alter", "nix", "-d", shop.uri, "--via-root")
    assert (ran.status, ran.err.splitlines()[1]) == (
        7,
        "hint: see which exist with: pgcdc publication list",
    )
    assert pgcdc("publication", "alter", "nix", "-d", shop.uri).status == 2


@pytest.mark.parametrize(
    ("change", "reason", "hint"),
    [
        (["--drop-table", "nix"], 'relation "public.nix" does not exist', DESCRIBED),
        (["--add-schema", "nix"], 'schema "nix" does not exist', DESCRIBED),
        (["--drop-table", "items"], 'relation "items" is not part of the publication', PUBLISHED),
        (["--add-table", "orders"], 'relation "orders" is already member of publication "p"', PUBLISHED),
    ],
)
def test_an_alteration_that_the_server_refuses_says_where_to_look(shop, pgcdc, refused, change, reason, hint):
    create(pgcdc, shop, "--table", "orders")
    shop.execute("CREATE TABLE items ()")
    line = ("publication", "alter", "p", "-d", shop.uri, *change)
    status = 7 if hint == PUBLISHED else 2
    refused(*line, status=status, error=f'could not alter publication "p": {reason}', hint=hint)


def test_of_all_tables_none_can_be_added(shop, pgcdc):
    create(pgcdc, shop, "--all-tables")
    ran = pgcdc("publication", "alter", "p", "-d", shop.uri, "--add-table", "orders")
    assert (ran.status, ran.err.splitlines()[1]) == (7, f"hint: {PUBLISHED}")


@pytest.mark.parametrize(
    ("sqlstate", "status", "hint"),
    [
        ("P0001", 2, "a function of the database refuses it, such as one that an event trigger calls"),
        ("XX001", 1, "the server failed, and its log may say more: run again"),
    ],
)
def test_an_error_of_the_database_itself_asks_for_no_report_of_ours(shop, refused, sqlstate, status, hint):
    shop.execute(
        "CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE 'not on Fridays' USING ERRCODE = '{sqlstate}'; END $$"
    )
    shop.execute("CREATE EVENT TRIGGER no ON ddl_command_start EXECUTE FUNCTION no()")
    line = ("publication", "create", "p", "-d", shop.uri, "--all-tables")
    error = 'could not create publication "p": not on Fridays'
    refused(*line, status=status, error=error, hint=hint)


def test_a_malformed_table_is_reported_with_its_option(refused):
    reason = '--add-table: "a b" is not like schema.table(column, ...) WHERE (filter)'
    error = f"could not read the command line: {reason}"
    hint = "see pgcdc publication alter --help"
    refused("publication", "alter", "p", "--add-table", "a b", status=2, error=error, hint=hint)


def refusal(table, why):
    return f'pgcdc: warning: updates and deletes of table "{table}" fail on the source: {why}\n'


DOCTOR = "pgcdc: warning: to fix this: pgcdc doctor --publication p\n"


def test_a_column_list_without_the_key_is_warned_of(shop, pgcdc):
    shop.execute("INSERT INTO orders VALUES (1, 2, 'a')")
    ran = pgcdc("publication", "create", "p", "-d", shop.uri, "--table", "orders(total, note)")
    why = 'publication "p" has a column list for it, without id'
    assert (ran.status, ran.out, ran.err) == (0, "p\n", refusal("public.orders", why) + DOCTOR)
    with pytest.raises(psycopg.errors.InvalidColumnReference):
        shop.execute("UPDATE orders SET total = 3")


def test_what_lets_no_update_fail_is_not_warned_of(shop, pgcdc):
    create(pgcdc, shop, "--table", "orders(total)", "--operations", "insert")
    shop.execute("INSERT INTO orders VALUES (1, 2, 'a'); UPDATE orders SET total = 3")


def test_an_alteration_that_lets_updates_fail_is_warned_of(shop, pgcdc):
    create(pgcdc, shop, "--table", "orders")
    ran = pgcdc("publication", "alter", "p", "-d", shop.uri, "--set-table", "orders WHERE (total > 1)")
    why = 'the row filter of publication "p" uses total, outside the replica identity'
    assert (ran.status, ran.err) == (0, refusal("public.orders", why) + DOCTOR)


def test_of_many_tables_some_are_named(shop, pgcdc):
    for number in range(7):
        shop.execute(f"CREATE TABLE keyless{number} (a int)")
    ran = pgcdc("publication", "create", "p", "-d", shop.uri, "--all-tables")
    *named, last = ran.err.splitlines(keepends=True)
    assert named == [refusal(f"public.keyless{n}", "it has no replica identity") for n in range(5)]
    assert last == "pgcdc: warning: 2 more like these; to fix this: pgcdc doctor --publication p\n"


@pytest.mark.parametrize(
    ("command", "more"),
    [(("alter", "--via-root"), "; tables must be its owner's, too"), (("drop",), "")],
)
def test_what_another_role_owns_is_not_for_replication_to_change(database18, refused, command, more):
    role = f"{database18.name}_guest"
    database18.execute(f"CREATE PUBLICATION pub; CREATE ROLE {role} LOGIN")
    verb, *options = command
    try:
        refused(
            *("publication", verb, "pub", *options, "-d", database18.server.uri(database18.name, role)),
            status=4,
            error=f'could not {verb} publication "pub": must be owner of publication pub',
            hint=f"only its owner or a superuser may: pgcdc publication show pub names the owner{more}",
        )
    finally:
        database18.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize(
    ("command", "statement"),
    [
        (("create", "new", "--all-tables"), "CREATE PUBLICATION"),
        (("alter", "pub", "--via-root"), "ALTER PUBLICATION"),
        (("drop", "pub"), "DROP PUBLICATION"),
    ],
)
def test_a_setting_that_makes_sessions_read_only_is_overridden_as_the_hint_says(
    database18, pgcdc, refused, command, statement
):
    verb, name, *options = command
    database18.execute("CREATE PUBLICATION pub")
    database18.execute(f"ALTER DATABASE {database18.name} SET default_transaction_read_only = on")
    line = ("publication", verb, name, *options, "-d", database18.uri)
    refused(
        *line,
        status=2,
        error=f'could not {verb} publication "{name}": cannot execute {statement} in a read-only transaction',
        hint=READ_ONLY,
    )
    [(variable, value)] = re.findall("(PGOPTIONS)='(.+)'", READ_ONLY)
    ran = pgcdc(*line, env={variable: value})
    assert (ran.status, ran.err) == (0, "")


def test_a_standby_takes_no_publication(server18, refused):
    follower = standby(server18)
    reason = "cannot execute CREATE PUBLICATION in a read-only transaction"
    try:
        refused(
            *("publication", "create", "p", "-d", follower.uri()),
            status=2,
            error=f'could not create publication "p": {reason}',
            hint=READ_ONLY,
        )
    finally:
        remove(follower)
