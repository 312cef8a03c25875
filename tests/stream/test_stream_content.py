"""What arrives from a slot, in every format and from every kind of database."""

import base64
import json
import os
import pty
import re
import subprocess
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from processes import shown_on, stream_command
from segments import contents
from stream_runs import NOW, insert, stream

EMIT = "SELECT pg_logical_emit_message(%s, %s, %s::bytea)"


@pytest.fixture
def messages(database) -> str:
    """A slot with a row, a message in its transaction, one outside, and one that isn't text."""
    database.execute("CREATE TABLE t (a int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE t")
    slot = database.create_slot()
    with database.connection.transaction():
        database.execute("INSERT INTO t VALUES (1)")
        database.execute(EMIT, (True, "inside", b"committed"))
    with database.connection.transaction(force_rollback=True):
        database.execute(EMIT, (True, "inside", b"rolled back"))
        database.execute(EMIT, (False, "outside", "not undone: ä".encode()))
    database.execute(EMIT, (False, "bytes", b"\xff\x00"))
    database.execute("INSERT INTO t VALUES (2)")
    return slot


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_messages_arrive_when_asked_for(database, messages):
    copy = database.copy_slot(messages)
    changes = lines(stream(database.uri, messages, "--messages", "--endpos", "now").stdout)
    assert [change["op"] for change in changes] == ["I", "M", "M", "M", "I"]
    inside, outside, binary = changes[1:4]
    assert (inside["transactional"], inside["prefix"], inside["content"]) == (True, "inside", "committed")
    assert (inside["xid"], inside["seq"]) == (changes[0]["xid"], 1)
    assert (outside["transactional"], outside["content"]) == (False, "not undone: ä")
    assert base64.b64decode(binary["content_base64"]) == b"\xff\x00"
    without = lines(stream(database.uri, copy, "--endpos", "now").stdout)
    assert [change["op"] for change in without] == ["I", "I"]


@pytest.mark.parametrize("form", ["jsonl", "arrow"])
def test_messages_have_a_folder_of_their_own(database, messages, tmp_path, form):
    out = tmp_path / "out"
    arguments = ["-D", str(out), "--format", form, "--messages", "--endpos", "now"]
    assert stream(database.uri, messages, *arguments).returncode == 0
    found = contents(out)
    kept = [entry for entry in found["_messages"] if not isinstance(entry, pa.Schema)]
    assert len(kept) == 3
    assert {path.parent.name for path in out.glob("*/0*")} == {"_messages", "public.t"}
    assert stream(database.uri, messages, *arguments).returncode == 0
    assert contents(out) == found


def test_messages_in_pretty_output(database, messages):
    run = stream(database.uri, messages, "--messages", "--format", "pretty", "--endpos", "now")
    assert run.returncode == 0
    for word in ("inside", "committed", "outside", "not undone: ä", "bytes"):
        assert word in run.stdout


def test_transactions_stand_between_begin_and_commit(database18):
    database18.execute(
        "CREATE TABLE t (a int); CREATE TABLE u (a int); CREATE PUBLICATION pub FOR TABLE t, u"
    )
    slot = database18.create_slot()
    with database18.connection.transaction():
        for table in ("t", "u", "t"):
            database18.execute(f"INSERT INTO {table} VALUES (1)")
    database18.execute("INSERT INTO u VALUES (2)")
    run = stream(database18.uri, slot, "--transactions", "--endpos", "now")
    changes = lines(run.stdout)
    assert [change["op"] + change.get("table", "") for change in changes] == [
        "B", "It", "Iu", "It", "C", "B", "Iu", "C",
    ]  # fmt: skip
    assert {change["commit_lsn"] for change in changes[:5]} == {changes[0]["commit_lsn"]}


def test_one_stream_keeps_the_order_of_all_tables(database18, tmp_path):
    database18.execute(
        "CREATE TABLE t (a int); CREATE TABLE u (a int); CREATE PUBLICATION pub FOR TABLE t, u"
    )
    slot = database18.create_slot()
    for number in range(20):
        database18.execute(f"INSERT INTO {'tu'[number % 2]} VALUES ({number})")
    out = tmp_path / "out"
    run = stream(database18.uri, slot, "-D", str(out), "--layout", "stream", "--endpos", "now")
    assert (run.returncode, run.stderr) == (0, "")
    [(table, found)] = contents(out).items()
    assert table is None
    assert [json.loads(line)["new"]["a"] for line in found] == list(range(20))


