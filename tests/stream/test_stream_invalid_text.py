"""Invalid text: where the stream stops, how it goes on, and that valid text is unchanged."""

import json
import re
import subprocess

import psycopg
import pytest
from processes import PGCDC, wait_until
from segments import contents, manifest
from stream_runs import NOW, stream

from pgcdc_cli.types.database_text import INVALID_NAME_HINT, SINGLE_BYTE_CODECS

HINT = "hint: fix it in the source before it is read, or continue with --invalid-text replace or escape\n"
CONNECTOR = ("-c", "topic.prefix=p", "-c", "snapshot.mode=never")
ROWS = 100
"""Enough rows to be decoded as columns."""


def run(database, tmp_path, *arguments: str) -> subprocess.CompletedProcess[str]:
    slot = database.slot
    return stream(database.uri, slot, "-D", str(tmp_path / "out"), *NOW, *arguments)


def rows(tmp_path, table: str = "public.t") -> list[dict]:
    return [json.loads(line)["new"] for line in contents(tmp_path / "out")[table]]


def insert(database, value: bytes) -> None:
    database.slot = database.create_slot()
    database.send(b"INSERT INTO t VALUES (5, '%b')" % value)


def more_rows(database) -> None:
    database.execute(f"INSERT INTO t SELECT g, 'row' FROM generate_series(100, {100 + ROWS}) g")


@pytest.mark.parametrize("many", [False, True])
def test_a_stop_names_table_column_key_and_position(encoded, tmp_path, many):
    database = encoded("SQL_ASCII")
    insert(database, b"a\xffb")
    if many:
        more_rows(database)
    ran = run(database, tmp_path)
    assert ran.returncode == 8
    first, hint = ran.stderr.splitlines(keepends=True)
    assert first.startswith(
        'pgcdc: error: could not decode column "b" in the row with a=5 of table "public.t":'
        " it is not valid UTF-8 (LSN "
    )
    assert hint == HINT


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(("option", "text"), [("replace", "a�é"), ("escape", "a\\xffé")])
def test_a_stream_goes_on_where_that_is_asked_for(encoded, tmp_path, many, option, text):
    database = encoded("SQL_ASCII")
    insert(database, b"a\xff\xc3\xa9")
    if many:
        more_rows(database)
    ran = run(database, tmp_path, "--invalid-text", option)
    assert ran.returncode == 0, ran.stderr
    assert rows(tmp_path)[0] == {"a": 5, "b": text}
    assert ran.stderr.count("pgcdc: warning") == 1
    assert 'column "b" of table "public.t"' in ran.stderr
    [file] = manifest(tmp_path / "out")[0]["files"]
    assert file["invalid_text"] == 1


@pytest.mark.parametrize("form", ["arrow", "debezium"])
def test_every_format_can_go_on(encoded, tmp_path, form):
    database = encoded("SQL_ASCII")
    insert(database, b"a\xffb")
    more = CONNECTOR if form == "debezium" else ()
    ran = run(database, tmp_path, "--format", form, "--invalid-text", "escape", *more)
    assert ran.returncode == 0, ran.stderr
    assert "\\\\xffb" in str(contents(tmp_path / "out"))


def test_debezium_replaces_unless_told_otherwise(encoded, tmp_path):
    database = encoded("SQL_ASCII")
    insert(database, b"a\xffb")
    assert (
        run(database, tmp_path, "--format", "debezium", *CONNECTOR, "--invalid-text", "stop").returncode == 8
    )
    ran = run(database, tmp_path, "--format", "debezium", *CONNECTOR)
    assert ran.returncode == 0, ran.stderr
    assert "a\ufffdb".encode() in b"".join(path.read_bytes() for path in (tmp_path / "out").glob("*/*.jsonl"))


def test_bad_bytes_in_a_database_of_utf8_are_no_end(encoded, tmp_path):
    """As when the encoding was changed in the catalog, or an extension's function let them in."""
    database = encoded("SQL_ASCII")
    database.slot = database.create_slot()
    database.send(b"INSERT INTO t VALUES (5, 'a\xffb')")
    database.execute("UPDATE pg_database SET encoding = 6 WHERE datname = current_database()")
    assert run(database, tmp_path).returncode == 8
    ran = run(database, tmp_path, "--invalid-text", "escape")
    assert ran.returncode == 0, ran.stderr
    assert rows(tmp_path) == [{"a": 5, "b": "a\\xffb"}]
    for other in ((), ("--invalid-text", "replace")):
        assert run(database, tmp_path, *other).returncode == 2


