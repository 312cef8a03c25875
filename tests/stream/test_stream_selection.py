"""`--table`, `--exclude-table` and `--exclude-column`: what they leave out, and what not."""

import json

import pytest
from processes import wait_until
from row_changes import row_changes
from segments import contents, manifest
from stream_runs import NOW, stream

from pgcdc_cli.changes.selection import NamePattern

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, customer text, note text);
CREATE TABLE audit (id int, who text, what text);
ALTER TABLE audit REPLICA IDENTITY FULL;
CREATE TABLE "Secret" (id int PRIMARY KEY, word text);
ALTER TABLE orders ALTER note SET STORAGE EXTERNAL;
CREATE PUBLICATION pub FOR TABLE orders, audit, "Secret";
"""
MANY = 100
"""Enough rows to be decoded as columns."""


@pytest.fixture
def shop(database18):
    database18.execute(TABLES)
    database18.slot = database18.create_slot()
    return database18


def write(database, rows: int = 1) -> None:
    numbers = f"FROM generate_series(1, {rows}) g"
    database.execute(
        f"BEGIN; INSERT INTO audit SELECT g, 'me', 'all' {numbers};"
        f"INSERT INTO orders SELECT g, 'c' || g, repeat('x', 9000) {numbers};"
        f"""INSERT INTO "Secret" SELECT g, 'w' {numbers}; COMMIT"""
    )


def run(database, out, *options: str) -> str:
    ran = stream(database.uri, database.slot, "-D", str(out), *NOW, *options)
    assert ran.returncode == 0, ran.stderr
    return ran.stderr


def lines(out, table: str) -> list[dict]:
    return [json.loads(line) for line in contents(out)[table]]


@pytest.mark.parametrize(
    ("pattern", "schema", "table", "matches"),
    [
        ("public.orders", "public", "orders", True),
        ("PUBLIC.Orders", "public", "orders", True),
        ('public."Orders"', "public", "orders", False),
        ('public."Orders"', "public", "Orders", True),
        ("*.ord*", "sales", "orders", True),
        ("public.order?", "public", "orders", True),
        ("public.order?", "public", "order", False),
        ('public."a*"', "public", "ab", False),
        ('public."a.b""c"', "public", 'a.b"c', True),
        ("public.a+", "public", "aa", False),
        ('public.x"Y"*', "public", "xYz", True),
        ("Orders", "public", "orders", True),
        ("ÜBER", "public", "Über", True),
        ("orders", "sales", "orders", False),
        ('"a.*"', "public", "a.*", True),
    ],
)
def test_patterns_are_psqls(pattern, schema, table, matches):
    assert NamePattern(pattern, 2).matches(schema, table) is matches


@pytest.mark.parametrize("pattern", ["order?", "*", "a.b.c", "a.", ".b", "", 'a."b', "a..b"])
def test_a_pattern_has_all_its_parts(pattern):
    ran = stream("", "s", "--publication", "pub", "--table", pattern)
    message = f'--table: "{pattern}" is not a pattern of the form schema.table'
    assert (ran.returncode, message in ran.stderr) == (2, True)


def test_several_patterns_in_one_are_told_apart():
    ran = stream("", "s", "--publication", "pub", "--table", "public.a,public.b")
    said = '"public.a,public.b" is not a pattern of the form schema.table: give each its own --table'
    assert (ran.returncode, said in ran.stderr) == (2, True)


@pytest.mark.parametrize("rows", [1, MANY])
@pytest.mark.parametrize(
    "options", [("--table", "*.orders"), ("--exclude-table", '*."Secret"', "--exclude-table", "*.audit")]
)
def test_only_what_is_chosen_is_written_and_counted_as_ever(shop, tmp_path, rows, options):
    write(shop, rows)
    assert run(shop, tmp_path, *options) == ""
    assert set(contents(tmp_path)) == {"public.orders"}
    found = lines(tmp_path, "public.orders")
    assert [line["new"]["id"] for line in found] == list(range(1, rows + 1))
    assert [line["seq"] for line in found] == list(range(rows, 2 * rows))


@pytest.mark.parametrize("rows", [1, MANY])
def test_columns_that_are_excluded_are_nowhere(shop, tmp_path, rows):
    write(shop, rows)
    shop.execute("UPDATE orders SET customer = 'other'; UPDATE audit SET what = 'none'; DELETE FROM audit")
    run(shop, tmp_path, "--exclude-column", "*.*.customer", "--exclude-column", "*.audit.w*")
    orders, audit = lines(tmp_path, "public.orders"), lines(tmp_path, "public.audit")
    assert set(orders[0]["new"]) == {"id", "note"}
    assert (orders[-1]["new"], orders[-1]["unchanged"]) == ({"id": rows}, ["note"])
    images = [image for line in audit for image in (line.get("old"), line.get("new")) if image]
    assert len(images) == 4 * rows
    assert all(set(image) == {"id"} for image in images)
    for segment in manifest(tmp_path):
        for file in segment["files"]:
            names = {
                column["name"] for column in json.loads((tmp_path / file["schema"]).read_text())["columns"]
            }
            assert not names & {"customer", "who", "what"}


@pytest.mark.parametrize("rows", [1, MANY])
def test_key_columns_stay(shop, tmp_path, rows):
    write(shop, rows)
    shop.execute("UPDATE orders SET id = -id")
    run(shop, tmp_path, "--table", "*.orders", "--exclude-column", "*.*.*")
    found = lines(tmp_path, "public.orders")
    assert (found[0]["key"], found[0]["new"]) == ({"id": 1}, {"id": 1})
    assert (found[-1]["old"], found[-1]["new"]) == ({"id": rows}, {"id": -rows})


def test_the_columns_of_the_primary_key_stay_beside_another_replica_identity(shop, tmp_path):
    """Debezium's key is the primary key, whatever the replica identity is."""
    shop.execute("ALTER TABLE orders ALTER customer SET NOT NULL, ADD UNIQUE (customer)")
    shop.execute("ALTER TABLE orders REPLICA IDENTITY USING INDEX orders_customer_key")
    write(shop)
    run(shop, tmp_path, "--table", "orders", "--exclude-column", "*.*.*")
    [found] = lines(tmp_path, "public.orders")
    assert found["new"] == {"id": 1, "customer": "c1"}


