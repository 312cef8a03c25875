"""`pgcdc show` prints what streams wrote, in order, and the same from every format."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from processes import PGCDC, stream_command, wait_until
from segments import as_stream
from servers import Encoded
from show_tools import show, with_changes

from pgcdc_cli.lsn import Lsn
from pgcdc_cli.reader import directory_reader
from pgcdc_cli.reader.directory_reader import is_table, read_directory


@pytest.fixture
def lines(stream):
    """The slot's changes as JSON lines."""
    return stream("-f", "-", "--format", "jsonl")


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_a_directory_of_json_lines_is_the_stream_again(stream, lines, pgcdc, compression):
    stream("-D", "d", "--compression", compression)
    assert len(lines.splitlines()) == 19
    assert show(pgcdc, "d") == lines


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_directory_of_arrow_files_is_the_same_stream(stream, lines, pgcdc, compression):
    stream("-D", "d", "--format", "arrow", "--compression", compression)
    assert show(pgcdc, "d") == lines


def test_thousands_of_rows_of_one_arrow_file_are_all_shown(shop, stream, pgcdc):
    shop.execute("INSERT INTO items SELECT 'many ' || n, n FROM generate_series(1, 3000) n")
    stream("-D", "d", "--format", "arrow")
    assert show(pgcdc, "d") == stream("-f", "-", "--format", "jsonl")


def test_more_than_nine_parts_of_a_transaction_are_shown_in_their_order(shop, stream, pgcdc, tmp_path):
    alter = "ALTER TABLE items ADD c{0} int; INSERT INTO items (sku) VALUES ('with c{0}');"
    shop.execute("BEGIN;" + "".join(map(alter.format, range(11))) + "COMMIT")
    stream("-D", "d", "--format", "arrow")
    assert len(list((tmp_path / "d" / "public.items").iterdir())) > 10
    assert show(pgcdc, "d") == stream("-f", "-", "--format", "jsonl")
    # Earlier versions listed them in any order.
    listed = tmp_path / "d" / "manifest.jsonl"
    (segment,) = map(json.loads, listed.read_text().splitlines())
    listed.write_text(json.dumps({**segment, "files": segment["files"][::-1]}) + "\n")
    assert show(pgcdc, "d") == stream("-f", "-", "--format", "jsonl")


@pytest.mark.parametrize("options", [(), ("--compression", "gzip"), ("--format", "arrow")])
def test_standard_input_is_shown_as_a_file_on_its_own(stream, tmp_path, options):
    stream("-D", "d", *options)
    (file,) = (tmp_path / "d" / "public.items").iterdir()
    file = Path(shutil.copy(file, tmp_path))
    show = [*PGCDC, "show"]
    piped = subprocess.run([*show, "-"], input=file.read_bytes(), stdout=subprocess.PIPE, check=True)
    assert b'"table":"items"' in piped.stdout
    assert piped.stdout == subprocess.run([*show, file], stdout=subprocess.PIPE, check=True).stdout


@pytest.mark.parametrize("more", ["file", "stream", "bytes"])
def test_what_follows_an_arrow_file_is_not_left_out_in_silence(stream, pgcdc, tmp_path, more):
    stream("-D", "d", "--format", "arrow")
    (file,) = (tmp_path / "d" / "public.items").iterdir()
    data = as_stream(file.read_bytes()) if more == "stream" else file.read_bytes()
    (tmp_path / "two.arrow").write_bytes(data + (bytes(500) if more == "bytes" else data))
    ran = pgcdc("show", "two.arrow")
    assert ran.status == 8
    assert "another stream, or something else, follows: show one file at a time" in ran.err


def test_numbers_of_thousands_of_digits_come_again(shop, stream, pgcdc):
    long = "9" * 5000
    shop.execute("INSERT INTO orders (id, price, doc) VALUES (60, %s, %s)", (long, f"[{long}]"))
    lines = stream("-f", "-", "--numeric", "number")
    assert f'"price":{long},' in lines
    stream("-D", "d", "--numeric", "number")
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


def test_an_arrow_stream_is_read_as_a_file_is(stream, pgcdc, tmp_path):
    stream("-D", "d", "--format", "arrow")
    [items] = (tmp_path / "d" / "public.items").iterdir()
    file = items.read_bytes()
    (tmp_path / "stream").write_bytes(as_stream(file))
    (tmp_path / "file").write_bytes(file)
    assert show(pgcdc, "stream") == show(pgcdc, "file") != ""