def test_what_has_no_equivalent_in_utf8_is_no_end(encoded, tmp_path):
    database = encoded("WIN1252")
    insert(database, b"\x81\xe9")
    stopped = stream(database.uri, database.slot, "-f", str(tmp_path / "stopped"), *NOW)
    assert stopped.returncode == 8
    assert re.fullmatch(
        f'pgcdc: error: could not receive from slot "{database.slot}": character with byte sequence 0x81 in'
        r' encoding "WIN1252" has no equivalent in encoding "UTF8" \(LSN [0-9A-F]+/[0-9A-F]+\)\n'
        f"hint: --peek --invalid-text escape shows which column it is: {HINT.removeprefix('hint: ')}",
        stopped.stderr,
    )
    looked = stream(database.uri, database.slot, "--peek", "--invalid-text", "escape", *NOW)
    assert 'column "b" of table "public.t" has invalid text' in looked.stderr
    ran = run(database, tmp_path, "--invalid-text", "escape")
    assert ran.returncode == 0, ran.stderr
    assert rows(tmp_path) == [{"a": 5, "b": "\\x81é"}]


@pytest.mark.parametrize("option", [(), ("--invalid-text", "escape")])
@pytest.mark.parametrize(("encoding", "codec"), [("LATIN1", "latin-1"), ("EUC_JP", "euc_jp")])
def test_names_and_values_of_other_encodings_are_utf8(encoded, tmp_path, encoding, codec, option):
    word = {"LATIN1": "Größe", "EUC_JP": "日本"}[encoding]
    database = encoded(encoding)
    database.send(f'CREATE TABLE "{word}" (a int PRIMARY KEY, "{word}" text)'.encode(codec))
    database.slot = database.create_slot()
    database.send(f"""INSERT INTO "{word}" VALUES (1, '{word}')""".encode(codec))
    ran = run(database, tmp_path, *option)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert rows(tmp_path, f"public.{word}") == [{"a": 1, word: word}]


def test_json_and_arrays_stay_what_they_are(encoded, tmp_path):
    database = encoded("SQL_ASCII")
    database.send(b"CREATE TABLE nested (a int PRIMARY KEY, j json, l text[])")
    database.slot = database.create_slot()
    database.send(b"""INSERT INTO nested VALUES (1, '{"x": "\xff"}', '{"\xfe"}')""")
    for form in ("jsonl", "arrow"):
        out = tmp_path / form
        ran = stream(
            database.uri,
            database.copy_slot(database.slot),
            "-D",
            str(out),
            *NOW,
            "--format",
            form,
            "--invalid-text",
            "escape",
        )
        assert ran.returncode == 0, ran.stderr
        text = json.dumps(contents(out)["public.nested"], default=str)
        assert "\\\\xff" in text
        assert "xfe" in text


def test_raw_output_has_the_bytes_of_the_database(encoded, tmp_path):
    for encoding, value in (("SQL_ASCII", b"a\xffb"), ("WIN1252", b"a\x81\xe9")):
        database = encoded(encoding)
        insert(database, value)
        path = tmp_path / encoding
        ran = stream(database.uri, database.slot, "--format", "raw", "-f", str(path), *NOW)
        assert ran.returncode == 0, ran.stderr
        assert value in path.read_bytes()


def test_the_option_is_kept_and_means_nothing_for_raw_output(encoded, tmp_path):
    database = encoded("SQL_ASCII")
    insert(database, b"ok")
    assert run(database, tmp_path, "--invalid-text", "escape").returncode == 0
    assert run(database, tmp_path, "--invalid-text", "replace").returncode == 2
    ran = stream(database.uri, database.slot, "--format", "raw", "--invalid-text", "escape")
    assert ran.returncode == 2


