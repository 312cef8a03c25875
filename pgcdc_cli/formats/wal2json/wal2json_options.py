"""The plugin's options, with its names and defaults; only the default of `format-version` is 2 here."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, NamedTuple

from pgcdc_cli.changes.table import TableSchema
from pgcdc_cli.errors import ErrorKind, PgcdcError

ACTIONS = {"insert": "I", "update": "U", "delete": "D", "truncate": "T"}

_EVERY_ACTION = frozenset(ACTIONS.values())
_OF_VERSION_1 = ("include_typmod", "write_in_chunks", "pretty_print")
"""Options that format version 2 ignores, in the plugin and here."""


class TablePattern(NamedTuple):
    """A table in a list of tables; None matches any."""

    schema: str | None
    name: str | None

    def fits(self, schema: str, name: str) -> bool:
        return self.schema in {None, schema} and self.name in {None, name}


@dataclass(frozen=True, slots=True)
class Wal2jsonOptions:
    """Values of the options; `add_tables` and `add_msg_prefixes` are None for all."""

    format_version: int = 2
    include_transaction: bool = True
    include_xids: bool = False
    include_timestamp: bool = False
    include_origin: bool = False
    filter_origins: tuple[int, ...] = ()
    include_lsn: bool = False
    include_schemas: bool = True
    include_types: bool = True
    include_typmod: bool = True
    include_domain_data_type: bool = False
    include_type_oids: bool = False
    include_pk: bool = False
    include_not_null: bool = False
    include_default: bool = False
    include_column_positions: bool = False
    numeric_data_types_as_string: bool = False
    add_tables: tuple[TablePattern, ...] | None = None
    filter_tables: tuple[TablePattern, ...] = ()
    add_msg_prefixes: tuple[str, ...] | None = None
    filter_msg_prefixes: tuple[str, ...] = ()
    actions: frozenset[str] = _EVERY_ACTION
    write_in_chunks: bool = False
    pretty_print: bool = False

    @property
    def has_boundaries(self) -> bool:
        """Whether begins and commits are written; version 1's objects begin and end with a transaction."""
        return self.include_transaction or self.format_version == 1

    @property
    def wants_origin_numbers(self) -> bool:
        return self.include_origin or bool(self.filter_origins)

    @property
    def from_catalog(self) -> str | None:
        """An option that is set and needs the catalog; None if there is none."""
        asked = {
            "include-types": self.include_types,
            "include-pk": self.include_pk,
            "include-not-null": self.include_not_null,
            "include-default": self.include_default,
            "include-column-positions": self.include_column_positions,
            "include-origin": self.include_origin,
            "filter-origins": bool(self.filter_origins),
        }
        return next((name for name, wanted in asked.items() if wanted), None)

    @property
    def changed(self) -> dict[str, str]:
        """Options other than the defaults, for the checkpoint: a file must not change its options."""
        values = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        return {
            f"wal2json.{name}": str(sorted(value) if isinstance(value, frozenset) else value)
            for name, (value, default) in values.items()
            if value != default
        }

    def wants_table(self, table: TableSchema) -> bool:
        """Whether a table is written; `filter_tables` overrides `add_tables`."""
        names = table.schema, table.name
        added = self.add_tables is None or self.adds_table(*names)
        return added and not any(pattern.fits(*names) for pattern in self.filter_tables)

    def adds_table(self, schema: str, name: str) -> bool:
        """Whether a table is in `add_tables`."""
        return any(pattern.fits(schema, name) for pattern in self.add_tables or ())

    def wants_message(self, prefix: str) -> bool:
        added = self.add_msg_prefixes is None or prefix in self.add_msg_prefixes
        return added and prefix not in self.filter_msg_prefixes


def read_options(given: Iterable[tuple[str, str]]) -> Wal2jsonOptions:
    """Read options by the plugin's names; of one that comes twice the last counts, but filter-tables add up.

    Raises PgcdcError (USAGE) for an unknown name or a wrong value.
    """
    values: dict[str, Any] = {}
    for name, text in given:
        option, field = _OPTIONS.get(name), name.replace("-", "_")
        if option is None:
            raise _unknown(name)
        value = _read(name, option, text)
        values[field] = values.get(field, ()) + value if field == "filter_tables" else value
    options = Wal2jsonOptions(**values)
    _check_version(options, said="format_version" in values)
    return options


def _check_version(options: Wal2jsonOptions, *, said: bool) -> None:
    """Refuse options of version 1 with version 2, unless that was chosen explicitly (`said`).

    The plugin's own default is 1, so a user who doesn't choose a version may expect these options to work.
    """
    unseen = [name.replace("_", "-") for name in _OF_VERSION_1 if f"wal2json.{name}" in options.changed]
    if unseen and not said:
        raise PgcdcError(
            ErrorKind.USAGE,
            f'could not use wal2json\'s option "{unseen[0]}": format version 2 ignores it',
            hint="add format-version=1, the plugin's own default, or format-version=2 to have it ignored",
        )


