"""`pgcdc publication`: create, alter, drop, list and show publications."""

import json as json_text
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pgcdc_cli.cli.command_tree import Command, examples, new_app, usage_error
from pgcdc_cli.cli.connection_options import connecting
from pgcdc_cli.cli.printing import facts, fits, fitted, warn, write
from pgcdc_cli.errors import ErrorKind, PgcdcError, hints
from pgcdc_cli.formats.terminal import identifier

if TYPE_CHECKING:
    from pgcdc_cli.catalog import Catalog, Publication, PublishedTable

_IDENTIFIER = r'"(?:[^"]|"")+"|[^\W\d][\w$]*'
_TABLE = re.compile(
    rf"\s*(?:(?P<schema>{_IDENTIFIER})\s*\.)?\s*(?P<name>{_IDENTIFIER})\s*"
    rf"(?:\((?P<columns>\s*(?:{_IDENTIFIER})(?:\s*,\s*(?:{_IDENTIFIER}))*\s*)\)\s*)?"
    r"(?:WHERE\s*\((?P<filter>.+)\)\s*)?",
    re.IGNORECASE | re.DOTALL,
)
_COLUMNS = re.compile(rf"\s*(?:{_IDENTIFIER})(?:\s*,\s*(?:{_IDENTIFIER}))*\s*")


def published_table(option: str, text: str) -> "PublishedTable":
    """Parse a value of `option`; the default schema is `public`. Raises a usage error if it is malformed."""
    from pgcdc_cli.catalog import PublishedTable

    match = _TABLE.fullmatch(text)
    if match is None:
        raise usage_error(f'{option}: "{text}" is not like schema.table(column, ...) WHERE (filter)')
    schema, name, columns, row_filter = match.group("schema", "name", "columns", "filter")
    names = None if columns is None else _names(columns)
    return PublishedTable(_plain(schema or "public"), _plain(name), names, row_filter)


def column_names(option: str, text: str | None) -> tuple[str, ...]:
    """Parse names separated by commas; empty for None. Raises a usage error if they are malformed."""
    if text is not None and _COLUMNS.fullmatch(text) is None:
        raise usage_error(f'{option}: "{text}" is not a list of columns, such as id,name')
    return _names(text or "")


def _names(columns: str) -> tuple[str, ...]:
    return tuple(map(_plain, re.findall(_IDENTIFIER, columns)))


def _plain(text: str) -> str:
    from pgcdc_cli.types.database_text import folded

    if text.startswith('"'):
        return text[1:-1].replace('""', '"')
    return folded(text)


app = new_app(
    summary="Create, alter, drop, list and show publications.",
    epilog=examples(
        "pgcdc publication create shop_pub -d shop --all-tables", "pgcdc publication list -d shop"
    ),
)


def register(root: typer.Typer) -> None:
    """Add `publication` with its members."""
    root.add_typer(app, name="publication")


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the publication.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

GeneratedColumnsOption = Annotated[
    Literal["none", "stored"] | None,
    typer.Option("--generated-columns", help="Also publish generated columns (PostgreSQL 18)."),
]

_REFUSED = "it is the server that refuses it: in psql, \\d shows its tables and columns, \\dn its schemas"

OPERATIONS = ("insert", "update", "delete", "truncate")


@app.command(
    "create",
    cls=Command,
    epilog=examples(
        "pgcdc publication create shop_pub -d shop --all-tables",
        "pgcdc publication create p -d shop --table 'orders(id, total) WHERE (id > 1000)'",
    ),
)
@connecting
def create(  # noqa: PLR0913 - a command's options
    name: Name,
    *,
    conninfo: str,
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="TABLE",
            help="A table, as in SQL: schema.table, optionally with a column list (a, b) and a row filter"
            " WHERE (...).",
        ),
    ] = None,
    schemas: Annotated[
        list[str] | None,
        typer.Option("--schema", metavar="SCHEMA", help="All tables in a schema: its name, without quotes."),
    ] = None,
    all_tables: Annotated[bool, typer.Option("--all-tables", help="All tables of the database.")] = False,
    operations: Annotated[
        str, typer.Option(metavar="LIST", help="Operations to publish, separated by commas.")
    ] = ",".join(OPERATIONS),
    via_root: Annotated[
        bool, typer.Option("--via-root", help="Publish changes to partitions as changes to their root.")
    ] = False,
    generated_columns: GeneratedColumnsOption = None,
) -> None:
    """Create a publication: the tables and operations to stream.

    Without --table, --schema and --all-tables, the publication is empty until tables are added.
    """
    from pgcdc_cli.catalog import Catalog, Publication

    if all_tables and (tables or schemas):
        raise usage_error("--all-tables excludes --table and --schema")
    publication = Publication(
        name=name,
        all_tables=all_tables,
        tables=_tables("--table", tables),
        schemas=tuple(schemas or ()),
        operations=_operations(operations),
        via_root=via_root,
        generated_columns=generated_columns or "none",
    )
    word = quote(name)
    exists = f"to change it: pgcdc publication alter {word}; see it with: pgcdc publication show {word}"
    with hints({ErrorKind.PUBLICATION: exists}), _server_refuses(), Catalog(conninfo) as catalog:
        _check_generated_columns(catalog, generated_columns)
        catalog.create_publication(publication)
        catalog.warn_of_refused_changes(name)
    if not (all_tables or tables or schemas):
        add = f"pgcdc publication alter {word} --add-table schema.table"
        warn(f'publication "{name}" publishes nothing yet: {add}')
    write(name)


