"""What the doctor finds in the server's settings and in the role's rights is fixed by what it prints."""

import psycopg
import pytest
from debian_server import DebianServer
from doctor_findings import KEY, finding_of, findings, mend, problems, publish
from processes import wait_until
from servers import Database, new_slot_name, remove
from standbys import replayed, standby

from pgcdc_cli.catalog import Catalog
from pgcdc_cli.catalog.doctor.finding import Setting


def test_what_is_in_order_has_no_problem(database):
    publish(database, "CREATE TABLE orders (id int PRIMARY KEY, total numeric)")
    slot = database.create_slot()
    assert problems(database, "p", slot=slot) == []
    said = [one.message for one in findings(database, "p", slot=slot)]
    assert 'publication "p" has 1 table' in said
    assert "wal_level is logical" in said
    assert said[0].startswith(f"PostgreSQL {database.server.version}.")
    assert said[0].endswith(f', a primary, database "{database.name}"')


def test_a_wal_level_that_is_too_low(own_database):
    database = own_database(wal_level="replica")
    mend(database, "wal-level", restart=True)


def test_neither_walsenders_nor_slots_are_left(own_database):
    database = own_database(max_wal_senders="0", max_replication_slots="1")
    slot = database.create_slot()
    assert ("free-slots", "error", None) in problems(database)
    assert ("free-slots", "warning", None) in problems(database, slot=slot)
    database.connection.close()
    mend(database, "free-slots", restart=True)
    mend(database, "free-wal-senders", restart=True)


def test_a_role_without_replication(database, role):
    mend(database, "replication-right", user=role)


@pytest.mark.parametrize(
    ("only_there", "change"),
    [
        ("rds.logical_replication", "rds.logical_replication = 1 in the parameter group"),
        ("cloudsql.logical_decoding", "cloudsql.logical_decoding = on in the flags"),
        ("azure.extensions", "wal_level = logical in the server parameters"),
    ],
)
def test_a_managed_service_has_its_own_place_for_settings(own_database, only_there, change):
    """Nobody may run ALTER SYSTEM there."""
    database = own_database(**{only_there: "", "wal_level": "replica", "max_replication_slots": "0"})
    found = {one.check: one for one in findings(database)}
    assert found["wal-level"].statements == found["free-slots"].statements == ()
    assert found["wal-level"].advice.startswith(f"set {change} (")
    assert found["wal-level"].advice.endswith("), and restart the server")
    assert found["free-slots"].advice.startswith("set max_replication_slots = 5 in ")
    assert found["free-slots"].advice.endswith("; or drop a slot that is not in use: pgcdc slot list")


def test_where_a_role_stands_for_the_attribute_its_members_may_replicate(own_database):
    database = own_database()
    database.execute("CREATE ROLE rds_replication; CREATE ROLE reader LOGIN")
    finding = mend(database, "replication-right", user="reader")
    assert finding.statements == ('GRANT "rds_replication" TO "reader";',)
    with Catalog(database.uri) as catalog:
        given = catalog.streaming_grants("later", [])
    assert given[:2] == ['CREATE ROLE "later" LOGIN;', 'GRANT "rds_replication" TO "later";']


@pytest.fixture
def set_for_role(database):
    """A function that sets something where it counts most: for the role in this database."""
    target = f"ALTER ROLE postgres IN DATABASE {database.name}"
    yield lambda name, value: database.execute(f"{target} SET {name} = '{value}'")
    database.execute(f"{target} RESET ALL")


@pytest.mark.parametrize(
    ("value", "why"),
    [("0", "the server never notices that a reader is gone"), ("2s", "the server ends healthy connections")],
)
def test_a_timeout_of_walsenders_that_is_too_low_or_none(database, set_for_role, value, why):
    set_for_role("wal_sender_timeout", value)
    assert why in mend(database, "wal-sender-timeout").message


def test_timeouts_of_sessions_are_no_problem_and_it_says_so(database):
    names = [
        "statement_timeout",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "idle_session_timeout",
    ]
    if database.server.version >= 17:
        names.append("transaction_timeout")
    for name in names:
        database.execute(f"ALTER DATABASE {database.name} SET {name} = '50s'")
    said = finding_of(database, "session-timeouts")
    shown = ", ".join(f"{name} (50000 ms)" for name in names)
    assert (said.level, said.message) == ("ok", f"{shown}: no effect on pgcdc, whose sessions set it to 0")


def test_little_memory_to_decode(database, set_for_role):
    set_for_role("logical_decoding_work_mem", "64kB")
    mend(database, "logical-decoding-work-mem")


