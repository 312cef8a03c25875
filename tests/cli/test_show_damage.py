"""`pgcdc show` of files that are damaged, cut, or not pgcdc's: one line, a hint, an exit status."""

import errno
import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from show_tools import show

from pgcdc_cli.directory.checkpoint import PendingRotation, decode, encode
from pgcdc_cli.errors import ErrorKind, PgcdcError
from pgcdc_cli.formats.arrow import END_OF_STREAM
from pgcdc_cli.reader.stored_file import read_schema


def refused_show(pgcdc, *arguments):
    ran = pgcdc("show", *arguments)
    error, hint = ran.err.splitlines()
    assert error.startswith("pgcdc: error: could not ")
    assert hint.startswith("hint: ")
    return ran.status, error.removeprefix("pgcdc: error: "), hint.removeprefix("hint: ")


DAMAGED = "the file was damaged or changed after it was written: restore it from a copy"
FOREIGN = "pgcdc shows its own files, of all formats, and what pg_recvlogical captured of pgoutput"


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
    assert error.startswith(f'could not read "d/public.items/{file.name}": its checksum is ')


def test_a_cut_file_is_found_before_anything_is_shown(directory, pgcdc):
    [file] = (directory / "public.items").iterdir()
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    ran = pgcdc("show", "d")
    assert (ran.status, ran.out) == (10, "")
    assert ran.err == (
        f'pgcdc: error: could not read "d/public.items/{file.name}": it has {len(data) - 1} bytes, but'
        f" {len(data)} were written\nhint: {DAMAGED}\n"
    )


@pytest.mark.parametrize(
    "option", [(), ("--follow",), ("--stat",), ("--format", "debezium", "-c", "topic.prefix=t")]
)
def test_a_path_that_the_system_does_not_let_us_examine(option, pgcdc):
    # As in another user's folder; but root, who may run the tests, can examine that.
    name = "x" * 256
    status, error, _ = refused_show(pgcdc, name, *option)
    assert (status, error) == (9, f'could not examine "{name}": File name too long')


def test_a_schema_file_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    def refuse(self):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    schema = tmp_path / "16385-55c5033a6a565f0d.json"
    with pytest.raises(PgcdcError) as refused:
        read_schema(schema)
    assert (refused.value.kind, str(refused.value)) == (
        ErrorKind.OUTPUT,
        f'could not read "{schema}": Permission denied',
    )


def test_the_oldest_segments_may_be_gone(stream, pgcdc, tmp_path):
    """They are large, and copied elsewhere; what is left can be read all the same."""
    stream("-D", "d", "--rotate-size", "1kB")
    lines = (tmp_path / "d" / "manifest.jsonl").read_text().splitlines()
    segments = [json.loads(line) for line in lines]
    whole = show(pgcdc, "d").splitlines()
    for segment in segments[:2]:
        for file in segment["files"]:
            (tmp_path / "d" / file["path"]).unlink()
    gone = sum(file["rows"] for segment in segments[:2] for file in segment["files"])
    ran = pgcdc("show", "d")
    assert (ran.status, ran.out.splitlines()) == (0, whole[gone:])
    first, last = segments[0]["first_commit_lsn"], segments[1]["last_commit_lsn"]
    assert ran.err == (
        'pgcdc: warning: "d" lacks its first segments, which were moved away: 2, '
        f"with commits from {first} to {last}\n"
    )
    (tmp_path / "d" / segments[3]["files"][0]["path"]).unlink()
    assert pgcdc("show", "d").status == 10


@pytest.mark.parametrize("written", [0, 1, -1], ids=["no line", "torn line", "no line feed"])
def test_a_segment_that_is_being_finished_is_not_missed(stream, pgcdc, tmp_path, written):
    """Its files have their names before it is in the manifest, and the checkpoint says so before that.

    A long line is seen while it grows, and a crash may leave a part of it.
    """
    stream("-D", "d", "--rotate-size", "1kB")
    manifest, saved = tmp_path / "d" / "manifest.jsonl", tmp_path / "d" / "checkpoint.json"
    whole = show(pgcdc, "d").splitlines()
    *before, last = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(before) + last[:written])
    rows = sum(file["rows"] for file in json.loads(last)["files"])
    pending = PendingRotation(last.decode(), (), len(b"".join(before)))
    saved.write_bytes(encode(replace(decode(saved.read_bytes()), pending=pending)))
    assert show(pgcdc, "d").splitlines() == whole[:-rows]
    assert pgcdc("status", "d").status == 0
    assert show(pgcdc, "d", "--partial").splitlines() == whole
    renamed = tmp_path / "d" / json.loads(last)["files"][-1]["path"]
    renamed.rename(f"{renamed}.partial")
    assert show(pgcdc, "d", "--partial").splitlines() == whole


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


