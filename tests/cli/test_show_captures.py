"""`pgcdc show` of what pg_recvlogical has written, as text or in binary."""

import json

import pytest
from show_tools import capture, show, with_changes

from pgcdc_cli.replication.session import SESSION_SETTINGS


def test_a_raw_capture_gives_the_same_changes(shop, lines, pgcdc, tmp_path):
    capture(shop, tmp_path / "raw", messages="true")
    shown = [json.loads(line) for line in show(pgcdc, "raw").splitlines()]
    changes = [change for change in shown if change.get("op", "B") not in "BC"]
    expected = [json.loads(line) for line in lines.splitlines()]
    for change in expected:
        del change["lsn"]
        if change.get("table") == "items":
            change.pop("key", None)  # a capture doesn't tell the key under REPLICA IDENTITY FULL
    assert changes == expected
    others = {change["message"] for change in shown if "message" in change}
    assert others == {"Relation"}
    assert [c["op"] for c in shown if c.get("op") in ("B", "C")] == ["B", "C"] * 9


def test_a_raw_capture_is_printed_message_by_message(database, pgcdc, tmp_path):
    shop = with_changes(database)
    capture(shop, tmp_path / "raw")
    text = show(pgcdc, "raw", "--format", "pretty")
    starts = ("Begin final_lsn=", "Relation public.orders (id*", "Insert public.items sku=sku1", "Commit ")
    for start in starts:
        assert any(line.startswith(start) for line in text.splitlines())
    assert len([line for line in text.splitlines() if line.startswith("Truncate")]) == 2
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_raw_capture_that_is_not_utf8_has_its_bytes_escaped(encoded, tmp_path, pgcdc, encoding):
    """As in `pgcdc slot peek`; a capture doesn't say which encoding it has."""
    database = encoded(encoding)
    database.send(b'CREATE TABLE "\xe9" (a int PRIMARY KEY, "b\xe9" text, c json, d text[])')
    database.slot = database.create_slot()
    database.send(b"INSERT INTO \"\xe9\" VALUES (1, 'caf\xe9', '{\"k\": \"\xe9\"}', '{\xe9}')")
    database.execute(f"SET client_encoding = {encoding}")
    capture(database, tmp_path / "raw", publication_names="pub")
    [change] = map(json.loads, show(pgcdc, "raw", "--table", "public.*").splitlines()[1:])
    assert change["table"] == "\\xe9"
    assert change["new"] == {"a": 1, "b\\xe9": "caf\\xe9", "c": {"k": "\\xe9"}, "d": "{\\\\xe9}"}


def test_streamed_transactions_of_a_capture(database, pgcdc, tmp_path):
    shop = with_changes(database)
    shop.execute("SET logical_decoding_work_mem = '64kB'")
    shop.execute(
        "BEGIN; INSERT INTO items SELECT n::text, n FROM generate_series(1, 3000) n; SAVEPOINT s;"
        " INSERT INTO items SELECT 's' || n::text, n FROM generate_series(1, 3000) n; ROLLBACK TO s; COMMIT"
    )
    modes = {"2": "on", "4": "parallel"} if shop.server.version >= 16 else {"2": "on"}
    for version, streaming in modes.items():
        capture(shop, tmp_path / "raw", version, streaming=streaming)
        shown = [json.loads(line) for line in show(pgcdc, "raw").splitlines()]
        messages = {change.get("message") for change in shown}
        assert {"Stream Start", "Stream Stop", "Stream Abort", "Stream Commit"} <= messages
        aborts = [change for change in shown if change.get("message") == "Stream Abort"]
        assert all((abort["abort_lsn"] is not None) == (streaming == "parallel") for abort in aborts)
        streamed = [change for change in shown if "op" in change and change.get("commit_lsn", 1) is None]
        assert len(streamed) >= 3000
        assert all(change["seq"] is None for change in streamed)
        assert show(pgcdc, "raw", "--format", "pretty").count("Stream Start") > 1
        counted = json.loads(show(pgcdc, "raw", "--stat", "--json"))
        assert (counted["transactions"], counted["largest"]) == (None, [])


def test_streamed_changes_of_a_capture_are_not_chosen_by_a_commit_that_they_lack(database, pgcdc, tmp_path):
    shop = with_changes(database)
    shop.execute("SELECT pg_logical_emit_message(false, 'p', 'c')")
    capture(shop, tmp_path / "raw", messages="true")
    changes = [line for line in show(pgcdc, "raw").splitlines() if '"op"' in line]
    chosen = show(pgcdc, "raw", "--since", "0/0").splitlines()
    assert [line for line in chosen if '"op"' in line] == changes
    shop.execute("SET logical_decoding_work_mem = '64kB'")
    shop.execute("INSERT INTO items SELECT n::text, n FROM generate_series(1, 3000) n")
    capture(shop, tmp_path / "raw", "2", streaming="on")
    for options in (["--since", "0/0"], ["--until", "2h"], ["--at", "0/1"]):
        ran = pgcdc("show", "raw", *options)
        assert ran.status == 2
        assert ran.err.startswith("pgcdc: error: could not choose changes by --")


@pytest.mark.parametrize("form", ["jsonl", "pretty"])
def test_a_capture_in_binary_is_shown_as_one_in_text(database, pgcdc, tmp_path, form):
    shop = with_changes(database)
    for name, value in SESSION_SETTINGS.items():
        shop.execute(f"SET {name} = '{value}'")
    capture(shop, tmp_path / "text")
    capture(shop, tmp_path / "binary", binary="true")
    assert (tmp_path / "text").read_bytes() != (tmp_path / "binary").read_bytes()
    assert show(pgcdc, "binary", "--format", form) == show(pgcdc, "text", "--format", form)


def test_what_has_no_reader_is_shown_in_hexadecimal(database18, pgcdc, tmp_path):
    shop = with_changes(database18)
    shop.execute("CREATE TABLE priced (a int PRIMARY KEY, price money); INSERT INTO priced VALUES (1, 2)")
    capture(shop, tmp_path / "binary", binary="true")
    assert '"new":{"a":1,"price":"\\\\x00000000000000c8"}' in show(pgcdc, "binary")


def test_a_damaged_value_is_an_error_that_names_column_and_place(database18, pgcdc, tmp_path):
    shop = with_changes(database18)
    capture(shop, tmp_path / "binary", binary="true")
    data = (tmp_path / "binary").read_bytes()
    (tmp_path / "binary").write_bytes(data.replace(b"b\0\0\0\x01\x01", b"b\0\0\0\x01\x07", 1))
    ran = pgcdc("show", "binary")
    assert ran.status == 8
    reason = 'column "ok" is not what its type sends in binary: it is neither 0 nor 1, in the message at'
    assert reason in ran.err
