from collections.abc import Callable, Iterator

import psycopg
import pyarrow as pa
import pytest

from pgcdc_cli.types.pg_type import PgType, builtin
from pgcdc_cli.types.to_arrow import to_arrow

SESSION = "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres';"


class Oracle:
    """PostgreSQL's own interpretation of a value: its text, and what expressions say about it."""

    def __init__(self, connection) -> None:
        self._connection = connection
        connection.execute(SESSION)

    def type(self, name: str) -> PgType:
        query = (
            "SELECT atttypid, atttypmod FROM pg_attribute WHERE attrelid = 'probe'::regclass AND attnum = 1"
        )
        with self._connection.transaction(force_rollback=True):
            self._connection.execute(f"CREATE TABLE probe (v {name})")
            return builtin(*self._connection.execute(query).fetchone())

    def text(self, name: str, literal: str) -> str:
        """The text that the type's output function prints, as it is sent on the wire."""
        return self.texts("v", name, literal)[0]

    def elements(self, name: str, literal: str) -> list[str | None]:
        return self.texts("unnest(v)", name, literal)

    def texts(self, expression: str, name: str, literal: str) -> list[str | None]:
        result = self._select(expression, name, literal).pgresult
        wire = [result.get_value(row, 0) for row in range(result.ntuples)]
        return [None if value is None else value.decode() for value in wire]

    def ask(self, expression: str, name: str, literal: str):
        return self._select(expression, name, literal).fetchone()[0]

    def _select(self, expression: str, name: str, literal: str) -> psycopg.Cursor:
        query = f"SELECT {expression} FROM (SELECT CAST(%s AS {name}) AS v) AS one"
        return self._connection.execute(query, (literal,))


@pytest.fixture
def oracle(server) -> Iterator[Oracle]:
    with psycopg.connect(server.uri(), autocommit=True) as connection:
        yield Oracle(connection)


@pytest.fixture
def convert() -> Callable[[PgType, list[str | None]], tuple[pa.Array, list[bool]]]:
    """A function that converts texts to an Arrow array, and a list that says which ones don't fit."""

    def convert(pg_type: PgType, texts: list[str | None]) -> tuple[pa.Array, list[bool]]:
        wire = [None if text is None else text.encode() for text in texts]
        values, unfit = to_arrow(pg_type, pa.array(wire, pa.binary()))
        assert values.validate(full=True) is None
        return values, [False] * len(texts) if unfit is None else unfit.tolist()

    return convert