def test_tables_that_the_role_may_not_read(database, role):
    publish(database, "CREATE SCHEMA s", f"CREATE TABLE s.t ({KEY}, a int)", objects="FOR TABLE s.t (id)")
    database.execute(f"ALTER ROLE {role} REPLICATION")
    mend(database, "select-right", "p", user=role)
    database.execute(f"REVOKE SELECT ON s.t FROM {role}")
    database.execute(f"GRANT SELECT (id) ON s.t TO {role}")
    assert problems(database, "p", user=role) == []
    database.execute("ALTER PUBLICATION p SET TABLE s.t")
    assert problems(database, "p", user=role) == [("select-right", "warning", "s.t")]
    database.execute("ALTER PUBLICATION p SET TABLE s.t (id)")
    database.execute(f"REVOKE USAGE ON SCHEMA s FROM {role}")
    assert problems(database, "p", user=role) == [("select-right", "warning", "s.t")]


def test_a_role_needs_to_read_a_partitioned_table_and_not_its_partitions(database, role):
    publish(
        database,
        f"CREATE TABLE t ({KEY}) PARTITION BY RANGE (id); CREATE TABLE t_1 PARTITION OF t DEFAULT",
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (1) TO (2)",
        objects="FOR TABLE t WITH (publish_via_partition_root)",
    )
    assert mend(database, "select-right", "p", user=role).subject == "public.t"


def test_a_table_without_columns_is_read_by_a_role_that_may(database, role):
    publish(database, "CREATE SCHEMA s", "CREATE TABLE s.t ()", objects="FOR TABLE s.t")
    database.execute(f"GRANT USAGE ON SCHEMA s TO {role}")
    assert ("select-right", "warning", "s.t") in problems(database, "p", user=role)
    database.execute(f"GRANT SELECT ON s.t TO {role}")
    assert "select-right" not in str(problems(database, "p", user=role))


def test_what_the_role_may_not_see_is_said(database, role):
    database.execute("REVOKE EXECUTE ON FUNCTION pg_current_wal_lsn() FROM PUBLIC")
    assert ("not-seen", "warning", "slot-lost") in problems(database, user=role)


def test_a_standby(own_database):
    database = own_database()
    primary = database.server
    follower = standby(primary)
    try:
        slot, copy = database.create_slot(), new_slot_name()
        assert ("slot-failover", "warning", slot) not in problems(database, slot=slot)
        database.execute("SELECT pg_create_physical_replication_slot(%s)", (copy,))
        assert ("slot-failover", "warning", slot) in problems(database, slot=slot)
        replayed(follower, primary)
        database.server, database.uri = follower, follower.uri(database.name)
        found = problems(database)
        assert ("hot-standby-feedback", "warning", None) in found
        assert ("primary-slot-name", "warning", None) in found
        said = {one.check: one for one in findings(database)}
        assert said["server-version"].message.endswith(f', a standby, database "{database.name}"')
        assert said["wal-level"].message.startswith("wal_level is logical; the primary's must be, too")
        mend(database, "hot-standby-feedback")
        _, advised = said["primary-slot-name"].advice.replace("NAME", copy).split("then here: ")
        with psycopg.connect(database.uri, autocommit=True) as connection:
            for statement in advised.removesuffix(";").split(";"):
                connection.execute(statement)
        wait_until(lambda: "primary-slot-name" not in str(problems(database)))
    finally:
        remove(follower)


@pytest.mark.skipif(DebianServer.missing() is not None, reason=DebianServer.missing() or "")
def test_postgresql_15():
    server = DebianServer()
    try:
        database = Database(server)
        publish(database, f"CREATE TABLE t ({KEY}, a int)", objects="FOR TABLE t WHERE (a > 1)")
        slot = database.create_slot()
        assert problems(database, "p", slot=slot) == [("row-filter", "error", "public.t")]
        mend(database, "row-filter", "p", slot=slot)
        assert problems(database, "p", slot=slot) == []
        database.connection.close()
        (server.data / "standby.signal").touch()
        server.pg_ctl("restart")
        assert problems(database, "p", slot=slot)[0] == ("standby", "error", None)
        assert "hot-standby-feedback" not in str(findings(database))
    finally:
        server.stop()


def test_a_size_is_shown_as_it_is_set():
    assert [Setting(value, "kB").text for value in ("65536", "64", "0")] == ["64MB", "64 kB", "0 kB"]
    assert [Setting(value, "s").text for value in ("60", "2048")] == ["60 s", "2048 s"]
