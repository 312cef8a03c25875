"""`pgcdc show --format debezium`: a directory's changes become the stream's Debezium events, or an error."""

import re

import pytest
from show_tools import show

SERVER = ("-c", "topic.prefix=srv", "-c", "snapshot.mode=never")
ORDERS = (*SERVER, "-c", r"column.exclude.list=public\.orders\.raw")
"""Excludes the only column whose text JSON lines don't preserve."""
TABLES = [
    """CREATE TYPE mood AS ENUM ('sad', 'so "so"')""",
    "CREATE DOMAIN amount AS numeric(12,3)",
    """CREATE TABLE many (
        id int8 PRIMARY KEY, big numeric, spent amount, feeling mood DEFAULT 'sad', strict json,
        at timestamptz NOT NULL, gap interval, nets inet[], moods mood[], flags bit(3),
        secret varchar(20) DEFAULT 'none', texts text[])""",
    "CREATE TABLE bare (n int DEFAULT 7, v text)",
    "ALTER TABLE bare REPLICA IDENTITY FULL",
    "CREATE TABLE split (id int PRIMARY KEY, v text, w int) PARTITION BY RANGE (id)",
    "CREATE TABLE split_low PARTITION OF split FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE split_high PARTITION OF split FOR VALUES FROM (10) TO (20)",
    "ALTER TABLE split_high REPLICA IDENTITY FULL",
    "ALTER PUBLICATION p SET (publish_via_partition_root)",
]
CHANGES = [
    r"""INSERT INTO many VALUES (1, 'Infinity', 1.5, 'so "so"', E'{"a":1.0,"a":"x y\\n\\""}',
        '0044-03-15 10:00 BC', '1 year -2 days 03:04:05.6', '{10.0.0.1,NULL}', '{sad,"so \"so\""}', B'101',
        U&'z\2028' || E'\x01', '{a,"b c",NULL}'),
        (2, 1e-30, NULL, NULL, 'null', 'infinity', NULL, '{}', NULL, NULL, NULL, NULL)""",
    "INSERT INTO bare VALUES (1, NULL), (1, 'a'), (NULL, repeat('long', 1000))",
    "BEGIN; UPDATE bare SET v = 'b' WHERE n = 1; UPDATE many SET id = 3 WHERE id = 2; COMMIT",
    "DELETE FROM bare",
    "INSERT INTO split VALUES (1, 'a', 1), (11, 'a', 1), (12, NULL, NULL), (13, 'c', NULL)",
    "UPDATE split SET w = 2",
    "UPDATE split SET id = id + 1 WHERE id IN (1, 13)",
    "DELETE FROM split",
    "INSERT INTO many (id, at, secret) VALUES (4, '2026-01-02', 'abc')",
    "TRUNCATE many RESTART IDENTITY",
]


@pytest.fixture
def more(shop):
    """The shop with more types, defaults and replica identities."""
    for sql in (*TABLES, *CHANGES):
        shop.execute(sql)
    return shop


WRITTEN = re.compile(
    r'("op":"[a-z]",(?:"transaction":null,)?"ts_ms":)\d+(?:,"ts_us":\d+,"ts_ns":\d+)?(?![^{}]*"version")'
)


def timeless(text):
    """The events without the time at which they were written."""
    return WRITTEN.sub(r"\1?", text).split("\n")


def without_commits(text):
    """The events without their times and without the position of the previous commit."""
    return timeless(re.sub(r'("sequence":"\[)(?:null|\\"\d+\\"),', r"\1null,", text))


def debezium(pgcdc, *arguments):
    return show(pgcdc, *arguments, "--format", "debezium")


@pytest.mark.parametrize(
    "stored", [["--compression", "none"], ["--compression", "zstd"], ["--format", "arrow"]], ids=str
)
@pytest.mark.usefixtures("more")
def test_a_directory_shows_the_events_of_the_stream(stream, pgcdc, stored):
    expected = stream("-f", "-", "--format", "debezium", *ORDERS)
    stream("-D", "d", *stored)
    shown = debezium(pgcdc, "d", *ORDERS)
    assert len(shown.splitlines()) > 30
    assert timeless(shown) == without_commits(expected)


