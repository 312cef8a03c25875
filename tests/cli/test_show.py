"""`pgcdc show`: what streams wrote comes out again, in order and the same from every format."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from pgcdc_cli.lsn import Lsn

TABLES = """
CREATE TABLE orders (
    id int8 PRIMARY KEY, total numeric(10,2), price numeric, note text, doc jsonb, raw json, at timestamptz,
    local timestamp, day date, clock time, numbers int4[], words text[], small float4, large float8, ok bool,
    bytes bytea, part int4range, gone uuid);
CREATE TABLE items (sku text PRIMARY KEY, n int);
ALTER TABLE items REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR ALL TABLES;
"""

CHANGES = [
    r"""INSERT INTO orders VALUES
        (1, 12.50, 1e30, E'a\x1b[31mred\u009b2J \\ " é', '{"k": [1.10, null]}', E'{"a":\n1, "a": 2}',
         '2026-01-02 03:04:05.5+00', '0044-03-15 10:00:00 BC', '10000-01-01', '23:59:59.999999',
         '{1,NULL,3}', '{"a b",NULL,"NULL","","x,y","q\"\\"}', 0.1, -1.5e-7, true, '\x00ff', '[1,5)',
         '00000000-0000-0000-0000-000000000001'),
        (2, 'NaN', 'NaN', '', 'null', '1', 'infinity', '-infinity', 'infinity', '24:00',
         '{{1,2},{3,4}}', '[0:1]={a,b}', 'NaN', '-Infinity', false, '', 'empty', NULL),
        (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
         '{}', NULL, 3.4e38, 1e-320, NULL, NULL, NULL, NULL)""",
    "INSERT INTO items SELECT 'sku' || n, n FROM generate_series(1, 5) n",
    "BEGIN; UPDATE items SET n = n + 1 WHERE n > 3; UPDATE orders SET id = 20 WHERE id = 2; COMMIT",
    "INSERT INTO orders (id, note) SELECT 50, string_agg(md5(i::text), '') FROM generate_series(1, 1000) i",
    "UPDATE orders SET total = 1 WHERE id = 50",
    "DELETE FROM orders WHERE id = 1",
    "SELECT pg_logical_emit_message(true, 'app', 'hi'), pg_logical_emit_message(true, 'app', '\\xff'::bytea)",
    "TRUNCATE orders, items CASCADE",
    "INSERT INTO items VALUES ('last', 1)",
]


def with_changes(database):
    """A slot with every kind of change behind it."""
    database.execute(TABLES)
    database.slot = database.create_slot()
    for change in CHANGES:
        database.execute(change)
    return database


@pytest.fixture
def shop(database18):
    return with_changes(database18)


@pytest.fixture
def stream(shop, pgcdc):
    """Stream the shop's changes; each call reads them from the start."""

    def run(*arguments):
        slot = shop.copy_slot(shop.slot)
        ran = pgcdc(
            "stream",
            "-d",
            shop.uri,
            "-S",
            slot,
            "--publication",
            "p",
            "--messages",
            "--endpos",
            "now",
            *arguments,
        )
        assert (ran.status, ran.err) == (0, "")
        return ran.out

    return run


@pytest.fixture
def lines(stream):
    """The changes as one stream of JSON lines."""
    return stream("-f", "-", "--format", "jsonl")


def show(pgcdc, *arguments, **settings):
    ran = pgcdc("show", *arguments, **settings)
    assert (ran.status, ran.err) == (0, "")
    return ran.out


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_a_directory_of_json_lines_is_the_stream_again(stream, lines, pgcdc, compression):
    stream("-D", "d", "--compression", compression)
    assert len(lines.splitlines()) == 19
    assert show(pgcdc, "d") == lines


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_directory_of_arrow_files_is_the_same_stream(stream, lines, pgcdc, compression):
    stream("-D", "d", "--format", "arrow", "--compression", compression)
    assert show(pgcdc, "d") == lines


def test_several_segments_are_the_same_stream(shop, stream, lines, pgcdc, tmp_path):
    slot = shop.copy_slot(shop.slot)
    for _ in range(3):
        stream("-D", "d", "-S", slot, "--max-transactions", "2")
    stream("-D", "d", "-S", slot)
    assert len((tmp_path / "d" / "manifest.jsonl").read_text().splitlines()) == 4
    assert show(pgcdc, "d") == lines


def test_one_file_with_transactions_is_shown_as_it_is(stream, pgcdc, tmp_path):
    stream("-f", "all.jsonl", "--transactions")
    assert show(pgcdc, "all.jsonl") == (tmp_path / "all.jsonl").read_text()
    stream("-D", "d", "--layout", "stream", "--transactions", "--compression", "gzip")
    assert show(pgcdc, "d") == (tmp_path / "all.jsonl").read_text()