def test_a_truncate_is_of_the_tables_that_are_left(shop, tmp_path):
    shop.execute('TRUNCATE audit, orders, "Secret"')
    run(shop, tmp_path, "--exclude-table", "*.audit")
    assert set(contents(tmp_path)) == {"public.orders", "public.Secret"}


@pytest.mark.parametrize("form", ["arrow", "debezium"])
@pytest.mark.parametrize("rows", [1, MANY])
def test_every_format_leaves_out_the_same(shop, tmp_path, form, rows):
    write(shop, rows)
    more = ("-c", "topic.prefix=p", "-c", "snapshot.mode=never") if form == "debezium" else ()
    run(shop, tmp_path, "--format", form, *more, "--table", "*.orders", "--exclude-column", "*.*.customer")
    assert len(contents(tmp_path)) == 1
    text = b"".join(path.read_bytes() for path in tmp_path.glob("*/*.*") if path.parent.name != "schemas")
    assert b"customer" not in text
    assert b"note" in text


def test_a_snapshot_is_of_the_chosen_tables_and_columns(shop, tmp_path):
    write(shop)
    more = ("--format", "debezium", "-c", "topic.prefix=p", "--layout", "stream")
    run(shop, tmp_path, *more, "--table", "*.orders", "--exclude-column", "*.*.note")
    events = [json.loads(line) for line in contents(tmp_path)[None]]
    assert {event["topic"] for event in events} == {"p.public.orders"}
    assert {tuple(event["value"]["payload"]["after"]) for event in events} == {("id", "customer")}