@pytest.mark.usefixtures("more")
def test_with_transactions_the_commit_before_is_known(stream, pgcdc):
    expected = stream("-f", "-", "--format", "debezium", *ORDERS)
    stream("-D", "d", "--layout", "stream", "--transactions", "--numeric", "number")
    shown = debezium(pgcdc, "d", *ORDERS)
    assert timeless(shown) == timeless(expected)
    assert timeless(shown) != without_commits(expected)


@pytest.mark.parametrize(
    "options",
    [
        ["-c", "debezium.version=3.4", "--record", "value"],
        ["-c", "decimal.handling.mode=double", "-c", "table.include.list=public\\.many", "-c",
         "value.converter.schemas.enable=false", "-c", "skipped.operations=d,t"],
    ],
    ids=["3.4", "modes"],
)  # fmt: skip
@pytest.mark.usefixtures("more")
def test_the_configuration_decides(stream, pgcdc, options):
    expected = stream("-f", "-", "--format", "debezium", *ORDERS, *options)
    for form in ("jsonl", "arrow"):
        stream("-D", form, "--format", form)
        shown = debezium(pgcdc, form, *ORDERS, *options)
        assert shown
        assert timeless(shown) == without_commits(expected)


def test_a_table_that_changed_has_the_columns_it_had(shop, stream, pgcdc):
    shop.execute("ALTER TABLE items ADD COLUMN later text, ALTER COLUMN n TYPE int8")
    shop.execute("INSERT INTO items VALUES ('new', 1, 'x')")
    expected = stream("-f", "-", "--format", "debezium", *ORDERS)
    stream("-D", "d")
    assert timeless(debezium(pgcdc, "d", *ORDERS)) == without_commits(expected)


def test_a_limit_counts_events(stream, pgcdc):
    stream("-D", "d")
    whole = debezium(pgcdc, "d", *ORDERS).splitlines()
    cut = debezium(pgcdc, "d", "--limit", "12", *ORDERS).splitlines()
    assert timeless("\n".join(cut)) == timeless("\n".join(whole[:12]))


def shown_refused(refused, *arguments, error, hint, status=2):
    refused("show", "d", "--format", "debezium", *arguments, status=status, error=error, hint=hint)


def test_json_that_may_have_had_line_breaks_is_refused(stream, refused):
    stream("-D", "d")
    shown_refused(
        refused,
        *SERVER,
        error='could not restore column "raw" of "public.orders": a blank in its json may have been '
        "a line break",
        hint="leave it out with -c column.exclude.list=..., or stream with --format debezium",
    )


def test_arrow_files_hold_json_as_it_is(shop, stream, pgcdc):
    options = [*SERVER, "-c", r"table.include.list=public\.notes"]
    shop.execute("CREATE TABLE notes (id int PRIMARY KEY, raw json)")
    shop.execute("""INSERT INTO notes VALUES (1, E'{"a":\\n[1, 2.50] }'), (2, NULL), (3, ' null ')""")
    expected = stream("-f", "-", "--format", "debezium", *options)
    stream("-D", "d", "--format", "arrow")
    assert '"raw":" null "' in expected
    assert timeless(debezium(pgcdc, "d", *options)) == without_commits(expected)


def test_transaction_metadata_is_refused(stream, refused):
    stream("-D", "d", "--layout", "stream", "--transactions")
    shown_refused(
        refused,
        *ORDERS,
        "-c",
        "provide.transaction.metadata=true",
        error="could not show Debezium's events: provide.transaction.metadata needs the position of each"
        " BEGIN, which files don't have",
        hint="leave the property out, or stream with --format debezium",
    )


def test_a_message_outside_of_transactions_needs_the_commits(shop, stream, pgcdc, refused):
    shop.execute("SELECT pg_logical_emit_message(false, 'loose', 'hi')")
    shop.execute("INSERT INTO items VALUES ('behind it', 1)")
    expected = stream("-f", "-", "--format", "debezium", *ORDERS)
    stream("-D", "whole", "--layout", "stream", "--transactions")
    assert timeless(debezium(pgcdc, "whole", *ORDERS)) == timeless(expected)
    stream("-D", "d")
    shown_refused(
        refused,
        *ORDERS,
        error="could not show Debezium's events: the time of a message outside transactions is that of the"
        " last commit, which is missing",
        hint="stream with --layout stream --transactions, or leave messages out with "
        "-c message.prefix.exclude.list=...",
    )
    left = debezium(pgcdc, "d", *ORDERS, "-c", "message.prefix.exclude.list=loose")
    kept = [line for line in without_commits(expected) if '"prefix":"loose"' not in line]
    assert timeless(left) == kept


