"""The connection options of all commands that connect to a server, combined into one libpq connection string.

Their letters are those of psql and pg_recvlogical. libpq supplies what isn't given: PG* variables, service
file, password file. As in psql, a connection string takes precedence over -h, -p and -U.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from pgcdc_cli.cli.command_tree import usage_error
from pgcdc_cli.errors import ErrorKind, PgcdcError

PANEL = "Connection"
_URI = ("postgresql://", "postgres://")

Dbname = Annotated[
    str | None,
    typer.Option(
        "-d",
        "--dbname",
        metavar="DBNAME",
        help="Database name, conninfo string or URI.",
        rich_help_panel=PANEL,
    ),
]
Host = Annotated[
    str | None,
    typer.Option(
        "-h", "--host", metavar="HOST", help="Server's host, or its socket directory.", rich_help_panel=PANEL
    ),
]
Port = Annotated[
    str | None,
    typer.Option("-p", "--port", metavar="PORT", help="Server's port.", rich_help_panel=PANEL),
]
Username = Annotated[
    str | None,
    typer.Option("-U", "--username", metavar="NAME", help="User to connect as.", rich_help_panel=PANEL),
]
NoPassword = Annotated[
    bool, typer.Option("-w", "--no-password", help="Never ask for a password.", rich_help_panel=PANEL)
]
Password = Annotated[
    bool,
    typer.Option("-W", "--password", help="Ask for a password before connecting.", rich_help_panel=PANEL),
]
_ANNOTATIONS: dict[str, Any] = {
    "dbname": Dbname,
    "host": Host,
    "port": Port,
    "username": Username,
    "no_password": NoPassword,
    "password": Password,
}


def connecting(command: Callable[..., None]) -> Callable[..., None]:
    """Add the connection options to a command, which receives `conninfo` instead of them.

    If the server turns out to require a password, the user is asked for it on a terminal, and the command
    runs again: it has done nothing yet.
    """

    @functools.wraps(command)
    def with_connection(**arguments: Any) -> None:  # noqa: ANN401 - whatever Typer parsed
        given = {name: arguments.pop(name) for name in _ANNOTATIONS}
        ask, never = given.pop("password"), given.pop("no_password")
        if ask and never:
            raise usage_error("-w and -W exclude each other")
        password = ask_password() if ask else None
        try:
            command(conninfo=connection_string(**given, password=password), **arguments)
        except PgcdcError as error:
            if ask or never or "no password supplied" not in error.message or not sys.stdin.isatty():
                raise
            command(conninfo=connection_string(**given, password=ask_password()), **arguments)

    signature = inspect.signature(command)
    own = [parameter for name, parameter in signature.parameters.items() if name != "conninfo"]
    # mypy doesn't know this attribute of functions; the documentation of inspect does.
    with_connection.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own, *map(_connection_parameter, _ANNOTATIONS)]
    )
    return with_connection


def _connection_parameter(name: str) -> inspect.Parameter:
    default = False if "password" in name else None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_ANNOTATIONS[name]
    )


def connection_string(
    dbname: str | None, host: str | None, port: str | None, username: str | None, password: str | None
) -> str:
    """Combine the options into a connection string. Raises USAGE, which never quotes a password.

    An option that is empty (`-h "$HOST"`) is as good as not given, as for libpq's own programs.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    _check_text(dbname, host, username, password)
    _check_port(port)
    options = {"host": host or None, "port": port or None, "user": username or None}
    options["fallback_application_name"] = "pgcdc"
    try:
        if dbname is not None and _is_conninfo(dbname):
            options |= {name: str(value) for name, value in conninfo_to_dict(dbname).items()}
            _check_uri(dbname, options)
        else:
            options["dbname"] = dbname or None
    except psycopg.ProgrammingError as error:
        from pgcdc_cli.replication.failures import conninfo_failure

        # Not even a traceback may show the words that libpq quotes: they may be parts of a password.
        raise conninfo_failure(str(dbname), error) from None
    _check_port(options["port"])
    if password is not None:
        options["password"] = password
    return make_conninfo("", **options)


def _is_conninfo(dbname: str) -> bool:
    """Whether libpq expands this database name as a connection string.

    libpq manual, "Database Connection Control Functions".
    """
    return "=" in dbname or dbname.startswith(_URI)


def _check_text(*given: str | None) -> None:
    try:
        "".join(filter(None, given)).encode()
    except UnicodeEncodeError as error:
        raise usage_error("the connection options are not UTF-8") from error


def _check_port(port: str | None) -> None:
    for number in (port or "").split(","):
        if not _is_port(number):
            raise usage_error(f'-p/--port: "{number}" is not a port number (1 to 65535)')


def _check_uri(conninfo: str, options: Mapping[str, str | None]) -> None:
    """Raise USAGE for a URI whose password seems to have an unescaped `@` or `/`.

    libpq would take parts of the password for host, port or database, and show them in its messages.
    """
    if not conninfo.startswith(_URI):
        return
    hosts, ports = ((options[name] or "").split(",") for name in ("host", "port"))
    authority, _, path = conninfo.partition("://")[2].partition("?")[0].partition("/")
    is_cut = ":" in authority and "@" not in authority and "@" in path
    if is_cut or any("@" in host[1:] and "/" not in host for host in hosts) or not all(map(_is_port, ports)):
        raise PgcdcError(
            ErrorKind.USAGE,
            "could not read the connection string: its host, port or database is not valid",
            hint='in a password write "@" as %40 and "/" as %2F, or set PGPASSWORD; in a name "@" as %40',
        )


def _is_port(number: str) -> bool:
    return not number or (re.fullmatch("[0-9]{1,99}", number) is not None and 0 < int(number) < 65536)


def ask_password() -> str:
    """Ask for the password on the terminal, without echo. Raises USAGE without a terminal."""
    import getpass

    if not sys.stdin.isatty():
        raise PgcdcError(
            ErrorKind.USAGE,
            "could not ask for the password: standard input is not a terminal",
            hint="set PGPASSWORD, or put it into ~/.pgpass",
        )
    return getpass.getpass("Password: ")