def test_table_patterns_and_limit(stream, lines, pgcdc):
    stream("-D", "d")
    assert show(pgcdc, "d", "--table", "public.orders") == of_table(lines, "orders")
    assert show(pgcdc, "d", "--table", "*.i?ems", "--table", "*.ite*") == of_table(lines, "items")
    assert show(pgcdc, "d", "--table", "Orders", "--table", 'public."items"') == show(
        pgcdc, "d", "--table", "public.*"
    )
    assert len(show(pgcdc, "d", "--table", "_messages").splitlines()) == 2
    assert show(pgcdc, "d", "--limit", "3") == "".join(f"{line}\n" for line in lines.splitlines()[:3])


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ('public."Odd Name"', True),
        ("public.Odd Name", True),
        ('"Odd Name"', True),
        ("public.odd*", False),
        ("*Name", True),
        ("*.[NO]dd*", True),
        ("*", True),
        ("Odd Name", False),
    ],
)
def test_a_table_is_named_as_for_stream_or_as_it_is_stored(pattern, matches):
    assert is_table("public.Odd Name", pattern) is matches


@pytest.mark.parametrize("where", ["d", "all.jsonl"])
def test_a_pattern_that_fits_no_table_is_an_error_behind_what_others_show(stream, lines, pgcdc, where):
    """It isn't if --limit left something unread, because the table may be there."""
    stream("-D", "d")
    stream("-f", "all.jsonl")
    both = ("show", where, "--table", "*.items", "--table", "*.itmes")
    ran = pgcdc(*both)
    assert (ran.status, ran.out) == (2, of_table(lines, "items"))
    assert ran.err == (
        'pgcdc: error: could not find "*.itmes": no table with changes matches --table\n'
        "hint: a pattern is like schema.table, with * and ?, in quotes: 'public.*'\n"
    )
    assert pgcdc(*both, "--limit", "1").status == 0


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