def of_table(lines, table):
    return "".join(
        f"{line}\n" for line in lines.splitlines() if f'"schema":"public","table":"{table}"' in line
    )


def test_single_files_of_a_directory(stream, lines, pgcdc, tmp_path):
    for arguments in (["--compression", "zstd"], ["--format", "arrow"]):
        stream("-D", "d", *arguments)
        [orders] = (tmp_path / "d" / "public.orders").iterdir()
        [items] = (tmp_path / "d" / "public.items").iterdir()
        assert show(pgcdc, orders, items) == of_table(lines, "orders") + of_table(lines, "items")
        [messages] = (tmp_path / "d" / "_messages").iterdir()
        assert [json.loads(line)["prefix"] for line in show(pgcdc, messages).splitlines()] == ["app", "app"]
        shutil.rmtree(tmp_path / "d")


def test_an_arrow_file_far_from_its_directory_tells_what_it_can(stream, lines, pgcdc, tmp_path):
    stream("-D", "d", "--format", "arrow")
    [items] = (tmp_path / "d" / "public.items").iterdir()
    items.rename(tmp_path / "items.arrow")
    shown = [json.loads(line) for line in show(pgcdc, "items.arrow").splitlines()]
    expected = [json.loads(line) for line in of_table(lines, "items").splitlines()]
    for change in expected:
        change.pop("key", None)
    assert shown == expected


def test_table_patterns_and_limit(stream, lines, pgcdc):
    stream("-D", "d")
    assert show(pgcdc, "d", "--table", "public.orders") == of_table(lines, "orders")
    assert show(pgcdc, "d", "--table", "*.i?ems", "--table", "nothing") == of_table(lines, "items")
    assert len(show(pgcdc, "d", "--table", "_messages").splitlines()) == 2
    assert show(pgcdc, "d", "--limit", "3") == "".join(f"{line}\n" for line in lines.splitlines()[:3])


def test_pretty_is_for_people(stream, pgcdc):
    stream("-D", "d")
    text = show(pgcdc, "d", "--format", "pretty")
    assert "INSERT public.orders" in text
    assert "UPDATE public.items sku=sku4" in text
    assert "4 -> 5" in text
    assert "(unchanged)" in text
    assert "TRUNCATE public.orders CASCADE" in text
    assert "MESSAGE app" in text
    assert text.replace("\n", "").isprintable()


def on_a_terminal(arguments, cwd, **env):
    """Run pgcdc with a terminal as standard output; gives what reached it."""
    controller, terminal = os.openpty()
    clean = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "pgcdc_cli", *arguments],
        stdout=terminal,
        cwd=cwd,
        env={**clean, "TERM": "xterm", **env},
    )
    os.close(terminal)
    output = b""
    try:
        while chunk := os.read(controller, 65536):
            output += chunk
    except OSError:
        pass  # EIO: the other end is closed
    os.close(controller)
    assert process.wait(60) == 0
    return output.decode()


def test_on_a_terminal_it_is_pretty_and_coloured_unless_told_otherwise(stream, tmp_path):
    stream("-D", "d")
    assert "\x1b[32mINSERT\x1b[0m" in on_a_terminal(["show", "d"], tmp_path)
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = on_a_terminal(["show", "d"], tmp_path, **env)
        assert "INSERT public.orders" in plain
        assert "\x1b" not in plain


def test_no_value_steers_the_terminal(stream, lines, tmp_path):
    stream("-D", "d")
    for arguments in (["--format", "jsonl"], []):
        text = on_a_terminal(["show", "d", *arguments], tmp_path, NO_COLOR="1")
        assert text.replace("\r\n", "").isprintable()
    shown = on_a_terminal(["show", "d", "--format", "jsonl"], tmp_path).splitlines()
    assert [json.loads(line) for line in shown] == [json.loads(line) for line in lines.splitlines()]


def test_a_reader_that_goes_away_ends_it_as_sigpipe_would(stream, tmp_path):
    stream("-D", "d")
    command = (
        f"{sys.executable} -m pgcdc_cli show d d d d d d d d d d d d | head -n 1; echo ${{PIPESTATUS[0]}}"
    )
    ran = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[1] in ("0", "141")


