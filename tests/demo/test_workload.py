"""The load makes every kind of change, repeats itself exactly, and reports failures."""

from collections import Counter
from types import SimpleNamespace

import psycopg
import pytest
from processes import wait_until

from pgcdc_cli.demo import load, shop
from pgcdc_cli.demo.load import LoadKind, Workload


@pytest.fixture
def filled(database):
    shop.create(database.uri)
    shop.fill(database.uri, seed=1)
    return database


def contents(database):
    return [
        database.execute(f"SELECT t::text FROM shop.{table} t ORDER BY 1").fetchall() for table in shop.TABLES
    ]


def test_a_few_seconds_bring_every_kind_of_change(filled):
    promised = set(LoadKind) - {LoadKind.RETRY}
    with Workload(filled.uri, seed=1) as running:
        wait_until(lambda: running.check() or promised <= running.counts.keys())
        assert promised <= running.stop().keys()


def test_every_kind_of_change_is_on_the_wire(filled):
    slot = filled.create_slot()
    filled.execute("CREATE PUBLICATION shop FOR TABLES IN SCHEMA shop")
    with Workload(filled.uri, seed=1, clients=2, limit=1000) as running:
        counts = running.wait()
    rows = filled.execute(
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'shop')",
        (slot,),
    )
    tags = Counter(data[:1] + (data[5:6] if data[:1] in b"UD" else b"") for (data,) in rows)
    assert tags[b"B"] == tags[b"C"] <= counts[LoadKind.TRANSACTION]
    assert tags[b"T"] == counts[LoadKind.TRUNCATE] > 0
    assert tags[b"DO"] > 0 < tags[b"DK"]
    assert tags[b"UO"] >= counts[LoadKind.UPDATE_FULL] > 0
    assert tags[b"UK"] >= counts[LoadKind.KEY_CHANGE] - counts[LoadKind.UPDATE_FULL] > 0
    assert tags[b"UN"] > 0 < tags[b"I"]


def test_long_texts_stay_out_of_line(filled):
    sizes = filled.execute(
        "SELECT pg_relation_size(reltoastrelid) FROM pg_class"
        " WHERE oid IN ('shop.products'::regclass, 'shop.stock'::regclass)"
    ).fetchall()
    assert all(size > 100_000 for (size,) in sizes)


def test_one_client_does_the_same_again(database18):
    shop.create(database18.uri)
    shop.fill(database18.uri, seed=5)
    with Workload(database18.uri, seed=5, clients=1, limit=400) as running:
        first_counts = running.wait()
    first = contents(database18)
    database18.execute("DROP SCHEMA shop CASCADE")
    shop.create(database18.uri)
    shop.fill(database18.uri, seed=5)
    with Workload(database18.uri, seed=5, clients=1, limit=400) as running:
        assert running.wait() == first_counts
    assert contents(database18) == first


@pytest.mark.parametrize(("rate", "pauses"), [(100, [0.0, 0.04, 0.08]), (0, [0.0, 0.0, 0.0])])
def test_the_rate_is_kept_by_pausing(filled, monkeypatch, rate, pauses):
    """With four clients each has a turn every 40 ms; as no time passes here, each waits for all of that."""
    waited = []

    class Stopping:
        def wait(self, seconds):
            waited.append(seconds)
            return False

        def set(self):
            pass

    monkeypatch.setattr(load, "time", SimpleNamespace(monotonic=lambda: 0.0))
    workload = Workload(filled.uri, rate=rate, limit=3, clients=4)
    monkeypatch.setattr(workload, "_stopping", Stopping())
    with workload as running:
        running.wait()
    assert sorted(waited) == [pause for pause in pauses for _ in range(4)]


@pytest.mark.parametrize("state", ["40P01", "40001"], ids=["deadlock", "serialization"])
def test_a_conflict_is_retried_and_what_was_undone_does_not_count(database18, monkeypatch, state):
    tries = []

    def conflict(scene):
        tries.append(scene)
        scene.done[LoadKind.INSERT] += 1
        if len(tries) < 3:
            scene.connection.execute(f"DO $$ BEGIN RAISE EXCEPTION USING errcode = '{state}'; END $$")

    monkeypatch.setattr(load, "ACTIONS", {conflict: 1})
    with Workload(database18.uri, clients=1, limit=1) as running:
        assert running.wait() == {LoadKind.TRANSACTION: 1, LoadKind.RETRY: 2, LoadKind.INSERT: 1}


def test_any_other_error_surfaces(database18, monkeypatch):
    monkeypatch.setattr(load, "ACTIONS", {lambda scene: scene.connection.execute("SELECT 1/0"): 1})
    with Workload(database18.uri, clients=2) as running:
        with pytest.raises(psycopg.errors.DivisionByZero):
            running.wait()
        with pytest.raises(psycopg.errors.DivisionByZero):
            running.check()
