"""Tables as `pgcdc publication create --table` takes them: `schema.table(column, ...) WHERE (filter)`.

Names are SQL's identifiers ("Lexical Structure", "Identifiers and Key Words"): folded to lower case unless
they stand in double quotes.
"""

import re
from typing import TYPE_CHECKING

from pgcdc_cli.cli.options import usage_error

if TYPE_CHECKING:
    from pgcdc_cli.catalog import PublishedTable

_IDENTIFIER = r'"(?:[^"]|"")+"|[^\W\d][\w$]*'
_TABLE = re.compile(
    rf"\s*(?:(?P<schema>{_IDENTIFIER})\s*\.)?\s*(?P<name>{_IDENTIFIER})\s*"
    rf"(?:\((?P<columns>\s*(?:{_IDENTIFIER})(?:\s*,\s*(?:{_IDENTIFIER}))*\s*)\)\s*)?"
    r"(?:WHERE\s*\((?P<filter>.+)\)\s*)?",
    re.IGNORECASE | re.DOTALL,
)
_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*")


def published_table(text: str) -> "PublishedTable":
    """Read one table; without a schema it is `public`'s. A usage error for anything else."""
    from pgcdc_cli.catalog import PublishedTable

    match = _TABLE.fullmatch(text)
    if match is None:
        raise usage_error(f'--table: "{text}" is not like schema.table(column, ...) WHERE (filter)')
    schema, name, columns, row_filter = match.group("schema", "name", "columns", "filter")
    names = None if columns is None else tuple(map(_plain, re.findall(_IDENTIFIER, columns)))
    return PublishedTable(_plain(schema or "public"), _plain(name), names, row_filter)


def _plain(identifier: str) -> str:
    if identifier.startswith('"'):
        return identifier[1:-1].replace('""', '"')
    return identifier.lower()


def quoted(name: str) -> str:
    """Quote a name only where SQL needs it."""
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'
