"""Everything that a server may refuse, and ways to lose it while streaming."""

import logging
import resource
import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.lsn import Lsn
from pgcdc_cli.replication.connection import ReplicationConnection
from pgcdc_cli.replication.failures import connect_failure
from pgcdc_cli.replication.session import connect

WALSENDERS = 8
"""More than the walsenders of earlier tests that may not have ended yet."""

OPTIONS = {"proto_version": "1", "publication_names": '"p"'}


@pytest.fixture(scope="module")
def strict_server(own_server):
    """A server with wal_level replica and few walsenders; `pw` needs a password, `banned` is rejected."""
    hba = "local all pw scram-sha-256\nlocal all banned reject\n"
    server = own_server(
        18, {"wal_level": "replica", "max_wal_senders": str(WALSENDERS), "max_replication_slots": "2"}, hba
    )
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute("SET password_encryption = 'scram-sha-256'")
        admin.execute("CREATE ROLE pw LOGIN REPLICATION PASSWORD 'right'")
        admin.execute("CREATE ROLE banned LOGIN REPLICATION")
        admin.execute("CREATE ROLE plain LOGIN")
        admin.execute("CREATE ROLE nologin REPLICATION")
    return server


def refused(conninfo, *, replication=True) -> PgcdcError:
    with pytest.raises(PgcdcError, match="could not connect to the server: ") as caught:
        connect(conninfo, replication=replication)
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("replication", [True, False])
def test_a_wrong_password_is_an_authentication_error_that_does_not_show_it(strict_server, replication):
    error = refused(make_conninfo(strict_server.uri(user="pw"), password="wr0ng"), replication=replication)
    assert error.kind is ErrorKind.AUTHENTICATION
    assert "wr0ng" not in error.message


def test_a_missing_password_is_an_authentication_error(strict_server, monkeypatch):
    monkeypatch.setenv("PGPASSFILE", "/dev/null")
    assert refused(strict_server.uri(user="pw")).kind is ErrorKind.AUTHENTICATION


def test_the_right_password_is_taken_from_the_environment(strict_server, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "right")
    with ReplicationConnection(strict_server.uri(user="pw")) as connection:
        assert connection.identify_system().timeline == 1


@pytest.mark.parametrize("user", ["banned", "nologin", "nobody"])
def test_a_role_that_may_not_come_in_is_an_authentication_error(strict_server, user):
    assert refused(strict_server.uri(user=user)).kind is ErrorKind.AUTHENTICATION


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"require_auth": "md5"}, 'authentication method requirement "md5" failed'),
        ({"channel_binding": "require"}, "channel binding required"),
    ],
)
def test_a_way_to_authenticate_that_is_not_the_one_required(strict_server, given, reason):
    """The password may well be right."""
    error = refused(make_conninfo(strict_server.uri(user="pw"), password="right", **given))
    assert reason in error.message
    assert error.kind is ErrorKind.AUTHENTICATION
    assert error.hint.startswith("check require_auth and channel_binding")


def test_a_pooler_that_lets_no_replication_through_is_named():
    """PgBouncer before 1.23."""
    fields = b"SFATAL\0C08P01\0Munsupported startup parameter: replication\0\0"
    with socket.create_server(("127.0.0.1", 0)) as pooler:

        def answer() -> None:
            client, _ = pooler.accept()
            with client:
                client.recv(1000)
                client.sendall(b"E" + (4 + len(fields)).to_bytes(4, "big") + fields)

        thread = threading.Thread(target=answer)
        thread.start()
        error = refused(f"host=127.0.0.1 port={pooler.getsockname()[1]} user=u sslmode=disable")
        thread.join()
    assert error.kind is ErrorKind.USAGE
    assert error.hint.startswith("this is a connection pooler: connect to the server itself")


def test_a_user_without_a_name_is_asked_for_a_role():
    """As in a container that runs as a number."""
    said = psycopg.OperationalError("connection failed: local user with ID 10001 does not exist")
    error = connect_failure("dbname=shop", said)
    assert (error.kind, error.hint[:13]) == (ErrorKind.USAGE, "name the role")