@contextmanager
def _server_refuses() -> Iterator[None]:
    """Say where to look if the server refuses something and there is no other hint."""
    try:
        yield
    except PgcdcError as error:
        if error.hint == ErrorKind.USAGE.rule.hint:
            error.hint = _REFUSED
        raise


def _check_generated_columns(catalog: "Catalog", wanted: str | None) -> None:
    if wanted is not None and catalog.facts().version < 180000:
        raise PgcdcError(
            ErrorKind.USAGE,
            "could not publish generated columns: that needs PostgreSQL 18",
            hint="leave out --generated-columns",
        )


def _operations(text: str) -> tuple[str, ...]:
    wanted = [word.strip().lower() for word in text.split(",")]
    for word in wanted:
        if word not in OPERATIONS:
            raise usage_error(f'--operations: "{word}" is not one of {", ".join(OPERATIONS)}')
    return tuple(operation for operation in OPERATIONS if operation in wanted)


@app.command(
    "alter",
    cls=Command,
    epilog=examples(
        "pgcdc publication alter shop_pub -d shop --add-table 'orders(id, total)'",
        "pgcdc publication alter shop_pub -d shop --via-root --operations insert,update",
    ),
)
@connecting
def alter(  # noqa: PLR0913 - a command's options
    name: Name,
    *,
    conninfo: str,
    add_table: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Add a table; the syntax is that of create --table."),
    ] = None,
    drop_table: Annotated[list[str] | None, typer.Option(metavar="TABLE", help="Remove a table.")] = None,
    set_table: Annotated[
        list[str] | None, typer.Option(metavar="TABLE", help="Publish exactly the tables given this way.")
    ] = None,
    add_schema: Annotated[
        list[str] | None,
        typer.Option(metavar="SCHEMA", help="Add all tables in a schema: its name, without quotes."),
    ] = None,
    drop_schema: Annotated[list[str] | None, typer.Option(metavar="SCHEMA", help="Remove a schema.")] = None,
    operations: Annotated[
        str | None, typer.Option(metavar="LIST", help="Operations to publish, separated by commas.")
    ] = None,
    via_root: Annotated[
        bool | None,
        typer.Option(
            "--via-root/--no-via-root", help="Publish changes to partitions as changes to their root."
        ),
    ] = None,
    generated_columns: GeneratedColumnsOption = None,
) -> None:
    """Change a publication, with all changes in one transaction.

    A slot sees the change from this point of the WAL on; older changes that it has yet to read are published
    as before.
    """
    from pgcdc_cli.catalog import Alteration, Catalog, members

    if set_table and (add_table or drop_table or add_schema or drop_schema):
        raise usage_error("--set-table lists every table: it excludes options that add or drop")
    change = Alteration(
        add=members(name, _tables("--add-table", add_table), add_schema or ()),
        drop=members(name, _tables("--drop-table", drop_table), drop_schema or ()),
        put=members(name, _tables("--set-table", set_table)),
        operations=None if operations is None else _operations(operations),
        via_root=via_root,
        generated_columns=generated_columns,
    )
    if change == Alteration():
        raise usage_error("nothing to change")
    unfit = f"see what it publishes with: pgcdc publication show {quote(name)}"
    with Catalog(conninfo) as catalog:
        _find(catalog, name)
        _check_generated_columns(catalog, generated_columns)
        with hints({ErrorKind.PUBLICATION: unfit}), _server_refuses():
            catalog.alter_publication(name, change)
        catalog.warn_of_refused_changes(name)


