"""The demo's directory and server, and the count of its changes."""

import psutil
import pytest
from servers import started

from pgcdc_cli.demo import demonstrate, shop
from pgcdc_cli.demo.demonstrate import new_directory, running_server
from pgcdc_cli.errors import ErrorKind, PgcdcError


def test_each_demo_gets_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [str(new_directory(None)) for _ in range(3)]
    assert names == ["pgcdc-demo", "pgcdc-demo-2", "pgcdc-demo-3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_directory_that_is_empty_is_used(tmp_path):
    assert new_directory(tmp_path) == tmp_path
    assert new_directory(tmp_path / "a" / "b").is_dir()


def test_a_directory_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis").touch()
    with pytest.raises(PgcdcError, match="it is not empty") as raised:
        new_directory(tmp_path)
    assert raised.value.kind is ErrorKind.USAGE


def test_a_file_in_the_way_is_an_output_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(PgcdcError, match="could not create directory") as raised:
        new_directory(tmp_path / "file")
    assert raised.value.kind is ErrorKind.OUTPUT


def test_the_server_goes_with_its_directory():
    with running_server() as server:
        assert server.version == 18
        home = server.data.parent
        assert home.exists()
    assert not home.exists()


def test_a_server_that_was_restarted_is_stopped():
    def postmaster() -> psutil.Process:
        return psutil.Process(int((server.data / "postmaster.pid").read_text().split()[0]))

    with started() as server:
        first = postmaster()
        server.pg_ctl("restart")
        # In a container without an init process, nobody reaps it.
        psutil.wait_procs([first], timeout=30)
        assert postmaster() != first
        server.stop()
        assert not (server.data / "postmaster.pid").exists()


def test_the_witness_counts_what_has_changed_since(database):
    shop.create(database.uri)
    database.execute("CREATE PUBLICATION shop FOR TABLES IN SCHEMA shop")
    slot = f"{database.name}_w"
    demonstrate.create_witness(database.connection, slot)
    assert demonstrate.count_changes(database.connection, slot, "shop") == {}
    database.execute("INSERT INTO shop.promotions SELECT i::text FROM generate_series(1, 10) i")
    database.execute("UPDATE shop.promotions SET code = 'x' || code WHERE code < '3'")
    database.execute("DELETE FROM shop.promotions WHERE code = '7'")
    database.execute("TRUNCATE shop.promotions")
    [behind] = database.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    database.execute("INSERT INTO shop.products (id, title) VALUES (1, 'one')")
    with database.connection.transaction(force_rollback=True):
        database.execute("INSERT INTO shop.products (id, title) VALUES (2, 'two')")
    expected = {"shop.promotions": 10 + 3 + 1 + 1, "shop.products": 1}
    assert demonstrate.count_changes(database.connection, slot, "shop") == expected
    assert demonstrate.count_changes(database.connection, slot, "shop", since=behind) == {"shop.products": 1}
