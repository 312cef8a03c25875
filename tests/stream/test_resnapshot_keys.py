"""Which keys `--resnapshot` reads a table by, and in which order; the others are refused."""

from collections import Counter

import pytest
from resnapshot_runs import AGAIN, OFTEN, Resnapshots, create_items, source
from stream_runs import NOW, refused, stream


@pytest.mark.parametrize(
    ("key", "identity"),
    [
        ("PRIMARY KEY (id, kind) INCLUDE (n)", "DEFAULT"),
        ("UNIQUE (id, kind)", "USING INDEX items_id_kind_key"),
    ],
)
def test_rows_are_read_in_the_order_of_the_index(database18, tmp_path, key, identity):
    """In another order each chunk would sort the whole table; a run goes on where the last one ended."""
    database18.execute(
        f"CREATE TABLE items (kind text NOT NULL, id int NOT NULL, n int, doc text, {key});"
        f"ALTER TABLE items REPLICA IDENTITY {identity};"
        "INSERT INTO items SELECT CASE WHEN g % 2 = 0 THEN 'a' ELSE 'b' END, g / 2, nullif(g % 5, 0)"
        " FROM generate_series(1, 300) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    runs = Resnapshots(database18, tmp_path / "out", *OFTEN)
    runs.is_killed_after(4)
    runs.end()
    found = [(change.after["id"], change.after["kind"]) for change in runs.changes()]
    assert found == sorted(found)
    assert runs.folded() == source(database18)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pair", "ROW(g % 7, 'it''s, ' || g)::pair"),
        ("known_pair", "ROW(g, NULL)::pair"),
        ("regclass", "(SELECT oid FROM pg_class ORDER BY oid LIMIT 1 OFFSET g)::regclass"),
        ("known_kind", "CASE g % 2 WHEN 0 THEN 'z'::known_kind ELSE 'a' END"),
        ("char(5)", "'a' || g"),
        ("bit(9)", "g::bit(9)"),
    ],
)
def test_keys_that_no_text_is_compared_with(database18, tmp_path, key, value):
    """Beside such a value a text would be read as something else, or as nothing at all."""
    database18.execute(
        "CREATE TYPE pair AS (a int, b text); CREATE DOMAIN known_pair AS pair CHECK ((VALUE).a > 0);"
        "CREATE TYPE kind AS ENUM ('z', 'a'); CREATE DOMAIN known_kind AS kind;"
        f"CREATE TABLE items (n int, id {key}, PRIMARY KEY (id, n));"
        f"INSERT INTO items SELECT g, {value} FROM generate_series(1, 120) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    runs = Resnapshots(database18, tmp_path / "out")
    runs.end()
    found = [change.after["n"] for change in runs.changes()]
    assert found == [n for (n,) in database18.execute("SELECT n FROM items ORDER BY id, n")]


@pytest.mark.parametrize("collation", ["C", "en-x-icu", "blind"])
def test_keys_that_differ_only_in_blanks_at_their_end_are_read_once_each(database15, tmp_path, collation):
    """They are different rows as `varchar`, also where a chunk ends between them."""
    database15.execute(
        "CREATE COLLATION blind (PROVIDER = icu, LOCALE = 'und-u-ks-level2', DETERMINISTIC = false)"
    )
    database15.execute(
        f'CREATE TABLE items (id varchar COLLATE "{collation}", n char(3), PRIMARY KEY (id, n))'
    )
    database15.execute("INSERT INTO items SELECT repeat(' ', g % 60), g / 60 FROM generate_series(0, 179) g")
    database15.execute("CREATE PUBLICATION pub FOR TABLE items")
    runs = Resnapshots(database15, tmp_path / "out")
    runs.end()
    read = sorted((str(change.after["id"]), str(change.after["n"])) for change in runs.changes())
    assert read == sorted(database15.execute("SELECT * FROM items").fetchall())


def test_keys_that_a_setting_of_the_database_would_read_as_others(database18, tmp_path):
    """With `array_nulls` off, NULL in an array would be a string, and in another place of the order."""
    database18.execute(
        f"ALTER DATABASE {database18.name} SET array_nulls = off;"
        "CREATE TABLE items (n int, id text[] PRIMARY KEY);"
        "INSERT INTO items SELECT g, ARRAY['k', CASE WHEN g > 0 THEN 'Z' || g END, g::text]"
        " FROM generate_series(-100, 100) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    runs = Resnapshots(database18, tmp_path / "out")
    runs.end("--max-time", "60s")
    found = [change.after["n"] for change in runs.changes()]
    assert found == [n for (n,) in database18.execute("SELECT n FROM items ORDER BY id")]


@pytest.mark.parametrize(
    ("encoding", "odd", "escaped"),
    [("SQL_ASCII", b"\xff", "\\xff"), ("EUC_JP", b"\x8f\xa2\xfe", "\\x8f\u25ef")],
)
def test_keys_that_are_no_text(encoded, tmp_path, encoding, odd, escaped):
    """Bytes that Python takes for no text in this encoding, at the end of a chunk and where a row moves."""
    database = encoded(encoding)
    database.send(
        b"CREATE TABLE items (id text PRIMARY KEY, doc text);"
        b"ALTER TABLE items ALTER doc SET STORAGE EXTERNAL;"
        b"INSERT INTO items SELECT repeat('%b', g %% 10 + 1) || g, repeat('d', 9999)"
        b" FROM generate_series(1, 300) g" % odd
    )
    runs = Resnapshots(database, tmp_path / "out", *OFTEN, "--invalid-text", "escape")
    runs.is_killed_after(3)
    # The last row comes to where all is read.
    database.send(b"UPDATE items SET id = '%b' WHERE id = (SELECT max(id) FROM items)" % odd)
    runs.end()
    read = [row["id"] for row in runs.rows_read()]
    assert len(set(read)) == 300
    assert escaped in read


def test_keys_that_only_their_index_tells_apart(database15, tmp_path):
    """To the column "a" is "A", which may well be the first row of the next chunk."""
    database15.execute(
        "CREATE COLLATION either_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        "CREATE TABLE items (id text COLLATE either_case NOT NULL);"
        'CREATE UNIQUE INDEX items_id ON items (id COLLATE "C"); '
        "ALTER TABLE items REPLICA IDENTITY USING INDEX items_id;"
        "INSERT INTO items SELECT repeat(letter, g)"
        " FROM generate_series(1, 25) g, unnest('{a,A,b,B}'::text[]) letter;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    runs = Resnapshots(database15, tmp_path / "out")
    runs.end()
    found = [change.after["id"] for change in runs.changes()]
    assert found == [one for (one,) in database15.execute('SELECT id FROM items ORDER BY id COLLATE "C"')]


@pytest.mark.long
def test_keys_of_a_type_that_compares_in_its_own_way(database15, tmp_path):
    """The order of `citext` isn't that of `text`'s operators."""
    database15.execute(
        "CREATE SCHEMA more; CREATE EXTENSION citext SCHEMA more;"
        "CREATE DOMAIN name AS more.citext; CREATE TABLE items (id public.name PRIMARY KEY);"
        "INSERT INTO items SELECT CASE WHEN g % 2 = 0 THEN 'a' ELSE 'A' END || g"
        " FROM generate_series(1, 500) g;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    runs = Resnapshots(database15, tmp_path / "out")
    runs.end()
    found = [change.after["id"] for change in runs.changes()]
    assert sorted(found) == sorted(one for (one,) in database15.execute("SELECT id::text FROM items"))


def test_names_are_printed_as_the_stream_prints_them(database18, tmp_path):
    """With their schemas; else a key would be two."""
    database18.execute(
        "CREATE SCHEMA more; CREATE TYPE more.kind AS ENUM ('a'); CREATE TABLE more.hidden ();"
        "CREATE TABLE items (id regclass, kind more.kind, PRIMARY KEY (id, kind));"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    runs = Resnapshots(database18, tmp_path / "out")
    database18.execute("INSERT INTO items VALUES ('items', 'a'), ('more.hidden', 'a'), ('pg_class', 'a')")
    runs.end()
    found = [(change.op, change.after["id"]) for change in runs.changes()]
    names = {"public.items", "more.hidden", "pg_class"}
    assert sorted(found) == sorted((op, name) for op in "IR" for name in names)


def test_names_beside_a_key_of_an_extension_are_printed_as_the_stream_prints_them(database15, tmp_path):
    """The operators of the key's type are in the schema whose name would be left out."""
    database15.execute(
        "CREATE EXTENSION citext; CREATE TABLE items (id citext, name regclass, PRIMARY KEY (id, name));"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    runs = Resnapshots(database15, tmp_path / "out")
    database15.execute("INSERT INTO items SELECT 'a' || g, 'items' FROM generate_series(1, 120) g")
    runs.end()
    found = Counter((change.op, change.after["name"]) for change in runs.changes())
    assert found == {("I", "public.items"): 120, ("R", "public.items"): 120}


def test_a_table_without_a_key_is_refused(database18, tmp_path):
    create_items(database18)
    database18.execute("ALTER TABLE other DROP CONSTRAINT other_pkey")
    slot = database18.create_slot()
    run = stream(database18.uri, slot, "-D", str(tmp_path / "out"), "--resnapshot", "public.*", *NOW)
    hint = (
        "give it a primary key or REPLICA IDENTITY USING INDEX, or read it into another directory or file:"
        " pgcdc snapshot"
    )
    refused(run, 2, 'read table "public.other" again: it has no key', hint)


def test_a_key_that_may_be_null_is_refused(database18, tmp_path):
    """No row is beyond a NULL, or before it: rows without a key would be missed."""
    database18.execute(
        "CREATE TABLE items (id int); INSERT INTO items SELECT nullif(g, 3) FROM generate_series(1, 9) g;"
        "ALTER TABLE items ADD CONSTRAINT id_known NOT NULL id NOT VALID;"
        "CREATE UNIQUE INDEX items_id ON items (id); ALTER TABLE items REPLICA IDENTITY USING INDEX items_id;"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    runs = Resnapshots(database18, tmp_path / "out", *NOW)
    reason = 'column "id" of its key may be NULL: NOT NULL was added as NOT VALID'
    hint = "validate it first: ALTER TABLE ... VALIDATE CONSTRAINT ..."
    refused(stream(runs.uri, runs.slot, *runs.options), 2, f'read table "public.items" again: {reason}', hint)
    database18.execute("UPDATE items SET id = 3 WHERE id IS NULL")
    database18.execute("ALTER TABLE items VALIDATE CONSTRAINT id_known")
    run = stream(runs.uri, runs.slot, *runs.options)
    assert (run.returncode, run.stderr, len(runs.rows_read())) == (0, "", 9)


def test_a_key_whose_index_tells_apart_what_is_equal_otherwise_is_refused(database18, tmp_path):
    """Rows equal to the last one of a chunk would be left out."""
    database18.execute(
        "CREATE TYPE pair AS (a numeric); CREATE TABLE items (id pair NOT NULL, n text NOT NULL);"
        "CREATE UNIQUE INDEX items_id ON items (id record_image_ops, n text_pattern_ops);"
        "ALTER TABLE items REPLICA IDENTITY USING INDEX items_id;"
        "INSERT INTO items VALUES ('(1.0)', ''), ('(1.00)', ''); CREATE PUBLICATION pub FOR TABLE items"
    )
    line = (database18.uri, database18.create_slot(), "-f", str(tmp_path / "out"), *AGAIN, *NOW)
    refused(
        stream(*line),
        2,
        'read table "public.items" again: the index of its key has an operator class that tells apart what is'
        " equal otherwise",
        "read it into another directory or file, with pgcdc snapshot",
    )


def test_a_key_that_the_usual_operators_do_not_compare_is_refused(database15, tmp_path):
    database15.execute(
        "CREATE EXTENSION hstore; CREATE TABLE items (id hstore PRIMARY KEY);"
        "CREATE PUBLICATION pub FOR TABLE items"
    )
    slot = database15.create_slot()
    # One chunk would have them all.
    database15.execute("INSERT INTO items VALUES ('a=>1'), ('a=>2')")
    run = stream(database15.uri, slot, "-f", str(tmp_path / "out"), *AGAIN, *NOW)
    assert (tmp_path / "out").read_text() == ""
    refused(
        run,
        2,
        'read the rows of table "public.items": operator does not exist: hstore > hstore',
        "its key can't be compared: read it into another directory or file, with pgcdc snapshot",
    )