def _unknown(name: str) -> PgcdcError:
    near = " or ".join(f'"{one}"' for one in get_close_matches(name, _OPTIONS, 3))
    hint = f"did you mean {near}?" if near else f"there are {', '.join(_OPTIONS)}"
    if name == "include-unchanged-toast":
        hint = "leave it out: as in the plugin, which no longer has it, unchanged TOAST values aren't printed"
    return PgcdcError(ErrorKind.USAGE, f'could not use wal2json\'s option "{name}": there is none', hint=hint)


def _read(name: str, option: "_PluginOption", text: str) -> Any:  # noqa: ANN401 - whatever the option holds
    try:
        return option.read(text)
    except ValueError:
        message = f'could not use wal2json\'s option "{name}": "{text}" is not {option.what}'
        raise PgcdcError(ErrorKind.USAGE, message, hint="pgcdc-stream(1) describes the options") from None


_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False}
_BOOLEANS |= {"0": False}


def _boolean(text: str) -> bool:
    """Read a boolean as the server does: any unique prefix of a word will do."""
    found = {value for word, value in _BOOLEANS.items() if word.startswith(text.lower())}
    if len(found) != 1:
        raise ValueError(text)
    return found.pop()


def _version(text: str) -> int:
    if text not in {"1", "2"}:
        raise ValueError(text)
    return int(text)


_ITEM = r"(?:\\.|[^\\,\s])+"
_LIST = re.compile(rf"\s*(?:{_ITEM}\s*(?:,\s*{_ITEM}\s*)*)?", re.DOTALL)


def _list(text: str) -> tuple[str, ...]:
    """Split at commas; a backslash escapes a comma or a blank."""
    if _LIST.fullmatch(text) is None:
        raise ValueError(text)
    return tuple(re.findall(_ITEM, text, re.DOTALL))


_TABLE = re.compile(r"((?:\\.|[^\\.])*)\.(.*)", re.DOTALL)


def _tables(text: str) -> tuple[TablePattern, ...]:
    return tuple(map(_table, _list(text)))


def _table(text: str) -> TablePattern:
    match = _TABLE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    schema, name = (None if part == "*" else re.sub(r"\\(.)", r"\1", part) for part in match.groups())
    return TablePattern(schema, name)


def _some(text: str) -> tuple[str, ...] | None:
    """Read a list; an empty one is None."""
    return _list(text) or None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, _list(text)))


def _actions(text: str) -> frozenset[str]:
    try:
        return frozenset(ACTIONS[name] for name in _list(text))
    except KeyError as error:
        raise ValueError(text) from error


class _PluginOption(NamedTuple):
    """`what` describes a valid value."""

    doc: str
    read: Callable[[str], Any]
    what: str


def _flag(doc: str) -> _PluginOption:
    return _PluginOption(doc, _boolean, "true or false")


_TABLE_LIST = "a list of tables, such as public.orders,shop.*"
_PREFIX_LIST = "a list of prefixes"

_OPTIONS = {
    "format-version": _PluginOption(
        "2, one object a line for each change, the default here; or 1, one a line for each transaction.",
        _version,
        "1 or 2",
    ),
    "include-transaction": _flag("Begins and commits, as B and C; default true."),
    "include-xids": _flag("The transaction's number, as xid."),
    "include-timestamp": _flag("When it committed, in UTC, as timestamp."),
    "include-origin": _flag("The number of the origin that it came from, as origin; 0 for this server."),
    "include-lsn": _flag("Positions, as lsn; where the next transaction may begin, as nextlsn of C."),
    "include-schemas": _flag("The table's schema; default true."),
    "include-types": _flag("The type of a column, as declared; default true."),
    "include-typmod": _flag("With format-version 1, types with their modifiers; default true."),
    "include-domain-data-type": _flag("A domain's base type, in place of its own."),
    "include-type-oids": _flag("The type's number, as typeoid."),
    "include-pk": _flag("The columns of the primary key, as pk."),
    "include-not-null": _flag("Whether a column may be null, as optional."),
    "include-default": _flag("The expression of a column's default, as default."),
    "include-column-positions": _flag("A column's number in its table, as position."),
    "numeric-data-types-as-string": _flag("Numbers in quotes, and so NaN and infinities, too."),
    "add-tables": _PluginOption("Only these tables, such as public.orders,shop.*.", _tables, _TABLE_LIST),
    "filter-tables": _PluginOption("All tables but these.", _tables, _TABLE_LIST),
    "add-msg-prefixes": _PluginOption("Only messages with these prefixes.", _some, _PREFIX_LIST),
    "filter-msg-prefixes": _PluginOption("No messages with these prefixes.", _list, _PREFIX_LIST),
    "actions": _PluginOption(
        "Only insert, update, delete, truncate.", _actions, f"a list of {', '.join(ACTIONS)}"
    ),
    "filter-origins": _PluginOption("No transactions of these origins.", _numbers, "a list of numbers"),
    "write-in-chunks": _flag("With format-version 1, a line for each change, and the commas in between."),
    "pretty-print": _flag("With format-version 1, a line for each member, indented by tabs."),
}

OPTION_DOCS = {name: option.doc for name, option in _OPTIONS.items()}
"""For the manual."""