def on_a_terminal(arguments, cwd, *, program=PGCDC, **env):
    """Run pgcdc with a terminal as standard output; return what reached it."""
    controller, terminal = os.openpty()
    given = {**os.environ, "NO_COLOR": None, "TERM": "xterm", "PAGER": "", **env}
    process = subprocess.Popen(
        [*program, *arguments],
        stdout=terminal,
        cwd=cwd,
        env={name: value for name, value in given.items() if value is not None},
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


def test_on_a_dumb_terminal_only_the_pager_that_is_asked_for_pages(stream, tmp_path, monkeypatch):
    """On one, less waits for a key before it shows anything."""
    stream("-D", "d")
    less = tmp_path / "bin" / "less"
    less.parent.mkdir()
    less.write_text("#!/bin/sh\nsed 's/^/|/'\n")
    less.chmod(0o755)
    path = f"{less.parent}:{os.environ['PATH']}"
    monkeypatch.setitem(os.environ, "PATH", path)
    paged = {
        term: on_a_terminal(["show", "d"], tmp_path, TERM=term, PAGER=None) for term in ("xterm", "dumb")
    }
    assert [text.startswith("|") for text in paged.values()] == [True, False]
    assert on_a_terminal(["show", "d"], tmp_path, TERM="dumb", PAGER="less").startswith("|")


def test_on_a_terminal_it_goes_through_the_pager(stream, tmp_path):
    stream("-D", "d")
    whole = on_a_terminal(["show", "d"], tmp_path, PAGER="")
    assert on_a_terminal(["show", "d"], tmp_path, PAGER="sed s/^/|/") == "".join(
        f"|{line}" for line in whole.splitlines(keepends=True)
    )
    # A pager that ends early, one that only copies, and one that doesn't exist.
    assert on_a_terminal(["show", "d"], tmp_path, PAGER="head -n 1") == whole.splitlines(keepends=True)[0]
    for pager in ("cat", "/nowhere/less"):
        assert on_a_terminal(["show", "d"], tmp_path, PAGER=pager) == whole


IN_A_SHELL = "trap : INT; stty -a >before; {} 2>errors; echo $? >status; stty -a >later; mv later after"


@contextmanager
def typed(tmp_path, *arguments, **env):
    """Run pgcdc under a shell with its own terminal, as in a window.

    Yields two functions: one types keys, one returns what the terminal has shown so far.
    """
    command = IN_A_SHELL.format(shlex.join([*PGCDC, *arguments]))
    spawn = "import pty, sys; pty.spawn(['sh', '-c', sys.argv[1]])"
    clean = {name: value for name, value in os.environ.items() if name not in {"LESS", "NO_COLOR"}}
    window = {"TERM": "xterm", "LINES": "24", "COLUMNS": "80"}
    line = [sys.executable, "-c", spawn, command]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    shown = []
    with subprocess.Popen(line, cwd=tmp_path, env={**clean, **window, **env}, **pipes) as process:
        reader = threading.Thread(target=lambda: shown.extend(iter(lambda: process.stdout.read(65536), b"")))
        reader.start()
        try:
            yield process.stdin.write, lambda: b"".join(shown)
            wait_until((tmp_path / "after").exists)
        finally:
            process.terminate()
            reader.join()


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.skipif(shutil.which("less") is None, reason="less is not installed")
def test_ctrl_c_in_the_pager_is_the_pagers(stream, tmp_path, times):
    stream("-D", "d")
    # This is far more than a pipe holds, so pgcdc is still writing when the key is pressed.
    with typed(tmp_path, "show", *["d"] * 300, LESS="R") as (keys, shown):
        wait_until(lambda: b"INSERT" in shown())
        for _ in range(times):
            keys(b"\x03")
        # The pager can go on to the last line that arrived.
        wait_until(lambda: keys(b"G") and b"(END)" in shown(), pause=0.5)
        keys(b"q")
    assert shown().count(b"\x1b[?1049h") == shown().count(b"\x1b[?1049l") == 1
    assert b"\x1b[?1049l" in shown()[-200:]
    assert (tmp_path / "status").read_text() == "0\n"
    assert (tmp_path / "errors").read_text() == ""
    assert (tmp_path / "after").read_text() == (tmp_path / "before").read_text()


TWICE = """
import os, signal, sys
from pgcdc_cli.cli import printing, show
from pgcdc_cli.cli.app import main
def press(*_):
    os.kill(os.getpid(), signal.SIGINT)
go_back = printing._return_to
printing._return_to = lambda terminal: (press(), go_back(terminal))
show._write = press
sys.argv = ["pgcdc", "show", "d", "--table", "unread"]
main()
"""


def test_ctrl_c_once_more_leaves_no_pager_behind(stream, tmp_path):
    """Nor is there an error about tables that may be in the part that was not read."""
    stream("-D", "d")
    waited = on_a_terminal(
        ["-c", TWICE], tmp_path, program=[sys.executable], PAGER="sh -c 'cat >/dev/null; echo end'"
    )
    assert waited == "end\r\n"


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
            [*PGCDC, "show", "d"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            check=False,
        )
    assert ran.returncode == 9
    assert ran.stderr == (
        'pgcdc: error: could not write "standard output": No space left on device\n'
        "hint: make room and run again\n"
    )


def test_output_that_cant_be_written_needs_no_room(stream, tmp_path):
    stream("-D", "d")
    command = [*PGCDC, "show", "d"]
    with Path("/dev/null").open() as unwritable:
        ran = subprocess.run(
            command, stdout=unwritable, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False
        )
    assert ran.returncode == 9
    assert ran.stderr == (
        'pgcdc: error: could not write "standard output": Bad file descriptor\n'
        "hint: check where standard output goes\n"
    )


# Unfinished files


def durable_lsn(checkpoint):
    return Lsn.parse(json.loads(checkpoint.read_bytes())["end_lsn"]) if checkpoint.exists() else Lsn(0)


def kill_when_durable(shop, tmp_path, *options):
    """Kill a stream that has changes in unfinished files, and a checkpoint that covers them."""
    line = stream_command(
        shop.uri, shop.slot, "-D", "d", "-F", "0.2", "-s", "1", *options, publications=["p"]
    )
    process = subprocess.Popen(line, cwd=tmp_path)
    [(end,)] = shop.execute("SELECT pg_current_wal_insert_lsn()::text")
    try:
        wait_until(lambda: durable_lsn(tmp_path / "d" / "checkpoint.json") >= Lsn.parse(end))
    finally:
        process.kill()
        process.wait()


def test_partial_shows_what_is_durable_and_no_more(shop, stream, pgcdc, tmp_path, capfd):
    kill_when_durable(shop, tmp_path)
    assert show(pgcdc, "d") == ""
    durable = show(pgcdc, "d", "--partial")
    changes = stream("-f", "-", "--format", "jsonl").splitlines()
    assert durable.splitlines() == [line for line in changes if '"op":"M"' not in line]
    assert on_a_terminal(["show", "d"], tmp_path) == ""
    count = len(durable.splitlines())
    assert capfd.readouterr().err == (
        f'pgcdc: "d" has {count} changes more, in a segment that isn\'t finished: add --partial\n'
    )
    for torn in (tmp_path / "d").rglob("*.partial"):
        with torn.open("ab") as file:
            file.write(b'{"op":"I","ls')
    assert show(pgcdc, "d", "--partial") == durable


def test_a_rotation_between_a_look_at_a_file_and_its_opening_is_none_of_the_reader_s_business(
    shop, tmp_path, monkeypatch
):
    kill_when_durable(shop, tmp_path)
    durable = [change.line for change in read_directory(tmp_path / "d", partial=True)]

    def rotate(_count):
        for file in (tmp_path / "d").rglob("*.partial"):
            file.rename(file.with_suffix(""))

    monkeypatch.setattr(directory_reader, "_allow_open_files", rotate)
    assert [change.line for change in read_directory(tmp_path / "d", partial=True)] == durable != []


@pytest.mark.parametrize("form", ["jsonl", "arrow"])
def test_files_that_are_finished_while_others_are_read_are_shown_as_far_as_they_were_durable(
    shop, pgcdc, tmp_path, monkeypatch, form
):
    kill_when_durable(shop, tmp_path, "--format", form)
    durable = [change.line for change in read_directory(tmp_path / "d", partial=True)]
    read_state = directory_reader._state

    def go_on(directory):
        """Let the stream write more, and finish the segment, before its files are looked at."""
        found = read_state(directory)
        shop.execute("INSERT INTO items VALUES ('later', 1)")
        line = stream_command(shop.uri, shop.slot, "-D", "d", "--format", form, publications=["p"])
        assert pgcdc(*line[len(PGCDC) :], "--endpos", "now").status == 0
        return found

    monkeypatch.setattr(directory_reader, "_state", go_on)
    assert [change.line for change in read_directory(tmp_path / "d", partial=True)] == durable != []
    assert "later" in show(pgcdc, "d")


# Captures


def capture(shop, path, version="1", **options):
    """Write a file as pg_recvlogical would."""
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


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_raw_capture_that_is_not_utf8_has_its_bytes_escaped(server18, tmp_path, pgcdc, encoding):
    """As in `pgcdc slot peek`; a capture doesn't say which encoding it has."""
    database = Encoded(server18, encoding)
    try:
        database.send(b'CREATE TABLE "\xe9" (a int PRIMARY KEY, "b\xe9" text, c json, d text[])')
        database.slot = database.create_slot()
        database.send(b"INSERT INTO \"\xe9\" VALUES (1, 'caf\xe9', '{\"k\": \"\xe9\"}', '{\xe9}')")
        database.execute(f"SET client_encoding = {encoding}")
        capture(database, tmp_path / "raw", publication_names="pub")
    finally:
        database.drop()
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


@pytest.mark.parametrize("encoding", ["ascii", "latin-1:replace"])
def test_what_is_printed_is_utf8_whatever_python_is_told(tmp_path, encoding):
    line = (
        '{"op":"I","lsn":"0/1","commit_lsn":"0/1","seq":0,"xid":1,"ts":"2026-01-01T00:00:00Z",'
        '"schema":"public","table":"Käse","key":{"a":1},"new":{"a":1,"b":"日本"}}\n'
    )
    (tmp_path / "changes.jsonl").write_text(line, "utf-8")
    command = [*PGCDC, "show", str(tmp_path / "changes.jsonl"), "--format", "jsonl"]
    ran = subprocess.run(
        command, env=os.environ | {"PYTHONIOENCODING": encoding}, capture_output=True, check=False
    )
    assert (ran.returncode, ran.stderr, ran.stdout.decode()) == (0, b"", line)


def test_tables_whose_names_read_alike_are_in_order_too(database18, tmp_path):
    """`a."b.c"` and `"a.b".c` are both called a.b.c."""
    tables = ['a."b.c"', '"a.b".c']
    database18.execute('CREATE SCHEMA a; CREATE SCHEMA "a.b"; CREATE PUBLICATION p FOR ALL TABLES')
    for table in tables:
        database18.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    slot, out = database18.create_slot(), tmp_path / "out"
    for number in range(6):
        database18.execute(f"INSERT INTO {tables[number % 2]} VALUES ({number})")
    subprocess.run(
        stream_command(database18.uri, slot, "-D", out, "--endpos", "now", publications=["p"]), check=True
    )
    shown = subprocess.run([*PGCDC, "show", str(out), "--json"], capture_output=True, check=True).stdout
    assert [json.loads(line)["new"]["id"] for line in shown.splitlines()] == list(range(6))


@pytest.mark.parametrize("limit", ["-S -n 64", "-n 150"], ids=["soft", "hard"])
def test_a_segment_has_more_files_than_may_be_open_at_first(database18, tmp_path, limit):
    tables = [f"t{number}" for number in range(100)]
    database18.execute("".join(f"CREATE TABLE {table} (id int);" for table in tables))
    database18.execute("CREATE PUBLICATION p FOR ALL TABLES")
    slot, out = database18.create_slot(), str(tmp_path / "out")
    database18.execute("".join(f"INSERT INTO {table} VALUES (1);" for table in tables))
    subprocess.run(
        stream_command(database18.uri, slot, "-D", out, "--endpos", "now", publications=["p"]), check=True
    )
    limited = ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", *PGCDC, "show", out, "--json"]
    shown = subprocess.run(limited, capture_output=True, check=True, text=True).stdout
    assert [json.loads(line)["table"] for line in shown.splitlines()] == tables