DEBEZIUM = ("debezium", "-c", "topic.prefix=srv", "-c", "snapshot.mode=never")


@pytest.mark.parametrize(
    ("form", "written", "found"),
    [
        (("arrow",), '"name":"sku"', '"name":"SKU"'),
        (DEBEZIUM, '"form":', '"from":'),
        (DEBEZIUM, '"events":{', '"events":{"columns":7},"":{'),
        (DEBEZIUM, '"default":null,"labels":null', '"default":null,"labels":7'),
        (DEBEZIUM, '"facts":{', '"facts":{"columns":[],"":7},"":{'),
    ],
)
def test_a_changed_schema_file_is_found(stream, pgcdc, tmp_path, form, written, found):
    stream("-D", "d", "--format", *form)
    for schema in (tmp_path / "d" / "schemas").iterdir():
        schema.write_text(schema.read_text().replace(written, found))
    status, error, _ = refused_show(pgcdc, "d")
    assert status == 10
    reason = error.partition('.json": ')[2]
    assert reason == "its content doesn't have the fingerprint in its name" or reason.startswith(
        "it is not a schema file of pgcdc: "
    )


def test_a_damaged_manifest_is_found(directory, pgcdc):
    manifest = directory / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes()[:-5])
    status, error, _ = refused_show(pgcdc, "d")
    assert status == 10
    assert error.startswith('could not read "d/manifest.jsonl": ')


@pytest.mark.parametrize("command", [("show", "d"), ("show", "d", "--stat"), ("status", "d")])
def test_a_manifest_that_lacks_finished_segments_is_found(directory, refused, command):
    (directory / "manifest.jsonl").unlink()
    refused(
        *command,
        status=10,
        error='could not read "d/manifest.jsonl": its last segment is 0, the checkpoint\'s is 1',
        hint="restore the file from a copy, or start over with an empty directory and a new slot",
    )