def test_versions_that_one_file_holds_are_refused(shop, stream, refused):
    shop.execute("ALTER TABLE items ADD COLUMN later text")
    shop.execute("INSERT INTO items VALUES ('new', 1, 'x')")
    stream("-D", "d", "--layout", "stream")
    shown_refused(
        refused,
        *ORDERS,
        error="could not show Debezium's events: \"public.items\" changed, and a file of all tables doesn't"
        " say before which row",
        hint="stream with --layout table",
    )


def test_without_a_checkpoint_the_database_must_be_named(shop, stream, pgcdc, refused, tmp_path):
    stream("-D", "d")
    expected = debezium(pgcdc, "d", *ORDERS)
    (tmp_path / "d" / "checkpoint.json").unlink()
    shown_refused(
        refused,
        *ORDERS,
        error='could not show Debezium\'s events: "d" has no checkpoint.json, which names the database',
        hint="name it with -c database.dbname=NAME",
    )
    named = debezium(pgcdc, "d", *ORDERS, "-c", f"database.dbname={shop.name}")
    assert timeless(named) == timeless(expected)


@pytest.mark.parametrize("form", ["jsonl", "arrow"])
def test_a_schema_file_without_facts_is_refused(stream, refused, tmp_path, form):
    stream("-D", "d", "--format", form)
    for path in (tmp_path / "d" / "schemas").iterdir():
        path.write_text(re.sub(r',"facts":.*', "}", path.read_text()))
    shown_refused(
        refused,
        *ORDERS,
        error='could not show Debezium\'s events: the schema file of "public.orders" has neither defaults '
        "nor a primary key",
        hint="an earlier version of pgcdc wrote it: stream with --format debezium",
    )


@pytest.mark.parametrize("form", ["jsonl", "arrow"])
def test_rows_of_a_snapshot_are_refused(shop, pgcdc, refused, form):
    """An event of one says whether it was the last."""
    snapshot = ("-d", shop.uri, "--publication", "p", "--table", "public.items")
    assert pgcdc("snapshot", *snapshot, "-D", "d", "--format", form).status == 0
    shown_refused(
        refused,
        *ORDERS,
        error='could not show Debezium\'s events: "public.items" has rows of a snapshot, and the files'
        " don't say which was its last",
        hint="stream with --format debezium",
    )
    assert debezium(pgcdc, "d", *ORDERS, "-c", r"table.exclude.list=public\.items") == ""


def test_without_the_catalog_it_is_the_stream_without_it(stream, pgcdc):
    expected = stream("-f", "-", "--format", "debezium", "--no-catalog", *ORDERS)
    stream("-D", "d", "--no-catalog")
    assert timeless(debezium(pgcdc, "d", *ORDERS)) == without_commits(expected)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["one.jsonl", "--format", "debezium", *ORDERS],
            '--format debezium: "one.jsonl" is not a directory, whose schema files it needs',
        ),
        (
            [".", "--format", "debezium", "--table", "*", *ORDERS],
            "--table: with --format debezium, -c table.include.list=... chooses tables",
        ),
        ([".", "--record", "value"], "--connector-config, -c and --record go with --format debezium"),
    ],
)
def test_options_that_dont_go_together(refused, arguments, error):
    refused(
        "show",
        *arguments,
        status=2,
        error=f"could not read the command line: {error}",
        hint="see pgcdc show --help",
    )


def test_a_line_that_is_not_of_its_table_is_refused(stream, pgcdc, tmp_path):
    """It is refused even if no checksum reveals it, as in a directory that another program wrote."""
    stream("-D", "d")
    manifest = tmp_path / "d" / "manifest.jsonl"
    orders = next(path.name for path in (tmp_path / "d" / "schemas").iterdir() if "clock" in path.read_text())
    own = next(path.name for path in (tmp_path / "d" / "schemas").iterdir() if path.name != orders)
    manifest.write_text(manifest.read_text().replace(own, orders))
    ran = pgcdc("show", "d", "--format", "debezium", *ORDERS)
    assert ran.status == 8
    assert ran.err.startswith('pgcdc: error: could not read "d": ')
    assert ran.err.count("\n") == 2