def test_a_streamed_transaction_is_filtered_too(shop, tmp_path):
    shop.execute(f"ALTER DATABASE {shop.name} SET logical_decoding_work_mem = '64kB'")
    write(shop, 2000)
    run(shop, tmp_path, "--table", "*.orders", "--exclude-column", "*.*.note", "--proto-version", "2")
    assert {tuple(line["new"]) for line in lines(tmp_path, "public.orders")} == {("id", "customer")}


def test_a_pattern_that_leaves_out_all_takes_nothing(shop, tmp_path):
    """A mistyped pattern would take all changes from the slot and write none."""
    write(shop)
    ran = stream(shop.uri, shop.slot, "-D", str(tmp_path), *NOW, "--table", "public.order")
    assert ran.returncode == 2
    assert ran.stderr.startswith("pgcdc: error: could not find a table to stream: nothing")
    ran = stream(shop.uri, shop.slot, "-D", str(tmp_path), *NOW, "--exclude-table", "*.*")
    assert ran.returncode == 2
    assert ran.stderr.startswith(
        "pgcdc: error: could not find a table to stream: --exclude-table leaves out all"
    )
    run(shop, tmp_path, "--table", "public.orders")
    assert [line["new"]["id"] for line in lines(tmp_path, "public.orders")] == [1]
    shop.execute("INSERT INTO orders VALUES (2)")
    for _ in range(2):
        ran = stream(shop.uri, shop.slot, "-D", str(tmp_path), *NOW, "--table", "public.order")
        assert (ran.returncode, "could not find a table to stream" in ran.stderr) == (2, True)
    run(shop, tmp_path, "--table", "public.orders")
    assert [line["new"]["id"] for line in lines(tmp_path, "public.orders")] == [1, 2]
    shop.execute("ALTER PUBLICATION pub DROP TABLE orders")
    assert "warning" in run(shop, tmp_path, "--table", "public.orders")


def test_messages_can_be_streamed_without_a_table(shop, tmp_path):
    shop.execute("SELECT pg_logical_emit_message(true, 'p', 'hello')")
    run(shop, tmp_path, "--exclude-table", "*.*", "--messages", "--layout", "stream")
    assert [json.loads(line)["op"] for line in contents(tmp_path)[None]] == ["M"]


def test_what_matches_nothing_is_warned_of(shop, tmp_path):
    options = ("--table", "public.order", "--exclude-column", "*.orders.nothing", "--table", "*.audit")
    said = run(shop, tmp_path, *options)
    assert said.splitlines() == [
        f'pgcdc: warning: nothing in the publications matches "{pattern}"'
        for pattern in ("public.order", "*.orders.nothing")
    ]


@pytest.mark.parametrize(
    ("form", "name", "wrong", "right"),
    [
        ("debezium", "table.include.list", "public.ordrs", "public.ordrs,public.orders"),
        ("debezium", "schema.include.list", "pubic", "public"),
        ("wal2json", "add-tables", "public.ordrs", "public.ordrs,public.orders"),
    ],
)
def test_a_formats_list_that_has_no_published_table_is_warned_of(shop, tmp_path, form, name, wrong, right):
    """It takes all changes from the slot and writes none."""
    options = {
        "debezium": ("-c", "topic.prefix=p", "-c", "snapshot.mode=never", "-c"),
        "wal2json": ("--layout", "stream", "--wal2json-option"),
    }[form]
    said = [
        run(shop, tmp_path / text, "--format", form, *options, f"{name}={text}") for text in (wrong, right)
    ]
    assert said == [f"pgcdc: warning: nothing in the publications matches {name}\n", ""]


