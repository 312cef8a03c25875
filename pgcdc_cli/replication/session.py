"""A session with the server whose values print the same everywhere."""

import psycopg
from psycopg.conninfo import make_conninfo

from pgcdc_cli.replication.failures import connect_failure, server_failure

SETTINGS = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "client_min_messages": "warning",
}
"""Set by statement rather than by the connection option `options`, which is the user's to give."""

_SET = ";".join(f"SET {name} = '{value}'" for name, value in SETTINGS.items()).encode()

Connection = psycopg.Connection[tuple[object, ...]]


def connect(conninfo: str, *, replication: bool = False) -> Connection:
    """Connect, with everything libpq knows (several hosts, service and password files, PG* variables).

    Statements go by the simple protocol, the only one that a walsender speaks. Raises PgcdcError: CONNECTION
    when another try may help, AUTHENTICATION, RIGHTS, or USAGE for a `conninfo` that names no database.
    """
    parameters = {"fallback_application_name": "pgcdc", "client_encoding": "UTF8"}
    if replication:
        parameters["replication"] = "database"
    try:
        whole = make_conninfo(conninfo, **parameters)
        connection = psycopg.connect(whole, autocommit=True, cursor_factory=psycopg.ClientCursor)
    except psycopg.Error as error:
        raise connect_failure(conninfo, error) from error
    try:
        connection.execute(_SET)
    except psycopg.Error as error:
        connection.close()
        raise server_failure("set up the session", error) from error
    return connection