def test_streamed_and_binary_text_is_mended_too(encoded, tmp_path):
    database = encoded("SQL_ASCII")
    database.slot = database.create_slot()
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    database.send(b"BEGIN; INSERT INTO t SELECT g, 'a\xff' FROM generate_series(1, 3000) g; COMMIT")
    ran = run(database, tmp_path, "--invalid-text", "replace", "--binary", "--proto-version", "2")
    assert ran.returncode == 0, ran.stderr
    assert {row["b"] for row in rows(tmp_path)} == {"a�"}
    assert sum(file["invalid_text"] for file in manifest(tmp_path / "out")[0]["files"]) == 3000


def test_codecs_are_the_servers_own(server18):
    """Each byte is the same character in Python and on the server, or invalid in both."""
    with psycopg.connect(server18.uri(), autocommit=True) as connection:
        for encoding, codec in SINGLE_BYTE_CODECS.items():
            for number in range(0x80, 0x100):
                ours = bytes([number]).decode(codec, "ignore")
                query = "SELECT convert_from(%s::bytea, %s)"
                try:
                    theirs = connection.execute(query, (bytes([number]), encoding)).fetchone()[0]
                except psycopg.DataError:
                    theirs = ""
                assert ours == theirs, (encoding, hex(number))


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "WIN1252"])
def test_rows_of_a_snapshot_are_mended_too(encoded, tmp_path, encoding):
    database = encoded(encoding)
    database.send(b"INSERT INTO t VALUES (5, 'a\x81b')")
    slot = ("--create-slot", "-c", "topic.prefix=p", "--format", "debezium", "--invalid-text", "escape")
    database.slot = f"slot_{encoding.lower()}"
    ran = run(database, tmp_path, *slot)
    assert ran.returncode == 0, ran.stderr
    assert "\\\\\\\\x81b" in str(contents(tmp_path / "out"))


def test_rows_that_come_one_by_one_are_mended_too(encoded, tmp_path, follow):
    """The second row is decoded by itself, since its table is known by then."""
    database, path = encoded("SQL_ASCII"), tmp_path / "out.jsonl"
    slot = database.create_slot()
    following = follow(database.uri, slot, path, "--invalid-text", "escape", "-F", "0.1s")
    for number in (1, 2):
        database.send(b"INSERT INTO t VALUES (%d, 'a\xff')" % number)
        wait_until(lambda: path.exists() and path.read_text().count("\n") == number)  # noqa: B023 - at once
    assert following.stop()[0] == 0
    found = [json.loads(line)["new"] for line in path.read_text().splitlines()]
    assert found == [{"a": 1, "b": "a\\xff"}, {"a": 2, "b": "a\\xff"}]


NAMES = (
    b'CREATE TABLE "t\xff" (a int PRIMARY KEY, "b\xff" text)',
    b"SELECT pg_replication_origin_create('o\xff')",
)
NAMED = (
    b"SELECT pg_logical_emit_message(true, 'p\xff', 'content\xff')",
    b"BEGIN",
    b"INSERT INTO \"t\xff\" VALUES (1, 'x')",
    b"PREPARE TRANSACTION 'g\xff'",
    b"COMMIT PREPARED 'g\xff'",
    b"SELECT pg_replication_origin_session_setup('o\xff')",
    b"INSERT INTO \"t\xff\" VALUES (2, 'y')",
    b"SELECT pg_replication_origin_session_reset()",
)


@pytest.fixture
def named(encoded):
    """A database in which no name is valid text."""
    database = encoded("SQL_ASCII")
    for statement in NAMES:
        database.send(statement)
    database.slot = database.create_slot(two_phase=True)
    for statement in NAMED:
        database.send(statement)
    yield database
    database.send(b"SELECT pg_replication_origin_drop('o\xff')")


WHOLE = ("-t", "--messages", "--layout", "stream")
MENDED = ("--invalid-text", "escape")