def test_a_closed_pipe_is_quiet(stream, tmp_path):
    stream("-D", "d")
    command = f"exec {sys.executable} -m pgcdc_cli show d > >(exec 0<&-; sleep 1)"
    ran = subprocess.run(
        ["bash", "-c", f"({command}); echo $?"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == ("141\n", "")


def test_a_full_disk_is_said(stream, tmp_path):
    stream("-D", "d")
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "pgcdc_cli", "show", "d"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            check=False,
        )
    assert ran.returncode == 9
    assert ran.stderr == (
        "pgcdc: error: could not write to standard output: No space left on device\n"
        "hint: make room and run again\n"
    )


# Unfinished files


def kill_when_durable(shop, tmp_path):
    """A stream that was killed with changes in unfinished files, behind a checkpoint."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pgcdc_cli",
            "stream",
            "-d",
            shop.uri,
            "-S",
            shop.slot,
            "--publication",
            "p",
            "-D",
            "d",
            "-F",
            "0.2",
            "-s",
            "1",
        ],
        cwd=tmp_path,
    )
    checkpoint = tmp_path / "d" / "checkpoint.json"
    [(end,)] = shop.execute("SELECT pg_current_wal_insert_lsn()::text")
    try:
        for _ in range(300):
            if checkpoint.exists() and Lsn.parse(json.loads(checkpoint.read_bytes())["end_lsn"]) >= Lsn.parse(
                end
            ):
                break
            shop.execute("SELECT pg_sleep(0.1)")
        else:
            pytest.fail("nothing became durable")
    finally:
        process.kill()
        process.wait()


def test_partial_shows_what_is_durable_and_no_more(shop, stream, pgcdc, tmp_path):
    kill_when_durable(shop, tmp_path)
    assert show(pgcdc, "d") == ""
    durable = show(pgcdc, "d", "--partial")
    changes = stream("-f", "-", "--format", "jsonl").splitlines()
    assert durable.splitlines() == [line for line in changes if '"op":"M"' not in line]
    for torn in (tmp_path / "d").rglob("*.partial"):
        with torn.open("ab") as file:
            file.write(b'{"op":"I","ls')
    assert show(pgcdc, "d", "--partial") == durable


# Captures


def capture(shop, path, version="1", **options):
    """Write what pg_recvlogical would write."""
    given = [
        part
        for name, value in {"proto_version": version, "publication_names": "p", **options}.items()
        for part in (name, value)
    ]
    rows = shop.execute(
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, VARIADIC %s)",
        (shop.slot, given),
    )
    path.write_bytes(b"".join(bytes(data) + b"\n" for (data,) in rows))


def test_a_raw_capture_gives_the_same_changes(shop, lines, pgcdc, tmp_path):
    capture(shop, tmp_path / "raw", messages="true")
    shown = [json.loads(line) for line in show(pgcdc, "raw").splitlines()]
    changes = [change for change in shown if change.get("op", "B") not in "BC"]
    expected = [json.loads(line) for line in lines.splitlines()]
    for change in expected:
        del change["lsn"]
        change.pop("json_null", None)
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
    for start in (
        "Begin final_lsn=",
        "Relation public.orders (id*",
        "Insert public.items sku=sku1",
        "Commit ",
    ):
        assert any(line.startswith(start) for line in text.splitlines())
    assert len([line for line in text.splitlines() if line.startswith("Truncate")]) == 2
    assert text.replace("\n", "").isprintable()


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
        assert show(pgcdc, "raw", "--format", "pretty").count("Stream Start") > 1


# Damage


def refused_show(pgcdc, *arguments):
    ran = pgcdc("show", *arguments)
    error, hint = ran.err.splitlines()
    assert error.startswith("pgcdc: error: could not ")
    assert hint.startswith("hint: ")
    return ran.status, error.removeprefix("pgcdc: error: "), hint.removeprefix("hint: ")


DAMAGED = "the file was damaged or changed after it was written: restore it from a copy"
FOREIGN = "pgcdc shows its own files (JSON lines, Arrow) and what pg_recvlogical captured of pgoutput"


@pytest.fixture
def directory(stream, tmp_path):
    stream("-D", "d")
    return tmp_path / "d"


def test_a_changed_byte_is_found(directory, pgcdc):
    [file] = (directory / "public.items").iterdir()
    data = bytearray(file.read_bytes())
    data[data.index(b"sku1") + 3] ^= 1
    file.write_bytes(data)
    status, error, hint = refused_show(pgcdc, "d")
    assert (status, hint) == (10, DAMAGED)
    assert error.startswith(f'could not read "d/public.items/{file.name}": checksum ')


def test_a_cut_file_is_found_before_anything_is_shown(directory, pgcdc):
    [file] = (directory / "public.items").iterdir()
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    ran = pgcdc("show", "d")
    assert (ran.status, ran.out) == (10, "")
    assert ran.err == (
        f'pgcdc: error: could not read "d/public.items/{file.name}": {len(data) - 1} bytes where {len(data)}'
        f" were written\nhint: {DAMAGED}\n"
    )


def test_a_missing_file_is_found(directory, pgcdc):
    [file] = (directory / "public.orders").iterdir()
    file.unlink()
    error = f'could not read "d/public.orders/{file.name}": No such file or directory'
    assert refused_show(pgcdc, "d") == (10, error, DAMAGED)


def test_a_missing_schema_file_is_found(stream, pgcdc, tmp_path):
    stream("-D", "d", "--format", "arrow")
    for schema in (tmp_path / "d" / "schemas").iterdir():
        schema.unlink()
    status, error, hint = refused_show(pgcdc, "d")
    assert (status, hint) == (10, DAMAGED)
    assert error.startswith('could not read "d/schemas/')


def test_a_changed_schema_file_is_found(stream, pgcdc, tmp_path):
    stream("-D", "d", "--format", "arrow")
    for schema in (tmp_path / "d" / "schemas").iterdir():
        schema.write_text(schema.read_text().replace('"name":"sku"', '"name":"SKU"'))
    status, error, _ = refused_show(pgcdc, "d")
    assert status == 10
    assert error.endswith("its content doesn't have the fingerprint that its name says")


def test_a_damaged_manifest_is_found(directory, pgcdc):
    manifest = directory / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes()[:-5])
    status, error, _ = refused_show(pgcdc, "d")
    assert status == 10
    assert error.startswith('could not go on from "d/manifest.jsonl": ')


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"%PDF-1.7", "it is neither JSON lines nor Arrow nor pgoutput"),
        (b'{"op":"I"}\n', "line 1 is no change of pgcdc: KeyError('commit_lsn')"),
        (b'{"op":"X","commit_lsn":"0/1"}\n', "line 1 is no change of pgcdc: ValueError(\"unknown op 'X'\")"),
        (
            b"B123\n",
            (
                "could not decode Begin message: final LSN at byte 1 wants 8 bytes, 4 are left,"
                " in the message at byte 0"
            ),
        ),
        (
            b"E\nE\nEX",
            "could not decode StreamStop message: no line feed follows it, in the message at byte 4",
        ),
        (
            b"I\0\0\0\1N\0\0\n",
            "could not tell the table of a change: relation 1 is unknown, in the message at byte 0",
        ),
    ],
)
def test_what_is_no_file_of_ours_is_refused(pgcdc, tmp_path, content, reason):
    (tmp_path / "file").write_bytes(content)
    assert refused_show(pgcdc, "file") == (8, f'could not read "file": {reason}', FOREIGN)


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_damaged_compressed_file_is_refused(pgcdc, tmp_path, codec):
    line = b'{"op":"B","commit_lsn":"0/1","xid":1,"ts":"2026-01-02T03:04:05.678901Z"}\n'
    whole = bytes(pa.Codec(codec).compress(line * 1000))
    (tmp_path / "file").write_bytes(whole)
    assert show(pgcdc, "file").count("\n") == 1000
    for damaged in (whole[:-1], whole[:20] + b"\0" * 8 + whole[28:]):
        (tmp_path / "file").write_bytes(damaged)
        status, error, hint = refused_show(pgcdc, "file")
        assert (status, hint) == (8, FOREIGN)
        assert error.startswith('could not read "file": ')


def test_a_cut_arrow_file_is_refused(stream, pgcdc, tmp_path):
    stream("-D", "d", "--format", "arrow")
    [file] = (tmp_path / "d" / "public.items").iterdir()
    data = file.read_bytes()
    for size in (100, len(data) // 2, len(data) - 40):
        (tmp_path / "cut.arrow").write_bytes(data[:size])
        status, error, hint = refused_show(pgcdc, "cut.arrow")
        assert (status, hint) == (8, FOREIGN)
        assert error.startswith('could not read "cut.arrow": ')


def test_an_arrow_file_of_somebody_elses_is_refused(pgcdc, tmp_path):
    table = pa.table({"a": [1]})
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write(table)
    status, error, _ = refused_show(pgcdc, "a.arrow")
    assert status == 8
    assert error.startswith('could not read "a.arrow": its Arrow stream is damaged or not pgcdc\'s')


def test_an_empty_file_has_nothing(pgcdc, tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    assert show(pgcdc, "empty", "empty.gz") == ""


def test_no_such_file(refused):
    refused("show", "nope", status=2, error='could not open "nope": no such file', hint="see --help")


def test_a_directory_that_isnt_pgcdcs(refused):
    refused(
        "show",
        ".",
        status=2,
        error='could not read ".": it has neither manifest.jsonl nor checkpoint.json',
        hint="give the directory that pgcdc stream -D wrote, or single files",
    )
