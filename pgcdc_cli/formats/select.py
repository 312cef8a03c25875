"""Choose a format by its name and options: a run needs one, and imports no other."""

from typing import TYPE_CHECKING

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.interface import Compression, Format, Layout, Numeric
from pgcdc_cli.formats.raw import RawFormat

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMES = ("jsonl", "arrow", "pretty", "raw", "wal2json")

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
    _refuse(name not in _NAMES, f'could not use format "{name}": there is none', f"use {', '.join(_NAMES)}")
    make: Callable[..., Format | RawFormat] = format_class(name)
    _check_options(name, layout, compression, numeric, transactions=transactions)
    arguments: dict[str, tuple[object, ...]] = {
        "jsonl": (layout, compression, numeric, transactions),
        "arrow": ("none" if compression == "none" else "zstd",),
        "pretty": (colour,),
        "wal2json": (layout, compression),
    }
    return make(*arguments.get(name, ()))


def format_class(name: str) -> type[Format | RawFormat]:
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
        case _:
            return RawFormat


def _check_options(
    name: str, layout: Layout, compression: Compression, numeric: Numeric, *, transactions: bool
) -> None:
    can, with_format = format_class(name).capabilities, f'with format "{name}"'
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