@pytest.mark.parametrize("command", [("show", "d"), ("status", "d")])
def test_a_manifest_of_a_newer_version_is_not_to_be_replaced(directory, refused, command):
    manifest = directory / "manifest.jsonl"
    manifest.write_text(manifest.read_text().replace('"format_version":1', '"format_version":2,"new":1'))
    refused(
        *command,
        status=10,
        error='could not read "d/manifest.jsonl": it has format version 2, this pgcdc reads 1',
        hint="it is intact: continue with the pgcdc that wrote it, or a newer one",
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"%PDF-1.7", "it is neither JSON nor Arrow nor pgoutput"),
        (b'{"op":"I"}\n', 'line 1 is not a change of pgcdc: it has no "commit_lsn"'),
        (b'{"op":"X","commit_lsn":"0/1"}\n', "line 1 is not a change of pgcdc: unknown op 'X'"),
        (
            b'{"op":"I","commit_lsn":"0/1',
            "line 1 is not a change of pgcdc: it is not JSON (Unterminated string, column 24)",
        ),
        (b'{"op":[],"commit_lsn":5}\n', "line 1 is not a change of pgcdc: a value has the wrong type"),
        (b'{"op":"\xff"}\n', "line 1 is not a change of pgcdc: it is not UTF-8"),
        (b'{"topic":"s.public.t","key":null}\n', 'line 1 is not an event of Debezium: it has no "value"'),
        (
            b'{"before":null,"after":{"id":1},"source":{"lsn":1},"op":"c"}\n',
            'line 1 is not an event of Debezium: it has no "schema"',
        ),
        (
            b'{"schema":{},"payload":{"before":null',
            "line 1 is not an event of Debezium: it is not JSON (Expecting ',' delimiter, column 38)",
        ),
        (
            b'{"before":null,"op":"t","source":{"schema":"s","table":"t","lsn":1,"txId":1,"ts_ms":99999999999999999999}}\n',
            "line 1 is not an event of Debezium: a number is too large",
        ),
        (
            b'{"before":null,"op":"t","source":{"schema":"s","table":"t","lsn":1,"txId":1,"ts_ms":1,"sequence":"[]"}}\n',
            "line 1 is not an event of Debezium: a value has the wrong type",
        ),
        (b'{"action":"X"}\n', "line 1 is not a change of wal2json: unknown action 'X'"),
        (
            b'{"action":"B"}\n{"action":"D","schema":"s","table":"t","identity":[1]}\n',
            "line 2 is not a change of wal2json: a value has the wrong type",
        ),
        (
            b'{"change":[{"kind":"insert","schema":"s","table":"t","columnnames":["id"],"columnvalues":[]}]}',
            "no transaction of wal2json at character 92: there are not as many values as names",
        ),
        (
            b'{"xid":7,\n"change":[{"kind":"mess',
            "no transaction of wal2json at character 20: it is not JSON (Unterminated string)",
        ),
        (
            b"root:x:0:0:root:/root:/bin/bash\n",
            (
                "it is neither JSON nor Arrow nor pgoutput: could not decode Rollback Prepared message:"
                " flags at byte 1 are 0x6F, not 0, in the message at byte 0"
            ),
        ),
        (
            b"B123\n",
            (
                "it is neither JSON nor Arrow nor pgoutput: could not decode Begin message: final LSN at"
                " byte 1 wants 8 bytes, 4 are left, in the message at byte 0"
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
        (
            b"R\0\0\0\1s\0t\0d\0\1\1id\0\0\0\0\27\377\377\377\377\nI\0\0\0\1N\0\0\n",
            "could not fit a row to s.t, in the message at byte 25",
        ),
        (
            b'{"xid":7,' + b" " * 100_000 + b'"change":7}',
            "no transaction of wal2json at character 100018: there is no [",
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
    rows_end = data.rindex(END_OF_STREAM)
    for size in (100, rows_end // 2, rows_end - 40):
        (tmp_path / "cut.arrow").write_bytes(data[:size])
        status, error, hint = refused_show(pgcdc, "cut.arrow")
        assert (status, hint) == (8, FOREIGN)
        assert error.startswith('could not read "cut.arrow": ')


DAMAGES = """
import random, sys
from pathlib import Path
from pgcdc_cli.errors import PgcdcError
from pgcdc_cli.reader.directory_reader import read_path

path, dice, refused = Path(sys.argv[1]), random.Random(1), 0
whole = path.read_bytes()
for _ in range(600):
    damaged = bytearray(whole)
    damaged[dice.randrange(len(whole))] ^= dice.randrange(1, 256)
    path.write_bytes(damaged)
    try:
        for change in read_path(path, (), partial=False):
            change.line
    except PgcdcError:
        refused += 1
print(refused)
"""


def test_no_damaged_byte_of_an_arrow_file_ends_the_process(stream, tmp_path):
    """Arrow trusts what it reads: offsets beyond a column's end were a SIGSEGV."""
    stream("-D", "d", "--format", "arrow")
    [file] = (tmp_path / "d" / "public.items").iterdir()
    ran = subprocess.run([sys.executable, "-c", DAMAGES, file], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert int(ran.stdout) > 100


def test_an_arrow_file_of_somebody_elses_is_refused(pgcdc, tmp_path):
    table = pa.table({"a": [1]})
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write(table)
    status, error, _ = refused_show(pgcdc, "a.arrow")
    assert status == 8
    assert error.startswith('could not read "a.arrow": its Arrow stream is damaged or not pgcdc\'s')


@pytest.mark.parametrize(
    "form",
    [
        DEBEZIUM,
        ("wal2json",),
        ("wal2json", "--wal2json-option", "format-version=1"),
    ],
    ids=["debezium", "wal2json", "wal2json-1"],
)
def test_what_stands_before_a_cut_is_shown(stream, pgcdc, tmp_path, form):
    stream("-f", "whole", "--format", *form)
    whole = show(pgcdc, "whole", "--json")
    (tmp_path / "cut").write_bytes((tmp_path / "whole").read_bytes()[:-20])
    ran = pgcdc("show", "cut", "--json")
    assert ran.status == 8
    assert ran.err.startswith('pgcdc: error: could not read "cut": ')
    assert ran.err.count("\n") == 2
    lines, shown = whole.splitlines(), ran.out.splitlines()
    assert shown == lines[: len(shown)]
    assert len(lines) - 3 <= len(shown) < len(lines)


def test_an_empty_file_has_nothing(pgcdc, tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    assert show(pgcdc, "empty", "empty.gz") == ""


def test_no_such_file(refused):
    hint = "give a directory that pgcdc stream -D writes, or a file in it or on its own"
    refused("show", "nope", status=2, error='could not open "nope": no such file', hint=hint)


def test_the_folder_of_one_table_leads_to_the_directory_above(refused, tmp_path):
    (tmp_path / "d" / "public.t").mkdir(parents=True)
    (tmp_path / "d" / "manifest.jsonl").touch()
    refused(
        *("show", "d/public.t"),
        status=2,
        error='could not read "d/public.t": it has neither manifest.jsonl nor checkpoint.json',
        hint="give the directory above it; --table shows one table's changes",
    )


def test_a_directory_that_isnt_pgcdcs(refused):
    refused(
        "show",
        ".",
        status=2,
        error='could not read ".": it has neither manifest.jsonl nor checkpoint.json',
        hint="give the directory that pgcdc stream -D wrote, or single files",
    )