def test_a_role_without_replication_lacks_rights(strict_server):
    error = refused(strict_server.uri(user="plain"))
    assert error.kind is ErrorKind.RIGHTS
    assert "REPLICATION" in error.hint


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PGOPTIONS", "-c nothing=1"),
        ("PGOPTIONS", "-c work_mem=much"),
        ("PGOPTIONS", "-c max_connections=5"),
        ("PGOPTIONS", "-c geqo=maybe"),
        ("PGOPTIONS", "-c work_mem"),
        ("PGOPTIONS", "work_mem=4MB"),
        ("PGDATESTYLE", "none"),
        ("PGPORT", "abc"),
        ("PGSSLMODE", "none"),
        ("PGSERVICE", "none"),
    ],
)
def test_a_setting_of_the_environment_that_does_not_fit_is_a_usage_error(
    server18, monkeypatch, variable, value
):
    uri = server18.uri()
    monkeypatch.setenv(variable, value)
    with pytest.raises(PgcdcError) as caught:
        connect(uri)
    assert caught.value.kind is ErrorKind.USAGE
    assert "PG* variables" in caught.value.hint


def test_a_refusal_in_another_language_is_no_reason_to_try_again(strict_server, monkeypatch):
    monkeypatch.setattr("pgcdc_cli.replication.failures._REFUSED", ())
    conninfo = make_conninfo(strict_server.uri(user="pw"), password="wrong")
    assert refused(conninfo).kind is ErrorKind.AUTHENTICATION
    assert refused("host=/nowhere user=u").kind is ErrorKind.CONNECTION


@pytest.mark.parametrize("wanted", ["read-write", "standby"])
def test_a_host_that_is_not_what_is_wanted_is_worth_another_try(database18, wanted):
    """In a failover there is none for a while: the old primary is a standby, and no other there yet."""
    database18.execute(f"ALTER DATABASE {database18.name} SET default_transaction_read_only = on")
    error = refused(make_conninfo(database18.uri, target_session_attrs=wanted))
    assert error.kind is ErrorKind.CONNECTION
    assert "target_session_attrs" in error.hint


def test_several_hosts_are_each_named_once_in_a_line():
    error = refused("host=127.0.0.1,/nowhere,127.0.0.1 port=1 user=u dbname=d")
    assert error.kind is ErrorKind.CONNECTION
    assert error.message == (
        'could not connect to the server: "127.0.0.1", port 1: Connection refused;'
        ' "/nowhere", port 1: No such file or directory'
    )


@pytest.mark.parametrize(
    ("hosts", "others"),
    [
        (
            "unknown.invalid,127.0.0.1",
            'connection to server at "127.0.0.1", port 1 failed: Connection refused',
        ),
        (
            "/nowhere,unknown.invalid,127.0.0.1",
            '"/nowhere", port 1: No such file or directory; "127.0.0.1", ',
        ),
        ("unknown.invalid,unknown.invalid,other.invalid", "failed to resolve host 'other.invalid': "),
    ],
)
def test_a_host_whose_name_could_not_be_resolved_is_named_too(hosts, others):
    error = refused(f"host={hosts} port=1 user=u dbname=d")
    assert error.kind is ErrorKind.CONNECTION
    unknown = '"unknown.invalid": its name could not be resolved; '
    assert error.message.startswith(f"could not connect to the server: {unknown}{others}")


def test_a_host_of_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("PGHOST", "unknown.invalid")
    error = refused("port=1 user=u dbname=d")
    assert error.message.startswith(
        "could not connect to the server: failed to resolve host 'unknown.invalid': "
    )


def test_an_address_stands_for_a_host_without_a_name():
    error = refused("hostaddr=127.0.0.1,127.0.0.2 port=1 user=u dbname=d")
    reasons = (f'"127.0.0.{n}", port 1: Connection refused' for n in (1, 2))
    assert error.message == f"could not connect to the server: {'; '.join(reasons)}"


def test_what_the_last_of_several_hosts_says_is_not_lost(strict_server):
    error = refused(f"host=/nowhere,{strict_server.socket_directory} user=nobody dbname=postgres")
    reason = f'"{strict_server.socket_directory}": FATAL:  role "nobody" does not exist'
    assert (
        error.message == f'could not connect to the server: "/nowhere": No such file or directory; {reason}'
    )


def attempt(connections, uri):
    """Connect, or return the error."""
    try:
        connections.enter_context(ReplicationConnection(uri))
    except PgcdcError as error:
        return error


def test_too_many_walsenders_is_worth_another_try(strict_server):
    uri = strict_server.uri()
    with ExitStack() as connections:
        attempts = (attempt(connections, uri) for _ in range(WALSENDERS + 1))
        error = next(filter(None, attempts))
    assert error.kind is ErrorKind.CONNECTION
    assert "max_wal_senders" in error.hint


def test_a_wal_level_below_logical_says_how_to_raise_it(strict_server):
    with (
        ReplicationConnection(strict_server.uri()) as connection,
        pytest.raises(PgcdcError, match="wal_level") as caught,
    ):
        connection.create_slot("s")
    assert caught.value.kind is ErrorKind.USAGE
    assert "wal_level = logical" in caught.value.hint


