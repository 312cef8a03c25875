"""Column defaults, as `PostgresDefaultValueConverter` reads them: literals, and a stand-in for functions.

Nothing is evaluated: of `'a' || 'b'` the first literal is taken, and an expression without one has no
default.
"""

import re

from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.formats.debezium.types.kind import Kind
from pgcdc_cli.formats.debezium.types.texts import to_tokens
from pgcdc_cli.table import ColumnFacts
from pgcdc_cli.types.registry import PgType

_LITERAL = re.compile(r"'(.*?)'", re.DOTALL)
_FUNCTION = re.compile(r"[(]?[A-Za-z0-9_.]+\((?:.+(?:, ?.+)*)?\)", re.DOTALL)
_CURRENT = re.compile(r"\(?(?:CURRENT|LOCAL)_?(?:DATE|TIME|TIMESTAMP)", re.IGNORECASE)
_WITHOUT = frozenset(
    ["money", "bytea", "inet", "cidr", "macaddr", "macaddr8", "hstore", "citext", "ltree", "point"]
)


def default_token(kind: Kind, type_: PgType, facts: ColumnFacts | None) -> bytes | None:
    """Write a column's default as a token; None where it has none that Debezium reads."""
    expression = None if facts is None else facts.default
    if expression is None or kind.generated is None or type_.element is not None or type_.name in _WITHOUT:
        return None
    if _FUNCTION.match(expression) or _CURRENT.match(expression):
        return kind.generated
    literal = _LITERAL.search(expression)
    if literal is None and expression.upper().startswith("NULL"):
        return None
    return _converted(kind, literal[1] if literal else expression)


def _converted(kind: Kind, text: str) -> bytes | None:
    try:
        return to_tokens(kind.to_json, [text])[0]
    except (ValueError, ArithmeticError, PgcdcError):
        return None
