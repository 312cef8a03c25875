"""A table without rows: a snapshot leaves an empty file of it, so that its name and columns are known."""

import gzip
import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from processes import PGCDC, stream_command
from segments import contents, manifest
from servers import new_slot_name
from stream_runs import FORMATS, NOW, checkpoint, stream
from test_snapshot_command import DEBEZIUM, run
from test_snapshot_resume import INITIAL, OFTEN, killed, operations

from pgcdc_cli.lsn import Lsn

TABLES = """
CREATE TABLE accounts (id bigint PRIMARY KEY, balance numeric(12,2));
CREATE TABLE books (id bigint PRIMARY KEY, balance numeric(12,2));
CREATE TABLE coins (id bigint PRIMARY KEY, balance numeric(12,2));
INSERT INTO accounts SELECT g, g FROM generate_series(1, 9) g;
CREATE PUBLICATION pub FOR TABLE accounts, books, coins;
"""
PUB = ("--publication", "pub")


@pytest.fixture
def shop(database18):
    database18.execute(TABLES)
    return database18


def file_of(out: Path, table: str) -> dict:
    """The only file of a table."""
    [file] = [file for segment in manifest(out) for file in segment["files"] if file["table"] == table]
    return file


def has_columns(out: Path, file: dict, *names: str) -> bool:
    columns = json.loads((out / file["schema"]).read_text())["columns"]
    return [column["name"] for column in columns] == [*names]


@pytest.mark.parametrize(
    ("form", "content"),
    [
        ((), b""),
        (("--compression", "gzip"), gzip.compress(b"", 6, mtime=0)),
        (("--compression", "zstd"), pa.Codec("zstd", 3).compress(b"", asbytes=True)),
        (DEBEZIUM, b""),
    ],
    ids=["jsonl", "gzip", "zstd", "debezium"],
)
def test_its_lines_are_an_empty_file(shop, tmp_path, form, content):
    assert run(shop.uri, *PUB, "-D", tmp_path, *form).returncode == 0
    file = file_of(tmp_path, "public.books")
    stored = (tmp_path / file["path"]).read_bytes()
    # The ninth byte of gzip's head is the system on which it was made.
    assert (file["rows"], len(stored), stored[10:]) == (0, len(content), content[10:])
    assert has_columns(tmp_path, file, "id", "balance")
    assert file_of(tmp_path, "public.accounts")["rows"] == 9


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_its_arrow_file_has_a_schema_and_no_rows(shop, tmp_path, compression):
    form = ("--format", "arrow", "--compression", compression)
    assert run(shop.uri, *PUB, "-D", tmp_path, *form).returncode == 0
    file = file_of(tmp_path, "public.books")
    with pa.ipc.open_file(tmp_path / file["path"]) as reader:
        assert (file["rows"], reader.num_record_batches, reader.read_all().num_rows) == (0, 0, 0)
        assert reader.schema.field("balance").type == pa.decimal128(12, 2)
    assert has_columns(tmp_path, file, "id", "balance")


def test_with_one_file_for_all_tables_only_its_schema_file_tells_of_it(shop, tmp_path):
    assert run(shop.uri, *PUB, "-D", tmp_path, "--layout", "stream").returncode == 0
    assert list(contents(tmp_path)) == [None]
    schemas = [json.loads(path.read_text()) for path in (tmp_path / "schemas").iterdir()]
    assert {one["table"] for one in schemas} == {"accounts", "books", "coins"}


def test_a_database_without_rows_is_a_segment_too(shop, tmp_path):
    shop.execute("TRUNCATE accounts")
    assert run(shop.uri, *PUB, "-D", tmp_path).returncode == 0
    [segment] = manifest(tmp_path)
    assert {file["table"]: file["rows"] for file in segment["files"]} == {
        "public.accounts": 0,
        "public.books": 0,
        "public.coins": 0,
    }
    assert segment["first_commit_lsn"] == segment["last_commit_lsn"] == segment["end_lsn"]
    shown = subprocess.run([*PGCDC, "show", tmp_path], capture_output=True, text=True, check=True)
    assert (shown.stdout, shown.stderr) == ("", "")


def test_of_a_table_that_a_connector_leaves_out_there_is_none(shop, tmp_path):
    left_out = (*DEBEZIUM, "-c", "table.exclude.list=public.books")
    assert run(shop.uri, *PUB, "-D", tmp_path, *left_out).returncode == 0
    assert [*contents(tmp_path)] == ["public.accounts", "public.coins"]


@pytest.mark.parametrize("form", FORMATS)
def test_it_counts_as_read_and_what_comes_after_is_changes(shop, tmp_path, form):
    """The first kill comes behind the table with rows, the second behind the first one without."""
    out, slot = tmp_path / "out", new_slot_name()
    for number in (1, 2):
        killed(shop, slot, out, *FORMATS[form], *INITIAL)
        assert len(checkpoint(out)["read"]) == number
        assert not manifest(out)
    shop.execute("INSERT INTO books VALUES (1, 1); INSERT INTO coins VALUES (1, 1)")
    ended = stream(shop.uri, slot, "-D", str(out), *FORMATS[form], *INITIAL, *NOW)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert operations(out, "books") == "I"
    assert operations(out, "coins") == "R"
    assert Lsn.parse(checkpoint(out)["end_lsn"]) > Lsn(0)
    assert not list(out.rglob("*.partial"))


def test_a_truncate_meanwhile_is_a_change_of_it(shop, tmp_path):
    out, slot = tmp_path / "out", new_slot_name()
    for _ in (1, 2):
        killed(shop, slot, out, *INITIAL)
    shop.execute("TRUNCATE books, coins; INSERT INTO books VALUES (1, 1); TRUNCATE accounts, books")
    ended = stream(shop.uri, slot, "-D", str(out), *INITIAL, *NOW, *OFTEN)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert [operations(out, name) for name in ("accounts", "books", "coins")] == ["R" * 9 + "T", "TIT", ""]
    assert [file["rows"] for file in manifest(out)[0]["files"]] == [10, 3, 0]


def test_one_that_is_read_again_while_it_is_streamed_is_there(shop, tmp_path):
    slot = shop.create_slot()
    line = [*stream_command(shop.uri, slot, "-D", tmp_path), *NOW, "--format", "arrow"]
    subprocess.run(line, check=True)
    assert not manifest(tmp_path)
    for _ in (1, 2):
        subprocess.run([*line, "--resnapshot", "public.books"], check=True)
    file = file_of(tmp_path, "public.books")
    assert (file["rows"], contents(tmp_path)["public.books"][1:]) == (0, [])
    assert has_columns(tmp_path, file, "id", "balance")
