"""What the doctor finds in publications is fixed by what it prints."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from doctor_findings import KEY, finding_of, mend, problems, publish
from processes import stream_command, wait_until


def test_a_missing_publication(database):
    created = ('CREATE PUBLICATION "shop_pub" FOR ALL TABLES;',)
    assert mend(database, "publication-missing", "shop_pub").statements == created
    mend(database, "publication-missing", "another", slot=database.create_slot())


def test_a_missing_publication_has_near_names(database):
    database.execute("CREATE PUBLICATION shop_pub")
    finding = finding_of(database, "publication-missing", "shop_pup")
    assert (finding.statements, finding.advice) == ((), 'did you mean "shop_pub"?')


def test_a_missing_publication_and_no_right_to_create_one(database, role):
    finding = finding_of(database, "publication-missing", "q", user=role)
    database.execute(finding.statements[0])
    with psycopg.connect(database.server.uri(database.name, user=role), autocommit=True) as connection:
        connection.execute("CREATE PUBLICATION q")


def test_a_database_without_publications(database):
    assert ("publication-missing", "warning", None) in problems(database)


def test_a_publication_without_tables(database):
    publish(database, "CREATE TABLE orders (id int PRIMARY KEY)", objects="")
    advice = "or one table: pgcdc publication alter p --add-table TABLE"
    assert mend(database, "publication-empty", "p").advice == advice


def test_operations_that_are_left_out(database):
    publish(
        database,
        "CREATE TABLE orders (id int PRIMARY KEY)",
        objects="FOR ALL TABLES WITH (publish = 'insert, delete')",
    )
    finding = mend(database, "operations", "p")
    assert "update, truncate" in finding.message


@pytest.mark.parametrize(
    ("other", "equal"),
    [
        ("FOR TABLE t (id, a)", "ALTER PUBLICATION p SET TABLE t (a, id)"),
        ("FOR ALL TABLES", "ALTER PUBLICATION p SET TABLE t"),
    ],
)
def test_publications_that_send_different_columns(database, other, equal):
    table = f"CREATE TABLE t ({KEY}, a int, b int)"
    publish(database, table, f"CREATE PUBLICATION q {other}", objects="FOR TABLE t (id)")
    assert ("different-columns", "warning", "public.t") in problems(database)
    assert "different-columns" not in str([problems(database, "p"), problems(database, "q")])
    read_both(database, refused=True)
    database.execute(equal)
    assert problems(database, "p", "q") == []
    read_both(database, refused=False)


def test_different_columns_of_a_partitioned_table_are_reported_once(database):
    via_root = "WITH (publish_via_partition_root)"
    publish(
        database,
        f"CREATE TABLE t ({KEY}, a int) PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t DEFAULT; CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (1) TO (2)",
        f"CREATE PUBLICATION q FOR TABLE t {via_root}; CREATE PUBLICATION r FOR TABLE t {via_root}",
        objects=f"FOR TABLE t (id) {via_root}",
    )
    assert problems(database) == [("different-columns", "warning", "public.t")]


def read_both(database, *, refused):
    """Stream an insert with both publications; the doctor reports what the server refuses."""
    slot = database.create_slot()
    database.execute("INSERT INTO t SELECT max(id) + 1 FROM (SELECT id FROM t UNION SELECT 0) every (id)")
    found = ("different-columns", "error", "public.t") in problems(database, "p", "q")
    command = stream_command(database.uri, slot, *("-f", "-", "--endpos", "now"), publications=["p", "q"])
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found, ran.returncode) == (refused, 7 if refused else 0)
    assert ("hint: stream the publications apart" in ran.stderr) == refused


@pytest.mark.parametrize("objects", ["FOR ALL TABLES", "FOR TABLES IN SCHEMA public"])
def test_unlogged_tables(database, objects):
    publish(database, f"CREATE UNLOGGED TABLE t ({KEY})", f"CREATE TABLE u ({KEY})", objects=objects)
    assert mend(database, "unlogged-table", "p").subject == "public.t"


@pytest.mark.parametrize("objects", ["FOR TABLE t", "FOR ALL TABLES", "FOR TABLES IN SCHEMA public"])
def test_partitions_under_their_own_names(database, objects):
    root = f"CREATE TABLE t ({KEY}) PARTITION BY RANGE (id)"
    divided = "CREATE TABLE t_1 PARTITION OF t DEFAULT PARTITION BY RANGE (id)"
    publish(database, root, divided, "CREATE TABLE t_2 PARTITION OF t_1 DEFAULT", objects=objects)
    assert mend(database, "partition-root", "p").subject == "public.t"
    assert problems(database, "p") == []


@pytest.mark.parametrize(
    ("objects", "crashes"),
    [
        ("FOR ALL TABLES WITH (publish_via_partition_root)", True),
        ("FOR ALL TABLES", False),
        ("FOR TABLE t WITH (publish_via_partition_root)", False),
    ],
)
def test_a_partition_that_is_still_being_detached(database, objects, crashes):
    leaf = "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (1) TO (9)"
    publish(database, f"CREATE TABLE t ({KEY}) PARTITION BY RANGE (id)", leaf, objects=objects)
    interrupt_detach(database, "t", "t_1")
    if crashes:
        assert mend(database, "pending-detach", "p").subject == "public.t_1"
    assert "pending-detach" not in [check for check, _, _ in problems(database, "p")]


def interrupt_detach(database, root, leaf):
    """Leave a partition half detached, as a DETACH does that was cancelled while it waited."""
    detach = f"ALTER TABLE {root} DETACH PARTITION {leaf} CONCURRENTLY"
    pending = "SELECT FROM pg_inherits WHERE inhdetachpending"
    with (
        ThreadPoolExecutor(1) as background,
        psycopg.connect(database.uri) as reader,
        psycopg.connect(database.uri, autocommit=True) as detaching,
    ):
        reader.execute(f"SELECT FROM {root}")
        detached = background.submit(detaching.execute, detach)
        wait_until(lambda: database.execute(pending).rowcount)
        database.execute("SELECT pg_cancel_backend(%s)", (detaching.info.backend_pid,))
        with pytest.raises(psycopg.errors.QueryCanceled):
            detached.result()


@pytest.mark.parametrize(
    "objects",
    [
        "FOR TABLE t",
        "FOR TABLE t WITH (publish_via_partition_root)",
        "FOR TABLES IN SCHEMA public",
        "FOR ALL TABLES",
    ],
)
def test_partitions_on_other_servers(database, objects):
    publish(
        database,
        "CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w",
        "CREATE TABLE t (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE here PARTITION OF t (id PRIMARY KEY) FOR VALUES FROM (0) TO (9)",
        "CREATE FOREIGN TABLE there PARTITION OF t FOR VALUES FROM (10) TO (19) SERVER s",
        "CREATE FOREIGN TABLE no_partition (id int) SERVER s",
        objects=objects,
    )
    found = [one for one in problems(database, "p") if one[0] != "partition-root"]
    assert found == [("foreign-partition", "warning", "public.there")]
