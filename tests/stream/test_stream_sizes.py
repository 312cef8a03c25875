"""Many tables, wide tables, tables without columns, large values."""

import json
import subprocess

import pyarrow as pa
import pytest
from processes import peak_memory, stream_command
from segments import contents
from stream_runs import stream


def rows_of(found: list[object]) -> list[dict]:
    """JSON lines or Arrow rows, without schemas."""
    return [
        json.loads(row) if isinstance(row, bytes) else row for row in found if not isinstance(row, pa.Schema)
    ]


def test_three_hundred_tables_need_few_descriptors(database18, tmp_path):
    names = [f"t{number}" for number in range(300)]
    database18.execute(";".join(f"CREATE TABLE {name} (a int PRIMARY KEY, b text)" for name in names))
    database18.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    slot = database18.create_slot()
    for low in (0, 10):
        with database18.connection.transaction():
            for name in names:
                database18.execute(
                    f"INSERT INTO {name} SELECT g, 'x' FROM generate_series({low}, {low + 4}) g"
                )
    line = stream_command(database18.uri, slot, "-D", str(tmp_path / "out"), "--endpos", "now")
    run = subprocess.run(
        ["sh", "-c", 'ulimit -n 128; exec "$@"', "sh", *line], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    found = contents(tmp_path / "out")
    assert found.keys() == {f"public.{name}" for name in names}
    for lines in found.values():
        assert [row["new"]["a"] for row in rows_of(lines)] == [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]


@pytest.mark.parametrize("form", ["jsonl", "arrow"])
def test_as_many_columns_as_a_table_can_have(database18, tmp_path, form):
    columns = ", ".join(f"c{number} int" for number in range(1599))
    database18.execute(f"CREATE TABLE t (a int PRIMARY KEY, {columns}); CREATE PUBLICATION pub FOR TABLE t")
    slot = database18.create_slot()
    database18.execute("INSERT INTO t (a, c0, c1598) SELECT g, g, -g FROM generate_series(1, 50) g")
    database18.execute("UPDATE t SET c1598 = 7 WHERE a = 1")
    run = stream(database18.uri, slot, "-D", str(tmp_path / "out"), "--format", form, "--endpos", "now")
    assert (run.returncode, run.stderr) == (0, "")
    rows = rows_of(contents(tmp_path / "out")["public.t"])
    images = [row["new"] if form == "jsonl" else row for row in rows]
    assert [image["c1598"] for image in images] == [*range(-1, -51, -1), 7]
    assert {image["c700"] for image in images} == {None}


@pytest.mark.parametrize("form", ["jsonl", "arrow"])
def test_a_table_without_columns(database, tmp_path, form):
    database.execute(
        "CREATE TABLE t (); ALTER TABLE t REPLICA IDENTITY FULL; CREATE PUBLICATION pub FOR TABLE t"
    )
    slot = database.create_slot()
    database.execute("INSERT INTO t DEFAULT VALUES; INSERT INTO t DEFAULT VALUES; TRUNCATE t")
    run = stream(database.uri, slot, "-D", str(tmp_path / "out"), "--format", form, "--endpos", "now")
    assert (run.returncode, run.stderr) == (0, "")
    rows = rows_of(contents(tmp_path / "out")["public.t"])
    assert [row["op" if form == "jsonl" else "_op"] for row in rows] == ["I", "I", "T"]
    if form == "jsonl":
        assert [row.get("new") for row in rows] == [{}, {}, None]


@pytest.mark.parametrize("form", ["jsonl", "arrow"])
def test_a_value_of_a_hundred_megabytes(database18, tmp_path, form):
    database18.execute("CREATE TABLE t (a int PRIMARY KEY, b text); CREATE PUBLICATION pub FOR TABLE t")
    slot = database18.create_slot()
    database18.execute("INSERT INTO t VALUES (1, 'small'), (2, repeat('0123456789', 10000000)), (3, 'small')")
    out = tmp_path / "out"
    line = stream_command(database18.uri, slot, "-D", str(out), "--format", form, "--endpos", "now")
    # The value is in libpq's buffer, in ours and in the output.
    assert peak_memory(line) < 1_200 << 20
    rows = rows_of(contents(out)["public.t"])
    values = [row["new"]["b"] if form == "jsonl" else row["b"] for row in rows]
    assert [len(value) for value in values] == [5, 100_000_000, 5]
    assert values[1] == "0123456789" * 10_000_000


@pytest.mark.long
def test_a_value_that_the_server_can_not_send_as_text(database18, tmp_path):
    """600 MB of bytea are twice as many hexadecimal digits, and 1 GB is the server's limit."""
    database18.execute("CREATE TABLE t (a int PRIMARY KEY, b bytea); CREATE PUBLICATION pub FOR TABLE t")
    slot, out = database18.create_slot(), tmp_path / "out"
    half = "decode(repeat('ab', 300000000), 'hex')"
    database18.execute(f"INSERT INTO t VALUES (1, {half} || {half})")
    line = stream_command(database18.uri, slot, "-D", out, "--format", "arrow", "--endpos", "now")
    refused = subprocess.run(line, capture_output=True, text=True, check=False)
    assert refused.returncode == 8
    error, hint = refused.stderr.splitlines()
    assert error.endswith(
        f'could not receive from slot "{slot}": invalid memory alloc request size 1200000003'
    )
    assert "--binary" in hint
    assert subprocess.run([*line, "--binary"], check=False).returncode == 0
    [row] = rows_of(contents(out)["public.t"])
    assert row["b"] == b"\xab" * 600_000_000


@pytest.mark.parametrize(
    ("size", "form"),
    [
        ("10kB", ["jsonl"]),
        ("100kB", ["jsonl"]),
        ("10kB", ["jsonl", "--compression", "zstd"]),
        ("20kB", ["arrow"]),
    ],
)
def test_a_segment_ends_soon_behind_its_size_at_the_end_of_a_transaction(database18, tmp_path, size, form):
    """Transactions have a few rows in each of three tables; more arrive at once than fit a segment."""
    names = ("a", "b", "c")
    database18.execute(";".join(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in names))
    database18.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    slot, out = database18.create_slot(), tmp_path / "out"
    inserts = "; ".join(
        f"INSERT INTO {name} SELECT 3 * i + g, md5((3 * i + g)::text) FROM generate_series(0, 2) g"
        for name in names
    )
    database18.execute(f"DO $$ BEGIN FOR i IN 0..599 LOOP {inserts}; COMMIT; END LOOP; END $$")
    options = ("-D", str(out), "--rotate-size", size, "--format", *form, "--endpos", "now")
    assert stream(database18.uri, slot, *options).returncode == 0
    for lines in (found := contents(out)).values():
        images = [row.get("new", row) for row in rows_of(lines)]
        assert [image["id"] for image in images] == list(range(1800))
    assert found.keys() == {f"public.{name}" for name in names}
    segments = [json.loads(line)["files"] for line in (out / "manifest.jsonl").read_text().splitlines()]
    assert all(len({file["rows"] for file in files}) == 1 and not files[0]["rows"] % 3 for files in segments)
    assert len(segments) > 2
    wanted = int(size.removesuffix("kB")) << 10
    for files in segments[:-1]:
        # An Arrow file is counted without its footer, which repeats the schema.
        end = 4096 * len(files) if "arrow" in form else 0
        assert wanted <= sum(file["bytes"] for file in files) < 1.5 * wanted + end