def start_failure(uri, slot, options=OPTIONS) -> PgcdcError:
    with ReplicationConnection(uri) as connection, pytest.raises(PgcdcError) as caught:
        connection.start(slot, Lsn(0), options.items())
    return caught.value


def test_no_such_slot(database):
    error = start_failure(database.uri, "nix")
    assert error.kind is ErrorKind.SLOT_MISSING
    assert error.message == (
        'could not start streaming from slot "nix": replication slot "nix" does not exist'
    )


def test_a_slot_in_use(database, table, stream):
    stream(database.uri, table).start()
    error = start_failure(database.uri, table)
    assert error.kind is ErrorKind.SLOT_ACTIVE
    assert error.kind.rule.transient


def test_a_slot_of_another_database_names_it(database, table):
    error = start_failure(database.server.uri(), table)
    assert error.kind is ErrorKind.USAGE
    assert f'"{database.name}"' in error.hint


def test_a_physical_slot(database):
    database.execute("SELECT pg_create_physical_replication_slot('physical')")
    try:
        error = start_failure(database.uri, "physical")
    finally:
        database.execute("SELECT pg_drop_replication_slot('physical')")
    assert (error.kind, error.hint) == (ErrorKind.USAGE, "pgcdc reads logical slots")


@pytest.mark.parametrize(
    "options",
    [
        {"proto_version": "99"},
        {"nonsense": "1"},
        {"proto_version": "1"},
        {"proto_version": "one"},
        {"proto_version": "1", "publication_names": '"'},
    ],
)
def test_options_that_the_plugin_does_not_take(database, table, options):
    error = start_failure(database.uri, table, options)
    assert error.kind is ErrorKind.USAGE
    assert error.hint.startswith("check the plugin's options, which -o NAME=VALUE gives")


@pytest.mark.parametrize("version", [16, 18])
def test_an_invalidated_slot(own_server, version):
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    server = own_server(version, settings)
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute("SELECT pg_create_logical_replication_slot('lost', 'pgoutput')")
        admin.execute("CREATE TABLE filler (v text)")
        for _ in range(4):
            admin.execute("INSERT INTO filler SELECT repeat('x', 1000) FROM generate_series(1, 17000)")
            admin.execute("SELECT pg_switch_wal()")
            admin.execute("CHECKPOINT")
    error = start_failure(server.uri(), "lost")
    assert error.kind is ErrorKind.SLOT_INVALIDATED
    assert not error.kind.rule.transient


def test_a_missing_publication_stops_the_stream_before_anything_is_confirmed(database, table, stream):
    database.execute("INSERT INTO t VALUES (1)")
    before = database.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots").fetchall()
    one = stream(database.uri, table, publication="nix").start()
    with pytest.raises(PgcdcError, match='"nix"') as caught:
        one.read(commits=1)
    assert caught.value.kind is ErrorKind.PUBLICATION
    assert "advance it" in caught.value.hint
    assert one.frames == []
    if database.server.version >= 18:
        one.stream.finish()
    one.connection.close()
    assert database.execute("SELECT confirmed_flush_lsn FROM pg_replication_slots").fetchall() == before
    assert stream(database.uri, table).start().read(commits=1).tags == "BRIC"


def test_a_publication_made_after_the_slot_stops_the_stream_too(database, stream):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    slot = database.create_slot()
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("CREATE PUBLICATION late FOR TABLE t")
    database.execute("INSERT INTO t VALUES (2)")
    one = stream(database.uri, slot, publication="late").start()
    with pytest.raises(PgcdcError, match='"late"') as caught:
        one.read(commits=1)
    assert caught.value.kind is ErrorKind.PUBLICATION
    assert one.frames == []


def test_a_publication_whose_name_is_not_ascii_is_missed_in_an_sql_ascii_database_too(encoded, stream):
    database = encoded("SQL_ASCII")
    slot = database.create_slot()
    database.send(b"INSERT INTO t VALUES (1)")
    database.send("CREATE PUBLICATION café FOR TABLE t".encode())
    end = database.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()[0]
    one = stream(database.uri, slot, publication="café")
    one.stream = one.connection.start(slot, Lsn(0), one.options.items(), client_encoding="SQL_ASCII")
    with pytest.raises(PgcdcError, match='"café"') as caught:
        one.read_to(end)
    assert caught.value.kind is ErrorKind.PUBLICATION


def test_after_advancing_beyond_the_creation_of_the_publication_the_stream_goes_on(database, stream):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    slot = database.create_slot()
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("CREATE PUBLICATION late FOR TABLE t")
    database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,))
    database.execute("INSERT INTO t VALUES (2)")
    assert stream(database.uri, slot, publication="late").start().read(commits=1).tags == "BRIC"


