"""Spools of uncommitted transactions: on disk, not large, and never part of the output."""

import json
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path

import pyarrow as pa
import pytest
import scale
from logs import IMMEDIATE, PROTOCOL_1, Log, Running, log_of
from processes import peak_memory, resident_peak, wait_until
from segments import contents
from wire_capture import capture
from workloads import TABLES, Stage, rows

MEGABYTE = 1 << 20
STREAMED = ("--streaming", "parallel")
WIDE = (
    "INSERT INTO shapes SELECT g, g, (SELECT string_agg(md5(random()::text || g || h), '')"
    " FROM generate_series(1, 30) h) FROM generate_series({}, {}) g"
)
"""Rows of about a kilobyte that hardly compress."""

SUBTRANSACTIONS = """
DO $$ BEGIN
    FOR turn IN 1..{count} LOOP
        BEGIN
            INSERT INTO audit SELECT g, md5(random()::text) FROM generate_series(1, {rows}) g;
            IF turn % 2 = 0 THEN RAISE EXCEPTION 'undone'; END IF;
        EXCEPTION WHEN raise_exception THEN NULL;
        END;
    END LOOP;
END $$
"""


@pytest.fixture
def log(server18) -> Iterator[Log]:
    with log_of(server18, TABLES) as log:
        yield log


def spools(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.spool") if path.is_file()]


def spooled(folder: Path) -> int:
    return sum(path.stat().st_size for path in spools(folder))


@pytest.mark.parametrize("target", ["directory", "file"])
def test_nothing_of_what_is_uncommitted_shows(log, tmp_path, target):
    """And the next run removes what a killed run had spooled."""
    slot, out = log.create_slot(), tmp_path / "out"
    arguments = ("-D" if target == "directory" else "-f", str(out), *STREAMED)
    with Stage(log.uri) as do:
        with Running(log, slot, *arguments) as reader:
            reader.started()
            do(0, "BEGIN", WIDE.format(1, 3000))
            do(1, rows("parts", 1, 1))
            do.catch_up()
            reader.confirms(log.end())
            wait_until(lambda: spooled(tmp_path) > MEGABYTE)
            others = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".spool"]
            assert not [path for path in others if b"shapes" in path.read_bytes()]
            reader.kill()
        assert spools(tmp_path)
        with Running(log, slot, *arguments) as reader:
            wait_until(lambda: not spools(tmp_path))
            do(0, WIDE.format(3001, 6000))
            do.catch_up()
            wait_until(lambda: spooled(tmp_path) > MEGABYTE)
            do(0, "ROLLBACK")
            assert reader.ends(log.end()) == (0, b"")
    assert not spools(tmp_path)
    assert b"shapes" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_limit_is_no_loss(log, tmp_path):
    slot = log.create_slot()
    other, arguments = log.copy_slot(slot), ("-D", str(tmp_path / "out"), *STREAMED)
    with Stage(log.uri) as do:
        do(1, rows("parts", 1, 3))
        with Running(log, slot, *arguments, "--spool-limit", "2MB") as reader:
            reader.started()
            do(0, "BEGIN", WIDE.format(1, 2000))
            do(1, rows("parts", 100, 3))
            do(0, WIDE.format(2001, 5000))
            do(1, rows("parts", 200, 3))
            status, errors = reader.wait()
        assert status == 9
        assert errors.startswith(b"pgcdc: error: could not ")
        assert b"--spool-limit" in errors
        assert spooled(tmp_path) <= 2 * MEGABYTE
        do(0, "COMMIT")
    log.read(slot, *arguments, "--endpos", log.end(), "--spool-limit", "20MB")
    log.read(other, "-D", str(tmp_path / "plain"), *PROTOCOL_1, "--endpos", log.end())
    assert contents(tmp_path / "out") == contents(tmp_path / "plain")


@pytest.mark.parametrize(
    "statement",
    [
        WIDE.format(1, 4000),
        "INSERT INTO parts SELECT g, g, g FROM generate_series(1, 60000) g",
        SUBTRANSACTIONS.format(count=600, rows=100),
    ],
    ids=["wide rows", "narrow rows", "half rolled back"],
)
def test_disk_use(log, tmp_path, statement):
    """The spool is at most 1.2 times as large as what protocol 1 sends in the end."""
    log.run("ALTER TABLE parts DROP CONSTRAINT parts_pkey")
    slot = log.create_slot()
    other = log.copy_slot(slot)
    with Stage(log.uri) as do, Running(log, slot, "-D", str(tmp_path / "out"), *STREAMED) as reader:
        reader.started()
        do(0, "BEGIN", statement)
        do.catch_up()
        reader.confirms(log.end())
        used = spooled(tmp_path)
        do(0, "COMMIT")
        assert reader.ends(log.end()) == (0, b"")
    payload = sum(len(sent.data) for sent in capture(log.uri, other))
    assert payload / 10 < used <= 1.2 * payload
    assert spooled(tmp_path) == 0


