import subprocess
import uuid
from dataclasses import replace
from functools import partial

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from servers import Database

from pgcdc_cli.catalog import Catalog
from pgcdc_cli.changes.selection import every_table
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import ReplicationConnection


def test_a_slot_is_shown_as_the_server_has_it(database, catalog):
    name = database.create_slot()
    slot = catalog.slot(name)
    row = database.execute(
        "SELECT restart_lsn::text, confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
        (name,),
    ).fetchone()
    assert (str(slot.restart_lsn), str(slot.confirmed_flush_lsn)) == row
    assert (slot.name, slot.plugin, slot.database, slot.temporary) == (name, "pgoutput", database.name, False)
    assert (slot.active_pid, slot.two_phase, slot.invalidation_reason) == (None, False, None)
    assert slot.wal_status == "reserved"
    assert slot.failover == slot.synced == (False if database.server.version >= 17 else None)


def test_lag_and_retained_bytes_grow_with_the_log(database, catalog):
    name = database.create_slot()
    before = catalog.slot(name)
    database.execute("CREATE TABLE t AS SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
    after = catalog.slot(name)
    assert after.lag_bytes - before.lag_bytes > 1_000_000
    assert after.retained_bytes - after.lag_bytes == after.confirmed_flush_lsn - after.restart_lsn > 0
    assert isinstance(after.lag_bytes, int)


def test_how_much_may_be_written_before_wal_is_lost_is_the_server_s_word(own_server):
    database = Database(own_server(18, {"max_slot_wal_keep_size": "64MB"}))
    with Catalog(database.uri) as catalog:
        slot = catalog.slot(database.create_slot())
        assert 32 << 20 < slot.safe_wal_bytes <= 96 << 20
    database.connection.close()


def test_the_end_of_the_wal_is_what_is_inserted_even_if_not_written_yet(database, catalog):
    """So what is committed with synchronous_commit off is before it."""
    database.execute("SET synchronous_commit = off; CREATE TABLE t (id int)")
    [inserted] = database.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert catalog.log_end() >= Lsn.parse(inserted)


def test_why_a_slot_is_lost_is_the_reason_that_the_server_gives_or_what_follows_from_its_state(
    database, catalog
):
    """PostgreSQL 16 gives none, and calls a slot that lost its WAL conflicting, too."""
    alive = replace(catalog.slot(database.create_slot()), conflicting=None, invalidation_reason=None)
    lost = replace(alive, wal_status="lost")
    conflicts = replace(lost, conflicting=True)
    assert [alive.lost, lost.lost] == [None, "wal_removed"]
    assert [conflicts.lost, replace(conflicts, restart_lsn=None).lost] == ["conflicting", "wal_removed"]
    for slot in (alive, lost, conflicts):
        assert replace(slot, invalidation_reason="idle_timeout").lost == "idle_timeout"


def test_a_slot_in_use_names_the_process(database, catalog):
    name = database.create_slot()
    with ReplicationConnection(database.uri) as connection:
        connection.start(name, Lsn(0), {"proto_version": "1", "publication_names": '"p"'}.items())
        assert catalog.slot(name).active_pid > 0


def test_all_slots_are_listed_physical_ones_and_other_databases_included(database):
    logical, physical = database.create_slot(), f"physical_{uuid.uuid4().hex[:8]}"
    database.execute("SELECT pg_create_physical_replication_slot(%s)", (physical,))
    try:
        with Catalog(database.server.uri()) as elsewhere:
            slots = {slot.name: slot for slot in elsewhere.slots()}
    finally:
        database.execute("SELECT pg_drop_replication_slot(%s)", (physical,))
    assert slots[logical].database == database.name
    assert (slots[physical].database, slots[physical].plugin, slots[physical].restart_lsn) == (
        None,
        None,
        None,
    )
    assert list(slots) == sorted(slots)


def test_no_such_slot_is_none(catalog):
    assert catalog.slot("nix") is None


def test_an_origin_has_a_number(database, catalog):
    name = f"é west {database.name}"
    assert catalog.origin_number(name) is None
    [(number,)] = database.execute("SELECT pg_replication_origin_create(%s)", (name,))
    try:
        assert catalog.origin_number(name) == number
    finally:
        database.execute("SELECT pg_replication_origin_drop(%s)", (name,))


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_transaction_has_ended_if_the_server_says_so_or_no_longer_knows_it(own_server, epoch):
    """Messages have 32-bit IDs, which come again in each epoch. One that is yet to come has not ended."""
    server = own_server(18, {"autovacuum": "off"})
    if epoch:
        server.pg_ctl("stop", "-m", "fast")
        reset = [server.bin / "pg_resetwal", "-e", "1", "-D", server.data]
        subprocess.run(reset, check=True, capture_output=True, user=server.data.owner())
        server.pg_ctl("restart")
    ids = []
    with psycopg.connect(server.uri(), autocommit=True) as session:
        for end in ("PREPARE TRANSACTION 'kept'", "COMMIT", "ROLLBACK"):
            session.execute("BEGIN")
            ids += session.execute("SELECT mod(txid_current(), 1::bigint << 32)").fetchone()
            session.execute(end)
    _, committed, undone = ids
    older = 2**32 - 5
    with Catalog(server.uri()) as catalog:
        ended = catalog.ended_transactions([*ids, undone + 1, undone + 1000, older])
    assert ended == [committed, undone, older][: 2 + epoch]


def test_only_what_may_not_wait_has_a_lock_timeout(catalog):
    assert catalog.published([]) == []
    assert catalog._session.ask("SHOW lock_timeout", {}, "look at it") == [("0",)]


def test_facts_are_those_a_stream_depends_on(database, catalog):
    facts = catalog.facts()
    assert facts.version // 10000 == database.server.version
    assert (facts.database, facts.wal_level, facts.wal_sender_timeout) == (database.name, "logical", 60.0)
    assert (facts.in_recovery, facts.may_replicate) == (False, True)
    catalog.check_wal_level()


def test_a_superuser_may_replicate_without_the_attribute(database):
    role = f"boss_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN SUPERUSER NOREPLICATION")
    with Catalog(make_conninfo(database.uri, user=role)) as catalog:
        assert catalog.facts().may_replicate
    database.execute(f"DROP ROLE {role}")


