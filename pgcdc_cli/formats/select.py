"""Choose a format by its name and options."""

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.arrow import ArrowFormat
from pgcdc_cli.formats.interface import Compression, Format, Layout, Numeric
from pgcdc_cli.formats.jsonl import JsonlFormat
from pgcdc_cli.formats.pretty import PrettyFormat
from pgcdc_cli.formats.raw import RawFormat
from pgcdc_cli.formats.wal2json.wal2json_format import Wal2jsonFormat

FORMATS: dict[str, type[Format] | type[RawFormat]] = {
    form.name: form for form in (JsonlFormat, ArrowFormat, PrettyFormat, RawFormat, Wal2jsonFormat)
}

_LAYOUT_REFUSED: dict[Layout, str] = {"stream": "a file has one schema", "table": "it is one stream"}


def select_format(
    name: str,
    *,
    layout: Layout,
    compression: Compression = "none",
    numeric: Numeric = "string",
    transactions: bool = False,
    colour: bool = False,
) -> Format | RawFormat:
    """Make the format with this name; `layout` is "stream" for output to a single file.

    Raises PgcdcError (USAGE) for an unknown name and for options that the format doesn't support.
    """
    _check_options(name, layout, compression, numeric, transactions=transactions)
    if name == "jsonl":
        return JsonlFormat(layout, compression, numeric, transactions)
    if name == "arrow":
        return ArrowFormat("none" if compression == "none" else "zstd")
    if name == "wal2json":
        return Wal2jsonFormat(layout, compression)
    return RawFormat() if name == "raw" else PrettyFormat(colour)


def _check_options(
    name: str, layout: Layout, compression: Compression, numeric: Numeric, *, transactions: bool
) -> None:
    _refuse(name not in FORMATS, f'could not use format "{name}": there is none', f"use {', '.join(FORMATS)}")
    can, with_format = FORMATS[name].capabilities, f'with format "{name}"'
    _refuse(
        layout not in can.layouts,
        f"could not use --layout {layout} {with_format}: {_LAYOUT_REFUSED[layout]}",
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