def test_one_missing_publication_of_two_stops_the_stream(database, table, stream):
    database.execute("INSERT INTO t VALUES (1)")
    one = stream(database.uri, table)
    one.options["publication_names"] = '"p","nix"'
    one.start()
    with pytest.raises(PgcdcError, match='"nix"') as caught:
        one.read(commits=1)
    assert caught.value.kind is ErrorKind.PUBLICATION


def test_a_row_filter_that_fails_makes_the_publication_unfit(database, stream):
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE t WHERE (1 / id > 0)")
    slot = database.create_slot()
    database.execute("INSERT INTO t VALUES (0)")
    with pytest.raises(PgcdcError, match="division by zero") as caught:
        stream(database.uri, slot).start().read(commits=1)
    assert caught.value.kind is ErrorKind.PUBLICATION
    assert "row filter" in caught.value.hint


def test_a_server_without_memory_is_worth_another_try(database, stream):
    """Sessions that end free memory, and also the disk to which large transactions are spilled."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    slot = database.create_slot()
    database.execute("INSERT INTO t VALUES (1, 'small')")
    one = stream(database.uri, slot).start()
    one.read(commits=1)
    sender = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"
    [pid] = database.execute(sender, (slot,)).fetchone()
    taken = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    # Only the server's own user may do this.
    limit = f"prlimit --pid={pid} --as={taken + (16 << 20)}: && cat >/dev/null"
    database.execute(f"COPY (SELECT) TO PROGRAM '{limit}'")
    database.execute("INSERT INTO t VALUES (2, repeat('large', 20000000))")
    with pytest.raises(PgcdcError, match=f'could not receive from slot "{slot}": out of memory') as caught:
        one.read(commits=2)
    assert caught.value.kind is ErrorKind.CONNECTION
    assert caught.value.hint == (
        "give the server more memory, or let pgcdc spool the transactions: --streaming on"
    )


def test_a_terminated_walsender_is_worth_another_try(database, table, stream):
    database.execute("INSERT INTO t VALUES (1)")
    one = stream(database.uri, table).start().read(commits=1)
    database.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (table,)
    )
    with pytest.raises(PgcdcError, match=f'could not receive from slot "{table}": terminating') as caught:
        one.read(commits=2)
    assert caught.value.kind is ErrorKind.NOT_READY
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("mode", ["fast", "immediate"])
@pytest.mark.parametrize("version", [16, 18])
def test_a_server_restart_is_worth_another_try(own_server, stream, version, mode):
    server = own_server(version)
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY)")
        admin.execute("CREATE PUBLICATION p FOR TABLE t")
        admin.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        admin.execute("INSERT INTO t VALUES (1)")
    one = stream(server.uri(), "s").start().read(commits=1)
    end = Lsn(one.commit_ends[0])
    one.stream.confirm(end, Lsn(0))
    stopping = restart_in_background(server, mode)
    with pytest.raises(PgcdcError) as caught:
        confirm_all(one.stream)
    assert caught.value.kind in {ErrorKind.CONNECTION, ErrorKind.NOT_READY}
    stopping.join()
    again = stream(server.uri(), "s").start()
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute("INSERT INTO t VALUES (2)")
    again.read(commits=1)
    assert again.tags.startswith("BRIC"), "an immediate stop may have forgotten what was confirmed"


def confirm_all(stream) -> None:
    """Confirm as a sink that makes everything durable at once; else the server would not shut down."""
    while True:
        received = stream.receive(8192, 0.2)
        if received.keepalive is not None:
            stream.confirm(received.keepalive.wal_end, received.keepalive.wal_end)


def restart_in_background(server, mode):
    thread = threading.Thread(target=server.pg_ctl, args=("restart", "-m", mode))
    thread.start()
    return thread


def test_a_server_that_is_down_is_worth_another_try(own_server):
    server = own_server(18)
    server.pg_ctl("stop", "-m", "fast")
    assert refused(f"host={server.data} user=postgres").kind is ErrorKind.CONNECTION
    server.pg_ctl("restart")


def test_warnings_are_logged_once(database, caplog):
    database.execute(
        "CREATE FUNCTION loud(int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE WARNING 'careful'; RETURN true; END $$"
    )
    with caplog.at_level(logging.WARNING, "pgcdc"), ReplicationConnection(database.uri) as connection:
        for _ in range(3):
            connection.own_session.execute("SELECT public.loud(1)")
    assert [r.getMessage() for r in caplog.records] == ["server: careful"]