@pytest.mark.parametrize(("method", "suffix"), [("gzip", "gz"), ("zstd", "zst")])
def test_compressed_files_read_as_the_plain_ones(database18, tmp_path, method, suffix):
    database18.execute("CREATE TABLE t (a int, b text); CREATE PUBLICATION pub FOR TABLE t")
    slot = database18.create_slot()
    database18.execute("INSERT INTO t SELECT g, repeat('abc', 100) FROM generate_series(1, 5000) g")
    plain = stream(database18.uri, database18.copy_slot(slot), "--endpos", "now").stdout
    copy, out, file = database18.copy_slot(slot), tmp_path / "out", tmp_path / "file"
    for where in (["-D", str(out)], ["-f", str(file)]):
        name = slot if where[0] == "-D" else copy
        run = stream(database18.uri, name, *where, "--compression", method, "--endpos", "now")
        assert (run.returncode, run.stderr) == (0, "")
    [path] = out.glob("public.t/*")
    assert path.name.endswith(f".jsonl.{suffix}")
    for stored in (path, file):
        with pa.input_stream(stored, compression=method) as read:
            assert read.read().decode() == plain
        assert stored.stat().st_size < len(plain) / 10


def test_numeric_as_a_number(database18):
    database18.execute("CREATE TABLE t (a numeric); CREATE PUBLICATION pub FOR TABLE t")
    slot = database18.create_slot()
    database18.execute("INSERT INTO t VALUES (12345678901234567890.123), ('NaN')")
    copy = database18.copy_slot(slot)
    text = stream(database18.uri, slot, "--endpos", "now").stdout
    assert [line["new"]["a"] for line in lines(text)] == ["12345678901234567890.123", "NaN"]
    number = stream(database18.uri, copy, "--numeric", "number", "--endpos", "now").stdout
    assert '"new":{"a":12345678901234567890.123}' in number
    assert '"new":{"a":"NaN"}' in number


