"""`pgcdc show` prints what streams wrote, in order, and the same from every format."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from processes import PGCDC, stream_command, wait_until
from segments import as_stream
from show_tools import on_a_terminal, show

from pgcdc_cli.lsn import Lsn
from pgcdc_cli.reader import directory_reader
from pgcdc_cli.reader.directory_reader import is_table, read_directory


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


def durable_lsn(checkpoint):
    return Lsn.parse(json.loads(checkpoint.read_bytes())["end_lsn"]) if checkpoint.exists() else Lsn(0)


def kill_when_durable(shop, tmp_path, *options):
    """Kill a stream that has changes in unfinished files, and a checkpoint that covers them."""
    options = ("-D", "d", "-F", "0.2", "-s", "1", *options)
    line = stream_command(shop.uri, shop.slot, *options, publications=["p"])
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


def test_a_segment_with_more_files_than_may_be_open_says_which_limit_to_raise(shop, stream, tmp_path):
    for number in range(40):
        shop.execute(f"CREATE TABLE t{number} (a int PRIMARY KEY)")
    shop.execute("BEGIN;" + "".join(f"INSERT INTO t{number} VALUES (1);" for number in range(40)) + "COMMIT")
    stream("-D", "d")
    line = ["sh", "-c", 'ulimit -n 32; exec "$@"', "sh", *PGCDC, "show", "d"]
    ran = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    error, hint = ran.stderr.splitlines()
    assert (ran.returncode, error.endswith(": Too many open files")) == (9, True)
    assert hint == "hint: raise the number of files that a process may open: ulimit -n"


def test_tables_whose_names_read_alike_are_in_order_too(database18, tmp_path):
    """`a."b.c"` and `"a.b".c` are both called a.b.c."""
    tables = ['a."b.c"', '"a.b".c']
    database18.execute('CREATE SCHEMA a; CREATE SCHEMA "a.b"; CREATE PUBLICATION p FOR ALL TABLES')
    for table in tables:
        database18.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    slot, out = database18.create_slot(), tmp_path / "out"
    for number in range(6):
        database18.execute(f"INSERT INTO {tables[number % 2]} VALUES ({number})")
    line = stream_command(database18.uri, slot, "-D", out, "--endpos", "now", publications=["p"])
    subprocess.run(line, check=True)
    shown = subprocess.run([*PGCDC, "show", str(out), "--json"], capture_output=True, check=True).stdout
    assert [json.loads(line)["new"]["id"] for line in shown.splitlines()] == list(range(6))


@pytest.mark.parametrize("limit", ["-S -n 64", "-n 150"], ids=["soft", "hard"])
def test_a_segment_has_more_files_than_may_be_open_at_first(database18, tmp_path, limit):
    tables = [f"t{number}" for number in range(100)]
    database18.execute("".join(f"CREATE TABLE {table} (id int);" for table in tables))
    database18.execute("CREATE PUBLICATION p FOR ALL TABLES")
    slot, out = database18.create_slot(), str(tmp_path / "out")
    database18.execute("".join(f"INSERT INTO {table} VALUES (1);" for table in tables))
    line = stream_command(database18.uri, slot, "-D", out, "--endpos", "now", publications=["p"])
    subprocess.run(line, check=True)
    limited = ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", *PGCDC, "show", out, "--json"]
    shown = subprocess.run(limited, capture_output=True, check=True, text=True).stdout
    assert [json.loads(line)["table"] for line in shown.splitlines()] == tables
