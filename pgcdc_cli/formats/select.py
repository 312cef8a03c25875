"""From names and options to a format."""

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.arrow import ArrowFormat
from pgcdc_cli.formats.base import Format
from pgcdc_cli.formats.compress import Compression
from pgcdc_cli.formats.jsonl import JsonlFormat, Layout, Numeric
from pgcdc_cli.formats.pretty import PrettyFormat
from pgcdc_cli.formats.raw import RawFormat

FORMATS = ("jsonl", "arrow", "pretty", "raw")


def select_format(
    name: str,
    *,
    layout: Layout,
    compression: Compression = "none",
    numeric: Numeric = "string",
    transactions: bool = False,
    colour: bool = False,
) -> Format:
    """Make the format called `name`; `layout` is "stream" wherever there is one file.

    Raises a USAGE error for an unknown name and for options that exclude each other.
    """
    _check_options(name, layout, compression, numeric, transactions=transactions)
    if name == "jsonl":
        return JsonlFormat(layout, compression, numeric, transactions)
    if name == "arrow":
        return ArrowFormat("none" if compression == "none" else "zstd")
    return RawFormat() if name == "raw" else PrettyFormat(colour)


def _check_options(
    name: str, layout: Layout, compression: Compression, numeric: Numeric, *, transactions: bool
) -> None:
    _refuse(name not in FORMATS, f'could not use format "{name}": there is none', f"use {', '.join(FORMATS)}")
    arrow, lines, one_stream = name == "arrow", name == "jsonl", name in {"pretty", "raw"}
    with_format = f'with format "{name}"'
    _refuse(
        arrow and layout == "stream", f"could not use --layout stream {with_format}: a file has one schema"
    )
    _refuse(arrow and compression == "gzip", f"could not use gzip {with_format}: Arrow has none", "use zstd")
    _refuse(one_stream and layout == "table", f"could not use --layout table {with_format}: it is one stream")
    _refuse(one_stream and compression != "none", f"could not use --compression {with_format}")
    _refuse(not lines and numeric != "string", f"could not use --numeric {with_format}: it is for JSON lines")
    _refuse(name in {"arrow", "raw"} and transactions, f"could not use --transactions {with_format}")
    _refuse(
        lines and transactions and layout == "table",
        "could not write begins and commits into the tables' files",
        "use --layout stream, or -f",
    )


def _refuse(wrong: bool, message: str, hint: str | None = None) -> None:
    if wrong:
        raise PgcdcError(ErrorKind.USAGE, message, hint=hint)