def _tables(option: str, given: list[str] | None) -> "tuple[PublishedTable, ...]":
    return tuple(published_table(option, text) for text in given or ())


@app.command("drop", cls=Command, epilog=examples("pgcdc publication drop shop_pub -d shop"))
@connecting
def drop(
    name: Name,
    *,
    conninfo: str,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Succeed if there is no such publication.")
    ] = False,
) -> None:
    """Drop a publication. Slots that still name it will fail."""
    from pgcdc_cli.catalog import Catalog

    with Catalog(conninfo) as catalog:
        catalog.drop_publication(name, if_exists=if_exists)


@app.command("list", cls=Command, epilog=examples("pgcdc publication list -d shop"))
@connecting
def list_publications(*, conninfo: str, json: Json = False) -> None:
    """List the database's publications.

    Some columns are left out on a narrow terminal. --json prints one object per line.
    """
    from pgcdc_cli.catalog import Catalog

    with Catalog(conninfo) as catalog:
        publications = catalog.publications()
    if json:
        for publication in publications:
            write(json_text.dumps(asdict(publication)))
    else:
        for line in _list(publications):
            write(line)


def _list(publications: "Sequence[Publication]") -> list[str]:
    """Make a table; it says less about each publication on a narrow terminal."""
    headings = ["NAME", "OWNER", "TABLES", "OPERATIONS", "VIA ROOT"]
    lines = fitted(headings, [_cells(one) for one in publications], ("OWNER", "VIA ROOT"))
    if fits(lines):
        return lines
    short = [_cells(one, named=1, all_operations="all") for one in publications]
    return fitted(headings, short, ("OWNER", "VIA ROOT", "OPERATIONS"))


@app.command("show", cls=Command, epilog=examples("pgcdc publication show shop_pub -d shop"))
@connecting
def show(name: Name, *, conninfo: str, json: Json = False) -> None:
    """Show one publication: tables, column lists, row filters."""
    from pgcdc_cli.catalog import Catalog

    with Catalog(conninfo) as catalog:
        publication = _find(catalog, name)
    if json:
        write(json_text.dumps(asdict(publication)))
    else:
        for line in facts(_lines(publication)):
            write(line)


def _find(catalog: "Catalog", name: str) -> "Publication":
    publication = catalog.publication(name)
    if publication is None:
        raise PgcdcError(
            ErrorKind.PUBLICATION,
            f'could not find publication "{name}": it does not exist',
            hint=catalog.other_publications(name),
        )
    return publication


def _cells(
    publication: "Publication", named: int = 3, all_operations: str = ", ".join(OPERATIONS)
) -> list[str]:
    tables = [_name(entry) for entry in publication.tables]
    objects = [*tables, *(f"{identifier(schema)}.*" for schema in publication.schemas)]
    shown = "all" if publication.all_tables else ", ".join(objects[:named]) or "none"
    more = f" and {len(objects) - named} more" if len(objects) > named else ""
    every = publication.operations == OPERATIONS
    operations = all_operations if every else ", ".join(publication.operations) or "none"
    return [
        publication.name,
        publication.owner,
        shown + more,
        operations,
        "yes" if publication.via_root else "no",
    ]


def _lines(publication: "Publication") -> list[tuple[str, str]]:
    """Return all facts by name; schemas and tables as the options take them."""
    return [
        ("name", publication.name),
        ("owner", publication.owner),
        ("operations", ", ".join(publication.operations) or "none"),
        ("via root", "yes" if publication.via_root else "no"),
        ("generated", publication.generated_columns),
        *([("all tables", "yes")] if publication.all_tables else []),
        *(("schema", schema) for schema in publication.schemas),
        *(("table", _definition(entry)) for entry in publication.tables),
    ]


def _name(entry: "PublishedTable") -> str:
    return f"{identifier(entry.schema)}.{identifier(entry.name)}"


def _definition(entry: "PublishedTable") -> str:
    """Format a table as --table takes it."""
    columns = "" if entry.columns is None else f" ({', '.join(map(identifier, entry.columns))})"
    row_filter = "" if entry.row_filter is None else f" WHERE {_in_parentheses(entry.row_filter)}"
    return _name(entry) + columns + row_filter


def _in_parentheses(text: str) -> str:
    return text if text.startswith("(") and text.endswith(")") else f"({text})"
