import select
from contextlib import suppress

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from pgcdc_cli.errors import ErrorKind, PgcdcError, mask
from pgcdc_cli.replication.failures import kind_of, server_failure
from pgcdc_cli.replication.session import connect


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgresql://u:se%40cret@h:5433/d?x=1", "postgresql://u:***@h:5433/d?x=1"),
        ("postgres://u:p@ss@h/d", "postgres://u:***@h/d"),
        ("postgres://u:p/a?s#s@h/d", "postgres://u:***@h/d"),
        ("postgresql://h:5432/d", "postgresql://h:5432/d"),
        ("postgresql://u@h/d?password=pw&sslmode=require", "postgresql://u@h/d?password=***&sslmode=require"),
        ("host=h password=pw user=u", "host=h password=*** user=u"),
        ("password = 'p w\\'x' user=u", "password = *** user=u"),
        ("user=u sslpassword=k\\ ey", "user=u sslpassword=***"),
        ("oauth_client_secret=x", "oauth_client_secret=***"),
        ("host=h passfile=/f", "host=h passfile=/f"),
        ("d", "d"),
    ],
)
def test_passwords_are_masked_and_nothing_else(text, masked):
    assert mask(text) == masked


@given(st.text("abc'\\ =&?/:@", min_size=1), st.sampled_from(["password", "sslpassword"]))
def test_no_quoted_password_is_left(secret, keyword):
    quoted = secret.replace("\\", "\\\\").replace("'", "\\'")
    assert mask(f"host=h {keyword}='ZQ{quoted}ZQ' user=u") == f"host=h {keyword}=*** user=u"


@pytest.mark.parametrize(
    ("sqlstate", "kind"),
    [
        (None, ErrorKind.CONNECTION),
        ("08006", ErrorKind.CONNECTION),
        ("53000", ErrorKind.CONNECTION),
        ("53100", ErrorKind.CONNECTION),
        ("53200", ErrorKind.CONNECTION),
        ("53300", ErrorKind.CONNECTION),
        ("58030", ErrorKind.CONNECTION),
        ("25P03", ErrorKind.CONNECTION),
        ("25P04", ErrorKind.CONNECTION),
        ("40P01", ErrorKind.CONNECTION),
        ("55P03", ErrorKind.CONNECTION),
        ("57014", ErrorKind.CONNECTION),
        ("57P01", ErrorKind.NOT_READY),
        ("57P02", ErrorKind.NOT_READY),
        ("57P03", ErrorKind.NOT_READY),
        ("28P01", ErrorKind.AUTHENTICATION),
        ("28000", ErrorKind.AUTHENTICATION),
        ("42501", ErrorKind.RIGHTS),
        ("42704", ErrorKind.SLOT_MISSING),
        ("42710", ErrorKind.SLOT_EXISTS),
        ("55006", ErrorKind.SLOT_ACTIVE),
        ("55000", ErrorKind.SLOT_INVALIDATED),
        ("58P01", ErrorKind.SLOT_INVALIDATED),
        ("3D000", ErrorKind.USAGE),
        ("22023", ErrorKind.USAGE),
        ("42601", ErrorKind.USAGE),
        ("P0001", ErrorKind.USAGE),
        ("XX000", ErrorKind.SERVER_FAULT),
    ],
)
def test_an_sqlstate_tells_the_kind(sqlstate, kind):
    assert kind_of(sqlstate) is kind


def test_a_caller_knows_better_by_code_or_class():
    kinds = {"42704": ErrorKind.PUBLICATION, "22": ErrorKind.PUBLICATION}
    assert kind_of("42704", kinds) is ErrorKind.PUBLICATION
    assert kind_of("22012", kinds) is ErrorKind.PUBLICATION
    assert kind_of("42501", kinds) is ErrorKind.RIGHTS


@pytest.mark.parametrize(
    "conninfo",
    [
        "host=h password=very secret",
        "postgresql://u:secret@[h/d",
        "postgresql://u:secret@h:port/d",
        "password='secret",
        "hots=h password=secret",
    ],
)
def test_a_malformed_connection_string_is_a_usage_error_without_the_password(conninfo):
    with pytest.raises(PgcdcError) as caught:
        connect(conninfo)
    assert "secret" not in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.kind in (ErrorKind.USAGE, ErrorKind.CONNECTION)


def test_no_server_is_a_connection_error(tmp_path):
    with pytest.raises(
        PgcdcError, match=r"^could not connect to the server: connection to server .*No such file"
    ) as caught:
        connect(f"host={tmp_path} dbname=d user=u password=secret")
    assert caught.value.kind is ErrorKind.CONNECTION
    assert "secret" not in caught.value.message


def test_nobody_on_a_port_is_a_connection_error():
    with pytest.raises(PgcdcError) as caught:
        connect("postgresql://u:secret@127.0.0.1:1/d")
    assert caught.value.kind is ErrorKind.CONNECTION
    assert "secret" not in caught.value.message


def test_no_such_database_is_a_usage_error(server):
    with pytest.raises(PgcdcError, match='database "nowhere" does not exist') as caught:
        connect(server.uri("nowhere"))
    assert (caught.value.kind, caught.value.hint) == (ErrorKind.USAGE, "check -d")


def test_the_error_that_ends_an_idle_session_is_told(database):
    """libpq takes it for a notice if it reads it together with the answer to the query before."""
    with connect(database.uri) as connection:
        database.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        assert select.select([connection.pgconn.socket], [], [], 10)[0]
        with suppress(psycopg.OperationalError):
            connection.pgconn.consume_input()
        connection.pgconn.notifies()
        with pytest.raises(psycopg.OperationalError) as raised:
            connection.execute("SELECT 1")
    failure = server_failure("read", raised.value)
    assert failure.kind is ErrorKind.NOT_READY
    assert failure.message == "could not read: terminating connection due to administrator command"


def test_a_limit_that_is_not_that_of_slots(database18):
    with connect(database18.uri) as connection:
        connection.execute("SET work_mem = '64kB'; SET temp_file_limit = 0")
        with pytest.raises(psycopg.Error) as raised:
            connection.execute("SELECT g FROM generate_series(1, 100000) g ORDER BY 1")
    failure = server_failure("read", raised.value)
    assert failure.kind is ErrorKind.USAGE
    assert failure.hint == "raise temp_file_limit, or work_mem: ALTER ROLE ... SET work_mem = '64MB'"


def test_values_print_the_same_whatever_the_role_and_the_options_say(database):
    options = (
        "-c TimeZone=Asia/Tokyo -c DateStyle=German -c extra_float_digits=0 -c work_mem=7MB"
        " -c standard_conforming_strings=off -c quote_all_identifiers=on -c array_nulls=off"
    )
    with connect(make_conninfo(database.uri, options=options)) as connection:
        shown = connection.execute(
            "SELECT '2026-01-02 03:04:05+00'::timestamptz::text, 0.1::float4::float8::text,"
            " interval '1 day 2 hours'::text, 'a\\b', regclass 'pg_class'::text, '{NULL}'::text[],"
            " current_setting('work_mem'), current_setting('application_name')"
        ).fetchone()
    values = ("2026-01-02 03:04:05+00", "0.10000000149011612", "1 day 02:00:00")
    assert shown == (*values, "a\\b", "pg_class", [None], "7MB", "pgcdc")
