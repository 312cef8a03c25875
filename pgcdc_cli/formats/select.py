"""The formats by their names, and the options that go with each: a run imports the one format it has."""

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.interface import Compression, Format, FormatName, Layout, Numeric
from pgcdc_cli.formats.raw import RawFormat


def format_class(name: FormatName) -> type[Format | RawFormat]:
    """Import a format's class, which declares the format's capabilities."""
    match name:
        case "jsonl":
            from pgcdc_cli.formats.jsonl import JsonlFormat

            return JsonlFormat
        case "arrow":
            from pgcdc_cli.formats.arrow import ArrowFormat

            return ArrowFormat
        case "pretty":
            from pgcdc_cli.formats.pretty import PrettyFormat

            return PrettyFormat
        case "debezium":
            from pgcdc_cli.formats.debezium.debezium_format import DebeziumFormat

            return DebeziumFormat
        case "wal2json":
            from pgcdc_cli.formats.wal2json.wal2json_format import Wal2jsonFormat

            return Wal2jsonFormat
        case "raw":
            return RawFormat


def check_options(
    name: FormatName, layout: Layout, compression: Compression, numeric: Numeric, *, transactions: bool
) -> None:
    """Raise USAGE for an option that the format doesn't support; `layout` is "stream" for a single file."""
    can, with_format = format_class(name).capabilities, f'with format "{name}"'
    _refuse(
        layout not in can.layouts, f"could not use --layout {layout} {with_format}: a file has one schema"
    )
    others, wrong = can.compressions[1:], compression not in can.compressions
    _refuse(wrong and not others, f"could not use --compression {with_format}")
    _refuse(
        wrong,
        f"could not use {compression} {with_format}: {name.capitalize()} has none",
        f"use {', '.join(others)}",
    )
    _refuse(
        not can.numeric and numeric != "string",
        f"could not use --numeric {with_format}: it is for JSON lines",
    )
    _refuse(transactions and not can.transactions, f"could not use --transactions {with_format}")
    _refuse(
        transactions and layout == "table",
        "could not write begins and commits into the tables' files",
        "use --layout stream, or -f",
    )


def _refuse(wrong: bool, message: str, hint: str | None = None) -> None:
    if wrong:
        raise PgcdcError(ErrorKind.USAGE, message, hint=hint)
