"""Tables locked by others, maybe until the stream goes on: the stream doesn't wait for them."""

import json

import psycopg
import pytest
from processes import wait_until
from stream_runs import NOW, insert, stream

LOCKED = """
CREATE TABLE made (a serial PRIMARY KEY, b int DEFAULT 7, c int GENERATED ALWAYS AS (b * 2) STORED);
ALTER PUBLICATION pub ADD TABLE made;
"""


@pytest.fixture
def published(source):
    """A database with a table whose column expressions the server prints only with a lock on the table."""
    source.execute(LOCKED)
    return source


def test_a_prepared_transaction_keeps_its_locks_and_the_stream_goes_on(published, tmp_path, follow):
    published.execute("ALTER PUBLICATION pub SET (publish_generated_columns = stored)")
    slot, out = published.create_slot(two_phase=True), tmp_path / "out"
    following = follow(published.uri, slot, out, "--two-phase")
    published.execute("BEGIN; TRUNCATE made; INSERT INTO made DEFAULT VALUES")
    published.execute(f"PREPARE TRANSACTION '{published.name}'")
    insert(published, 1, 3)
    wait_until(lambda: out.exists() and out.read_text().count('"table":"t"') == 3)
    published.execute(f"COMMIT PREPARED '{published.name}'")
    wait_until(lambda: out.read_text().count('"table":"made"') == 2)
    assert following.stop() == (0, "")
    [row] = [
        json.loads(line)["new"] for line in out.read_text().splitlines() if '"I"' in line and "made" in line
    ]
    assert row == {"a": 1, "b": 7, "c": 14}


def test_a_table_that_is_not_chosen_may_be_locked(published, tmp_path):
    slot = published.create_slot()
    insert(published, 1, 1)
    with psycopg.connect(published.uri) as other:
        other.execute("LOCK TABLE made")
        ended = stream(published.uri, slot, "-f", str(tmp_path / "out"), "--table", "public.t", *NOW)
    assert ended.returncode == 0
    assert "a published table is locked" in ended.stderr
    assert (tmp_path / "out").read_text().count("\n") == 1


def test_defaults_and_expressions_are_what_the_server_prints(published, tmp_path):
    published.execute("ALTER PUBLICATION pub SET (publish_generated_columns = stored)")
    slot, out = published.create_slot(), tmp_path / "out"
    published.execute("INSERT INTO made DEFAULT VALUES")
    assert stream(published.uri, slot, "-D", str(out), *NOW).returncode == 0
    [schema] = (out / "schemas").iterdir()
    defaults = {
        name: facts["default"] for name, facts in json.loads(schema.read_text())["facts"]["columns"].items()
    }
    assert defaults == {"a": "nextval('made_a_seq'::regclass)", "b": "7", "c": "(b * 2)"}