DEBEZIUM = ("debezium", "-c", "topic.prefix=pg", "-c", "snapshot.mode=never")


def bodies(folder: Path, form: str) -> Iterator[str]:
    """The first characters of each document, in the order of segments and parts."""
    for path in sorted(path for path in folder.glob("*documents/*")):
        if form == "arrow":
            with pa.ipc.open_file(path) as reader:
                batches = map(reader.get_batch, range(reader.num_record_batches))
                yield from (body[:32] for batch in batches for body in batch.column("body").to_pylist())
            continue
        with path.open() as lines:
            for line in map(json.loads, lines):
                new = line["new"] if form == "jsonl" else line["value"]["payload"]["after"]
                yield new["body"][:32]


@pytest.mark.parametrize("form", [("jsonl",), ("arrow",), DEBEZIUM], ids=lambda form: form[0])
@pytest.mark.parametrize("streaming", ["parallel", "off"])
def test_a_large_transaction_in_little_memory(log, tmp_path, streaming, form):
    """Every row is there once, in order, and the connection was not lost."""
    slot, megabytes = log.create_slot(), 300 * scale.factor
    with Stage(log.uri) as do:
        do(0, "ALTER TABLE documents ALTER body SET STORAGE EXTERNAL")
        many = f"FROM generate_series(1, {megabytes * 128}) g"
        do(0, f"INSERT INTO documents SELECT gen_random_uuid(), 'title', repeat(md5(g::text), 256) {many}")
    out = tmp_path / "out"
    line = log.command(
        slot, "-D", str(out), "--format", *form, "--streaming", streaming, "--endpos", log.end()
    )
    assert peak_memory(line, {"PGOPTIONS": "-c logical_decoding_work_mem=4MB"}) < 300 * MEGABYTE
    expected = (md5(str(number).encode()).hexdigest() for number in range(1, megabytes * 128 + 1))
    assert all(one == other for one, other in zip(bodies(out, form[0]), expected, strict=True))
    assert not spools(tmp_path)


def test_a_thousand_transactions_at_once(own_server, tmp_path):
    """All are streamed, are open at the same time, and end in another order; a third are rolled back."""
    server = own_server(18, {"max_prepared_transactions": "1000", "wal_sender_timeout": "5s"})
    with log_of(server, TABLES) as log:
        slot = log.create_slot()
        other, count = log.copy_slot(slot), 1000
        with Stage(log.uri) as do:
            for number in range(count):
                do(0, "BEGIN", rows("documents", number * 10, 8), f"PREPARE TRANSACTION '{number}'")
            for number in range(0, count * 7, 7):
                gid = number % count
                do(0, f"{'ROLLBACK' if gid % 3 == 0 else 'COMMIT'} PREPARED '{gid}'")
        end = log.end()
        out = tmp_path / "out"
        line = log.command(slot, "-f", str(out), *STREAMED, "--endpos", end)
        assert peak_memory(line, {"PGOPTIONS": "-c logical_decoding_work_mem=64kB"}) < 400 * MEGABYTE
        assert log.streamed(slot) >= count * 2 // 3
        assert out.read_bytes() == log.read(other, *PROTOCOL_1, "--endpos", end)


def test_ten_thousand_savepoints(log, tmp_path):
    """Half of them are rolled back after they were sent."""
    slot, out = log.create_slot(), tmp_path / "out"
    other = log.copy_slot(slot)
    with Stage(log.uri) as do, Running(log, slot, "-f", str(out), *STREAMED, environment=IMMEDIATE) as reader:
        reader.started()
        do(0, "BEGIN", SUBTRANSACTIONS.format(count=10_000, rows=1))
        do.catch_up()
        do(0, "COMMIT")
        end = log.end()
        reader.confirms(end)
        assert 0 < resident_peak(reader.process.pid) < 400 * MEGABYTE
        assert reader.stop() == (0, b"")
    assert out.read_bytes() == log.read(other, *PROTOCOL_1, "--endpos", end)


def test_a_value_of_two_hundred_megabytes(log, tmp_path):
    """It is copied in pieces so that status updates are sent; on a busy machine each piece takes long."""
    slot, out, size = log.create_slot(), tmp_path / "out", 200_000_000
    log.run(f"ALTER DATABASE {log.name} SET wal_sender_timeout = '1min'")
    with Stage(log.uri) as do:
        do(
            0,
            "BEGIN",
            f"INSERT INTO shapes VALUES (1, 1, repeat('0123456789', {size // 10})), (2, 2, 'small')",
        )
        do(0, "COMMIT")
    line = log.command(slot, "-f", str(out), *STREAMED, "--endpos", log.end())
    # Copies of it are in libpq's buffer, in ours, and in what is made from it.
    assert peak_memory(line) < 1_800 * MEGABYTE
    first, second = out.read_bytes().splitlines()
    assert first.count(b"0123456789") == size // 10
    assert json.loads(second)["new"] == {"id": 2, "size": 2, "note": "small"}