def test_a_wal_level_below_logical_is_a_usage_error(own_server):
    server = own_server(18, {"wal_level": "replica"})
    with Catalog(server.uri()) as catalog, pytest.raises(PgcdcError, match="wal_level is replica") as caught:
        catalog.check_wal_level()
    assert caught.value.kind is ErrorKind.USAGE
    assert "wal_level = logical" in caught.value.hint


def test_a_lost_connection_is_opened_anew(database, catalog):
    def sessions():
        # The server's own processes, such as autovacuum's, have a database, too.
        query = (
            "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        return database.execute(query, (database.name,)).fetchall()

    catalog.slots()
    [(pid,)] = sessions()
    database.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    assert catalog.slot("nix") is None
    [(another,)] = sessions()
    assert another != pid


def test_nothing_is_opened_before_it_is_needed_and_close_may_come_twice():
    catalog = Catalog("host=/nowhere")
    catalog.close()
    with pytest.raises(PgcdcError) as caught:
        catalog.slots()
    assert caught.value.kind is ErrorKind.CONNECTION
    catalog.close()


def test_a_plain_role_may_read_all_of_it(database):
    with psycopg.connect(database.server.uri(), autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS catalog_reader")
        admin.execute("CREATE ROLE catalog_reader LOGIN")
    try:
        with Catalog(database.server.uri(database.name, "catalog_reader")) as catalog:
            assert catalog.slots() is not None
            assert catalog.publications() == []
            assert not catalog.facts().may_replicate
    finally:
        with psycopg.connect(database.server.uri(), autocommit=True) as admin:
            admin.execute("DROP ROLE catalog_reader")


def test_a_walsender_is_asked_only_what_opens_no_table(database):
    """It would decode what comes before an ALTER TABLE with the columns that it has seen by then."""
    database.execute("CREATE TABLE t (id int); CREATE PUBLICATION pub FOR TABLE t")
    slot = database.create_slot()
    [(oid,)] = database.execute("SELECT 't'::regclass::oid").fetchall()
    role = f"one_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION CONNECTION LIMIT 0")
    conninfo = make_conninfo(database.uri, user=role)
    others = (
        partial(Catalog.tables, includes=every_table),
        Catalog.log_end,
        Catalog.publications,
        partial(Catalog.publication, name="pub"),
        partial(Catalog.published, names=["pub"]),
        partial(Catalog.diagnose, slot=None, publications=[]),
        partial(Catalog.streaming_grants, role=role, publications=["pub"]),
        partial(Catalog.origin_number, name="none"),
        partial(Catalog.drop_publication, name="pub"),
    )
    try:
        with ReplicationConnection(conninfo) as connection, Catalog(conninfo) as catalog:
            with catalog.over(connection.own_session):
                assert catalog.slot(slot).name == slot
                assert catalog.other_slots(slot, "") == f'did you mean "{slot}"; or '
                catalog.check_publications(["pub"], for_slot=True)
                catalog.check_wal_level()
                assert list(catalog.table_names([oid]).values()) == [("public", "t")]
                for asks in others:
                    with pytest.raises(PgcdcError, match="too many connections"):
                        asks(catalog)
            # From then on it streams.
            with pytest.raises(PgcdcError, match="too many connections"):
                catalog.slots()
    finally:
        database.execute(f"DROP ROLE {role}")