LISTS = {
    "--table": (("--table", "*.orders"), ("--table", "*.audit", "--table", "*.orders")),
    "--exclude-table": (("--exclude-table", "*.audit"), ()),
    "filter-tables": (("--wal2json-option", "filter-tables=*.audit"), ()),
    "add-tables": (
        ("--wal2json-option", "add-tables=*.orders"),
        ("--wal2json-option", "add-tables=*.orders,*.audit"),
    ),
}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, form) for name in ("--table", "--exclude-table") for form in ("jsonl", "arrow")),
        *((name, "wal2json") for name in ("add-tables", "filter-tables")),
    ],
)
def test_other_tables_may_be_chosen_later(shop, tmp_path, name, form):
    """Their changes come from then on, as with a connector's lists; the wrong command line is seen."""
    before, later = LISTS[name]
    formatted = ("--format", form, "--layout", "stream") if form == "wal2json" else ("--format", form)
    write(shop)
    assert run(shop, tmp_path, *formatted, *before) == ""
    shop.execute("INSERT INTO audit VALUES (2); INSERT INTO orders VALUES (2)")
    differs = f"{name} differs from the last run's: from here on, other changes are written"
    assert run(shop, tmp_path, *formatted, *later) == f"pgcdc: warning: {differs}\n"
    shop.execute("INSERT INTO audit VALUES (3); INSERT INTO orders VALUES (3)")
    assert run(shop, tmp_path, *formatted, *reversed_pairs(later)) == ""
    assert ids(tmp_path, form) == {"orders": [1, 2, 3], "audit": [2, 3]}


def reversed_pairs(options: tuple[str, ...]) -> list[str]:
    """Options with a value each, in the other order, which means the same."""
    pairs = [options[at : at + 2] for at in range(0, len(options), 2)]
    return [word for pair in reversed(pairs) for word in pair]


def ids(out, form: str) -> dict[str, list[int]]:
    """The rows' ids by table, without rows of other tables."""
    if form != "wal2json":
        return {name: [row.after["id"] for row in row_changes(out, f"public.{name}")] for name in TWO}
    rows = [row for line in contents(out)[None] if (row := json.loads(line)).get("table") in TWO]
    return {name: [row["columns"][0]["value"] for row in rows if row["table"] == name] for name in TWO}


TWO = ("orders", "audit")


def test_other_columns_need_another_directory(shop, tmp_path):
    write(shop)
    run(shop, tmp_path, "--exclude-column", "*.*.note", "--exclude-column", "*.*.what")
    run(shop, tmp_path, "--exclude-column", "*.*.what", "--exclude-column", "*.*.note")
    other = ("--exclude-column", "*.*.what", "--exclude-table", "*.audit")
    ran = stream(shop.uri, shop.slot, "-D", str(tmp_path), *NOW, *other)
    assert (ran.returncode, "its exclude_column is" in ran.stderr) == (2, True)


@pytest.mark.parametrize("option", ["--table", "--exclude-table", "--exclude-column"])
def test_raw_output_can_leave_out_nothing(option):
    pattern = "a.b.c" if option == "--exclude-column" else "a.b"
    ran = stream("", "s", "--publication", "pub", "--format", "raw", option, pattern)
    assert ran.returncode == 2
    assert "raw output has all that is sent" in ran.stderr


def test_rows_that_come_one_by_one_are_filtered_too(shop, tmp_path, follow):
    """The second rows are decoded by themselves, since their tables are known by then."""
    path = tmp_path / "out.jsonl"
    options = ("--exclude-table", "*.audit", "--exclude-column", "*.*.customer", "-F", "0.1s")
    following = follow(shop.uri, shop.slot, path, *options)
    for number in (1, 2):
        shop.execute(f"INSERT INTO audit VALUES (1); INSERT INTO orders VALUES ({number}, 'c', 'n')")
        wait_until(lambda: path.exists() and path.read_text().count("\n") == number)  # noqa: B023 - at once
    assert following.stop()[0] == 0
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["new"], line["seq"]) for line in found] == [({"id": n, "note": "n"}, 1) for n in (1, 2)]