def on_a_terminal(line: list[str], **environment: str) -> tuple[int, str]:
    """Run a command whose standard streams are one terminal; return its status and all it printed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        line, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"} | environment
    )
    os.close(theirs)
    printed = shown_on(ours)
    return process.wait(), printed.decode()


def test_a_person_at_a_terminal_gets_colours_and_no_progress(database18):
    database18.execute("CREATE TABLE t (a int PRIMARY KEY, b text); CREATE PUBLICATION pub FOR TABLE t")
    slot = database18.create_slot()
    database18.execute("INSERT INTO t VALUES (1, E'\\x1b[31mred')")
    line = stream_command(database18.uri, slot, "--endpos", "now")
    status, printed = on_a_terminal(line)
    assert status == 0
    assert "\x1b[" in printed
    assert "\x1b[31mred" not in printed
    assert "public.t" in printed
    assert "rows/s" not in printed
    status, plain = on_a_terminal(line, NO_COLOR="1")
    assert status == 0
    assert "\x1b" not in plain
    assert plain.replace("\r\n", "\n") == re.sub("\x1b\\[[0-9;]*m", "", printed).replace("\r\n", "\n")


@pytest.mark.parametrize(("count", "rows"), [(1, "1 row"), (1000, "1,000 rows")])
def test_a_person_who_writes_to_files_sees_progress(database18, tmp_path, count, rows):
    database18.execute("CREATE TABLE t (a int); CREATE PUBLICATION pub FOR TABLE t")
    slot = database18.create_slot()
    database18.execute("INSERT INTO t SELECT generate_series(1, %s)", (count,))
    arguments = ["-D", str(tmp_path / "out"), "--idle-timeout", "1200ms"]
    status, printed = on_a_terminal(stream_command(database18.uri, slot, *arguments))
    assert status == 0
    shown = [text for text in re.split("\r\x1b\\[K|\r\n", printed) if text]
    assert len(shown) >= 2
    line = rf"lag \d+(\.\d)? (bytes|kB), durable to \S+; {rows} in 1 transaction"
    assert any(re.fullmatch(rf"[\d,]+ rows/s, {line}", text) for text in shown[:-1])
    assert re.fullmatch(rf"pgcdc: ([\d,]+ rows/s, )?{line}", shown[-1])
    assert "lag 0 bytes, " in shown[-1]


def test_on_a_dumb_terminal_progress_rewrites_no_line(database18, tmp_path):
    database18.execute("CREATE TABLE t (a int); CREATE PUBLICATION pub FOR TABLE t")
    arguments = ["-D", str(tmp_path / "out"), "--idle-timeout", "1200ms"]
    line = stream_command(database18.uri, database18.create_slot(), *arguments)
    status, printed = on_a_terminal(line, TERM="dumb")
    assert status == 0
    assert re.fullmatch(r"pgcdc: lag .*; 0 rows in 0 transactions\r\n", printed)


def test_raw_output_is_byte_for_byte_that_of_pg_recvlogical(database, tmp_path):
    database.execute("CREATE TABLE t (a int PRIMARY KEY, b text); CREATE PUBLICATION pub FOR TABLE t")
    slot = database.create_slot()
    database.execute("INSERT INTO t SELECT g, E'a\\nb' FROM generate_series(1, 1000) g")
    database.execute("UPDATE t SET b = NULL WHERE a < 10; DELETE FROM t WHERE a > 990; TRUNCATE t")
    end = database.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0]
    copy, theirs, ours = database.copy_slot(slot), tmp_path / "theirs", tmp_path / "ours"
    subprocess.run(
        [
            str(database.server.bin / "pg_recvlogical"), "-d", database.uri, "-S", copy, "--start", "-n",
            "-f", str(theirs), "-o", "proto_version=1", "-o", "publication_names=pub", "-E", end,
        ],
        check=True,
    )  # fmt: skip
    run = stream(database.uri, slot, "--format", "raw", "-f", str(ours), "--endpos", end)
    assert (run.returncode, run.stderr) == (0, "")
    assert ours.read_bytes() == theirs.read_bytes()
    assert ours.stat().st_size > 10_000


def test_raw_output_takes_any_options_of_any_plugin(database18):
    database18.execute("CREATE TABLE t (a int); CREATE PUBLICATION pub FOR TABLE t")
    slot = database18.create_slot()
    database18.execute("INSERT INTO t VALUES (1)")
    options = ["-o", "proto_version=4", "-o", "publication_names=pub", "-o", "streaming=on", "-E", "now"]
    line = stream_command(database18.uri, slot, "--format", "raw", *options, publications=())
    run = subprocess.run(line, capture_output=True, check=True)
    assert run.stdout[:1] == b"B"
    assert run.stderr == b""


def test_a_database_in_latin_1(server18, database18):
    name = f"{database18.name}_latin"
    database18.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    uri = server18.uri(name)
    with psycopg.connect(uri, autocommit=True) as latin:
        latin.execute(
            'CREATE TABLE "grüße" (a int PRIMARY KEY, "ä" text); CREATE PUBLICATION pub FOR ALL TABLES'
        )
        latin.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
        latin.execute("INSERT INTO \"grüße\" VALUES (1, 'é ß ÿ')")
    run = stream(uri, name, "--endpos", "now")
    database18.execute(f"SELECT pg_drop_replication_slot('{name}')")
    database18.execute(f"DROP DATABASE {name}")
    assert (run.returncode, run.stderr) == (0, "")
    [change] = lines(run.stdout)
    assert (change["table"], change["new"]) == ("grüße", {"a": 1, "ä": "é ß ÿ"})


def test_the_environment_does_not_change_how_values_look(database18, monkeypatch):
    database18.execute(
        "CREATE TABLE t (a timestamptz, b bytea, c float8); CREATE PUBLICATION pub FOR TABLE t"
    )
    slot = database18.create_slot()
    database18.execute("INSERT INTO t VALUES ('2026-07-01 12:00+00', '\\x00ff', 0.1)")
    plain = stream(database18.uri, database18.copy_slot(slot), "--endpos", "now").stdout
    for name, value in {
        "PGTZ": "Asia/Tokyo",
        "PGDATESTYLE": "German",
        "PGCLIENTENCODING": "LATIN1",
        "PGOPTIONS": "-c bytea_output=escape -c extra_float_digits=-3",
        "LC_ALL": "C",
    }.items():
        monkeypatch.setenv(name, value)
    line = stream_command(database18.uri, slot, "--endpos", "now")
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == plain
    assert lines(plain)[0]["new"]["a"] == "2026-07-01 12:00:00+00"


def test_unlogged_and_temporary_tables_are_not_in_the_log(database18):
    database18.execute("CREATE PUBLICATION pub FOR ALL TABLES; CREATE UNLOGGED TABLE u (a int)")
    slot = database18.create_slot()
    database18.execute("CREATE TEMPORARY TABLE x (a int); INSERT INTO u VALUES (1); INSERT INTO x VALUES (1)")
    run = stream(database18.uri, slot, "--endpos", "now")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_what_the_server_forgets_of_a_column_stays_in_its_schema_file(source, tmp_path):
    """Rows older than the column have its default, which only the catalog has, and may forget."""
    slot, out = source.create_slot(), tmp_path / "out"
    insert(source, 1, 1)
    source.execute("ALTER TABLE t ADD c int DEFAULT 5")
    insert_more(source, slot, out, 2)
    known = column_facts(out, "c")
    assert (known["default"], known["missing"]) == ("5", "5")
    source.execute("ALTER TABLE t ALTER c DROP DEFAULT")
    with psycopg.connect(source.uri, autocommit=True) as connection:
        connection.execute("VACUUM FULL t")
    insert_more(source, slot, out, 3)
    assert column_facts(out, "c") == known
    source.execute("ALTER TABLE t DROP c; ALTER TABLE t ADD c int")
    insert_more(source, slot, out, 4)
    assert (column_facts(out, "c")["default"], column_facts(out, "c")["missing"]) == (None, None)


def insert_more(database, slot: str, out: Path, number: int) -> None:
    insert(database, number, number)
    run = stream(database.uri, slot, "-D", str(out), *NOW)
    assert (run.returncode, run.stderr) == (0, "")


def column_facts(out: Path, name: str) -> dict:
    """The facts of a column in the schema files; of several with one name, those of the newest."""
    found = [json.loads(path.read_text())["facts"]["columns"] for path in (out / "schemas").iterdir()]
    return max((one[name] for one in found if name in one), key=lambda column: column["position"])
