"""The catalog of a database, and servers that a test may change."""

import pytest
from servers import Database

from pgcdc_cli.catalog import Catalog


@pytest.fixture
def catalog(database):
    with Catalog(database.uri) as catalog:
        yield catalog


@pytest.fixture
def own_database(own_server):
    """A function that makes a database on its own server, with settings that other tests can't use."""
    made = []

    def make(**settings):
        made.append(Database(own_server(18, settings)))
        return made[-1]

    yield make
    for database in made:
        database.connection.close()
