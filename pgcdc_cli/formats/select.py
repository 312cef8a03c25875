"""From names and options to a format."""

from dataclasses import dataclass
from typing import Literal

from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.arrow import ArrowFormat
from pgcdc_cli.formats.base import Format
from pgcdc_cli.formats.compress import Compression
from pgcdc_cli.formats.jsonl import JsonlFormat, Layout, Numeric
from pgcdc_cli.formats.pretty import PrettyFormat
from pgcdc_cli.formats.raw import RawFormat

FORMATS = ("jsonl", "arrow", "pretty", "raw")

Target = Literal["directory", "file"]


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """What the command line says of a format. `target` "file" is any single stream, standard output too.

    `layout` None is the target's own: one file a table in a directory, else one stream. `colour` and `width`
    (characters) are the terminal's.
    """

    target: Target = "directory"
    layout: Layout | None = None
    compression: Compression = "none"
    numeric: Numeric = "string"
    transactions: bool = False
    colour: bool = False
    width: int = 80


def select_format(name: str, options: FormatOptions) -> Format:
    """Make the format called `name`; a USAGE error for another name or for options that exclude each other."""
    if name not in FORMATS:
        raise _usage(
            f'could not use format "{name}": there is no such format', f"one of {', '.join(FORMATS)}"
        )
    if name == "jsonl":
        return _jsonl(options)
    _refuse_json_options(name, options)
    if name == "arrow":
        return _arrow(options)
    if options.target == "directory":
        raise _usage(
            f'could not use format "{name}" for a directory: it is one stream', "use -f FILE or -f -"
        )
    if options.compression != "none":
        raise _usage(f'could not use format "{name}" with {options.compression}: it is never compressed')
    return RawFormat() if name == "raw" else PrettyFormat(options.colour, options.width)


def _usage(message: str, hint: str | None = None) -> PgcdcError:
    return PgcdcError(ErrorKind.USAGE, message, hint=hint)


def _jsonl(options: FormatOptions) -> Format:
    layout = options.layout or ("table" if options.target == "directory" else "stream")
    if layout == "table" and options.target == "file":
        raise _usage('could not use layout "table" for one file: it is one file a table', "use -D DIR")
    if layout == "table" and options.transactions:
        raise _usage(
            "could not write begins and commits into the tables' files", "use --layout stream, or -f"
        )
    return JsonlFormat(layout, options.compression, options.numeric, options.transactions)


def _refuse_json_options(name: str, options: FormatOptions) -> None:
    if options.numeric != "string":
        raise _usage(f'could not use --numeric with format "{name}": it is for JSON lines')
    if name != "pretty" and options.transactions:
        raise _usage(f'could not use --transactions with format "{name}": it is for JSON lines')


def _arrow(options: FormatOptions) -> Format:
    if options.target == "file":
        raise _usage('could not use format "arrow" for one file: a file has one schema', "use -D DIR")
    if options.layout == "stream":
        raise _usage('could not use format "arrow" with layout "stream": a file has one schema')
    if options.compression == "gzip":
        raise _usage('could not use format "arrow" with gzip: Arrow has none', "use --compression zstd")
    return ArrowFormat(options.compression)