def test_names_that_are_no_text_end_the_stream_or_are_mended(named, tmp_path):
    stopped = run(named, tmp_path, *WHOLE)
    assert stopped.returncode == 8
    error, hint = stopped.stderr.splitlines()
    assert re.fullmatch(
        "pgcdc: error: could not decode Message message: prefix at byte 10 is not UTF-8: invalid start byte"
        r" at byte 11 \(LSN [0-9A-F]+/[0-9A-F]+\)",
        error,
    )
    assert hint == f"hint: {INVALID_NAME_HINT}"
    ran = run(named, tmp_path, *WHOLE, *MENDED)
    assert ran.returncode == 0, ran.stderr
    [lines] = contents(tmp_path / "out").values()
    message, *changes = [json.loads(line) for line in lines]
    assert message["prefix"] == "p\\xff"
    assert [one["new"] for one in changes] == [{"a": 1, "b\\xff": "x"}, {"a": 2, "b\\xff": "y"}]
    assert {one["table"] for one in changes} == {"t\\xff"}
    assert [one.get("origin") for one in changes] == [None, "o\\xff"]


@pytest.mark.parametrize(
    "form", [pytest.param("arrow", marks=pytest.mark.long), "debezium", "pretty", "wal2json"]
)
def test_every_format_has_an_answer_to_names_that_are_no_text(named, tmp_path, form):
    more = CONNECTOR if form == "debezium" else ()
    where = "-D" if form in {"arrow", "debezium"} else "-f"
    out = tmp_path / "out"
    options = ("-t", "--messages", "--format", form, *more, *MENDED)
    ran = stream(named.uri, named.slot, where, str(out), *NOW, *options)
    assert (ran.returncode, ran.stderr) == (0, "")
    written = b"".join(path.read_bytes() for path in [out, *out.rglob("*.*")] if path.is_file())
    assert b"b\\xff" in written.replace(b"\\\\", b"\\")


@pytest.mark.parametrize("becomes_utf8", [False, True])
def test_a_default_that_is_no_text_ends_the_stream_or_is_mended(encoded, tmp_path, becomes_utf8):
    """The server doesn't send it with the table, but it would be written to the schema file."""
    database = encoded("SQL_ASCII")
    database.send(b"CREATE TABLE d (a int PRIMARY KEY, b text DEFAULT 'd\xff')")
    database.slot = database.create_slot()
    database.execute("INSERT INTO d VALUES (1, 'x')")
    if becomes_utf8:
        database.execute("UPDATE pg_database SET encoding = 6 WHERE datname = current_database()")
    stopped = run(database, tmp_path)
    assert stopped.returncode == 8
    assert stopped.stderr == (
        'pgcdc: error: could not describe table "public.d": invalid byte sequence for encoding "UTF8": 0xff\n'
        "hint: a name or default in the catalog is not valid text: change it, or continue with --invalid-text"
        " replace or escape, or with --no-catalog\n"
    )
    ran = run(database, tmp_path, "--invalid-text", "replace")
    assert (ran.returncode, ran.stderr) == (0, "")
    [schema] = [json.loads(path.read_text()) for path in (tmp_path / "out" / "schemas").iterdir()]
    assert schema["facts"]["columns"]["b"]["default"] == "'d\ufffd'::text"


def test_slot_peek_shows_names_and_values_that_are_no_text(encoded):
    database = encoded("SQL_ASCII")
    database.send(NAMES[0])
    slot = database.create_slot()
    database.send(b"INSERT INTO \"t\xff\" VALUES (3, 'value\xfe')")
    peek = [*PGCDC, "slot", "peek", "-d", database.uri, slot]
    shown = subprocess.run(peek, capture_output=True, text=True, timeout=60, check=False)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr.endswith(" has invalid text: --invalid-text escape applies\n")
    assert 'public."t\\xff"' in shown.stdout
    assert "b\\xff" in shown.stdout
    assert "value\\xfe" in shown.stdout


@pytest.mark.parametrize("command", [["publication", "show"], ["publication", "drop"], ["slot", "show"]])
def test_a_name_on_the_command_line_is_utf8(server18, command):
    run = subprocess.run(
        [*PGCDC, *command, "-d", server18.uri(), b"p\xfc"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == (
        "pgcdc: error: could not read the command line: a name has the byte 0xfc, which is not UTF-8\n"
        "hint: names are given in UTF-8, whatever the database's encoding; rename what UTF-8 can't"
        " represent\n"
    )
