"""`pgcdc status`: what it prints of a directory, its slot, and its warehouse."""

import json
import os
from dataclasses import replace

import psycopg
import pytest
from servers import VERSIONS

from pgcdc_cli.cli.printing import human_bytes
from pgcdc_cli.directory.checkpoint import decode, encode
from pgcdc_cli.lsn import Lsn


@pytest.fixture
def changes(shop, pgcdc):
    """A directory with one finished segment; returns the slot that it follows."""
    slot = shop.copy_slot(shop.slot)
    given = ("-d", shop.uri, "-S", slot, "--publication", "p", "-D", "changes", "--endpos", "now")
    ran = pgcdc("stream", *given)
    assert (ran.status, ran.err) == (0, "")
    return slot


def record(tmp_path, **row):
    everything = {"stream_id": "x", "table": "", "mode": "merge", "path": None, "segment": 1, "lsn": "0/10"}
    everything |= {
        "version": None,
        "keyless": False,
        "problem": None,
        "merged_at": "2026-11-21T00:00:00+00:00",
    }
    (tmp_path / "lake").mkdir()
    rows = [everything, {**everything, "table": "public.t", "path": "file:/lake/a`b", "version": 7, **row}]
    (tmp_path / "lake" / "_pgcdc.json").write_text(json.dumps({"format_version": 1, "rows": rows}))


def test_a_directory_says_how_far_it_is(changes, shop, pgcdc, tmp_path):
    ran = pgcdc("status", "changes", "--json")
    assert (ran.status, ran.err) == (0, "")
    content = json.loads(ran.out)
    checkpoint = json.loads((tmp_path / "changes" / "checkpoint.json").read_text())
    manifest = [
        json.loads(line) for line in (tmp_path / "changes" / "manifest.jsonl").read_text().splitlines()
    ]
    assert content["checkpoint"]["slot"] == changes
    assert content["checkpoint"]["database"] == shop.name
    assert content["checkpoint"]["end_lsn"] == checkpoint["end_lsn"]
    assert content["checkpoint"]["unfinished_files"] == 0
    assert (content["slot"], content["merged"]) == (None, None)
    assert content["files"]["last_segment"] == manifest[-1]["segment"] == 1
    assert content["files"]["end_lsn"] == manifest[-1]["end_lsn"]
    assert {t["table"]: t["rows"] for t in content["files"]["tables"]} == {
        file["table"]: file["rows"] for file in manifest[-1]["files"]
    }
    lines = pgcdc("status", "changes").out.splitlines()
    assert f"slot          {changes}, database {shop.name}" in lines
    assert f"segments      1: 1 to 1, up to {manifest[-1]['end_lsn']}" in lines


@pytest.mark.usefixtures("changes")
def test_finished_segments_without_their_checkpoint_are_counted(pgcdc, tmp_path):
    (tmp_path / "changes" / "checkpoint.json").unlink()
    ran = pgcdc("status", "changes", "--json")
    assert (ran.status, ran.err) == (0, "")
    content = json.loads(ran.out)
    assert (content["checkpoint"], content["files"]["segments"]) == (None, 1)


@pytest.mark.usefixtures("changes")
def test_another_server_is_not_asked_of_the_slot(servers, pgcdc):
    ran = pgcdc("status", "changes", "-d", servers[16].uri())
    assert ran.status == 13
    assert "error: could not continue from the checkpoint: it belongs to system identifier " in ran.err


def test_a_server_whose_log_ends_before_the_checkpoint_is_an_older_copy(changes, shop, pgcdc, tmp_path):
    """A slot there says nothing: what it sends may be another history."""
    saved = tmp_path / "changes" / "checkpoint.json"
    far = Lsn(shop.confirmed(changes) + (1 << 40))
    saved.write_bytes(encode(replace(decode(saved.read_bytes()), end_lsn=far)))
    ran = pgcdc("status", "changes", "-d", shop.uri)
    assert ran.status == 13
    assert f"could not continue from {far}: the server's WAL ends before that, at " in ran.err


def test_a_server_tells_of_the_slot(changes, shop, pgcdc):
    content = json.loads(pgcdc("status", "changes", "-d", shop.uri, "--json").out)
    assert content["slot"]["name"] == changes
    assert content["slot"]["confirmed_flush_lsn"] == content["checkpoint"]["end_lsn"]
    assert content["slot"]["lag_bytes"] >= 0
    text = pgcdc(
        "status",
        "changes",
        env={"PGHOST": shop.server.socket_directory, "PGUSER": "postgres", "PGDATABASE": shop.name},
    )
    assert "\nread by       nobody\n" in text.out
    assert "\nlag           " in text.out


def test_what_the_server_does_not_say_hides_nothing_else(changes, shop, pgcdc):
    shop.execute("SELECT pg_drop_replication_slot(%s)", (changes,))
    ran = pgcdc("status", "changes", "-d", shop.uri)
    assert ran.status == 5
    assert "segments      1:" in ran.out
    assert ran.err.startswith(f'pgcdc: error: could not find slot "{changes}", which the checkpoint names')
    assert pgcdc("status", "changes", "-h", "/nowhere").status == 3


@pytest.mark.usefixtures("changes")
def test_a_role_that_may_not_identify_the_server_sees_the_slot(shop, pgcdc):
    shop.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    role = f"r_{shop.name}"
    shop.execute(f"CREATE ROLE {role} LOGIN")
    try:
        ran = pgcdc("status", "changes", "-d", shop.server.uri(shop.name, user=role))
    finally:
        shop.execute(f"DROP ROLE {role}")
    assert (ran.status, ran.err) == (0, "")
    assert "\nread by       nobody\n" in ran.out


@pytest.mark.usefixtures("changes")
def test_a_warehouse_tells_what_is_merged_and_how_to_read_it(pgcdc, tmp_path):
    record(tmp_path)
    content = json.loads(pgcdc("status", "changes", "--warehouse", "lake", "--json").out)
    assert content["merged"]["waiting_segments"] == 0
    (table,) = content["merged"]["tables"]
    assert table["query"] == "SELECT * FROM delta.`file:/lake/a``b` VERSION AS OF 7"
    lines = pgcdc("status", "changes", "--warehouse", "lake").out.splitlines()
    assert lines[-1].split() == ["public.t", "1", "0/10", "7"]
    assert "to merge      nothing" in lines


@pytest.mark.usefixtures("changes")
def test_what_is_wrong_with_a_merged_table_stands_below_the_tables(pgcdc, tmp_path):
    """It is a sentence or more, and would make the table of tables unreadable."""
    record(
        tmp_path,
        problem='could not merge "public.t": it has no key',
        warning='"public.t" has the new column "b"',
    )
    lines = pgcdc("status", "changes", "--warehouse", "lake").out.splitlines()
    assert lines[-5:] == [
        "MERGED    SEGMENT   LSN  VERSION",
        "public.t        1  0/10        7",
        "",
        'problem  could not merge "public.t": it has no key',
        'warning  "public.t" has the new column "b"',
    ]


@pytest.mark.usefixtures("changes")
def test_segments_that_wait_are_counted(pgcdc, tmp_path):
    record(tmp_path, segment=0, version=None)
    content = json.loads(pgcdc("status", "changes", "--warehouse", "lake", "--json").out)
    assert content["merged"]["waiting_segments"] == 1
    assert content["merged"]["tables"][0]["query"] is None


@pytest.mark.usefixtures("changes")
def test_a_warehouse_without_a_record_is_said_to_be_one(pgcdc, tmp_path):
    (tmp_path / "lake").mkdir()
    for place in ("lake", "s3a://lake/shop"):
        ran = pgcdc("status", "changes", "--warehouse", place)
        assert ran.status == 0
        assert ran.err == (
            f'pgcdc: warning: can\'t tell what is merged into "{place}": no merge has left its record there\n'
        )


def test_a_path_that_the_system_does_not_let_us_examine_with_a_warehouse(refused):
    # As in another user's folder; but root, who may run the tests, can examine that.
    name = "x" * 256
    refused(
        *("status", name, "--warehouse", "lake"),
        status=9,
        error=f'could not examine "{name}": File name too long',
        hint="only what was written was confirmed: fix the cause and run again",
    )


@pytest.mark.usefixtures("changes")
def test_a_warehouse_that_is_not_there_is_an_error_behind_the_rest(pgcdc):
    ran = pgcdc("status", "changes", "--warehouse", "lak")
    assert (ran.status, ran.out) == (2, pgcdc("status", "changes").out)
    assert ran.err.splitlines()[-2:] == [
        'pgcdc: error: could not find warehouse "lak"',
        "hint: check its name: pgcdc spark-submit --warehouse makes it at its first merge",
    ]


def test_a_directory_that_is_not_there_is_refused(refused):
    refused(
        *("status", "chnges"),
        status=2,
        error='could not read "chnges": it does not exist',
        hint="give the directory that pgcdc stream -D writes, or the file of -f",
    )


def test_a_directory_that_is_none_is_refused(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(
        "status",
        "empty",
        status=2,
        error='could not read "empty": there is neither checkpoint.json nor manifest.jsonl in it',
        hint="give the directory that pgcdc stream -D writes, or the file of -f",
    )


def test_a_file_says_how_far_it_is(shop, pgcdc, tmp_path):
    slot = shop.copy_slot(shop.slot)
    (tmp_path / "out").mkdir()
    given = ("-d", shop.uri, "-S", slot, "--publication", "p", "-f", "out/changes.jsonl", "--endpos", "now")
    assert pgcdc("stream", *given).status == 0
    ran = pgcdc("status", "out/changes.jsonl", "-d", shop.uri)
    assert (ran.status, ran.err) == (0, "")
    written = (tmp_path / "out" / "changes.jsonl").read_text()
    content = json.loads(pgcdc("status", "out/changes.jsonl", "-d", shop.uri, "--json").out)
    checkpoint = content["checkpoint"]
    assert (checkpoint["slot"], checkpoint["unfinished_rows"]) == (slot, written.count("\n"))
    assert content["slot"]["confirmed_flush_lsn"] == checkpoint["end_lsn"]
    lines = dict(line.split("  ", 1) for line in ran.out.splitlines())
    assert lines["durable to"].strip() == checkpoint["end_lsn"]
    assert lines["file"].strip() == f"{written.count(chr(10))} changes, {human_bytes(len(written.encode()))}"
    assert "segments" not in lines
    assert lines["read by"].strip() == "nobody"


def test_a_file_without_rows_is_a_file_too(shop, pgcdc):
    slot = shop.create_slot()
    given = ("-d", shop.uri, "-S", slot, "--publication", "p", "-f", "changes.jsonl", "--endpos", "now")
    assert pgcdc("stream", *given).status == 0
    lines = dict(line.split("  ", 1) for line in pgcdc("status", "changes.jsonl").out.splitlines())
    assert lines["file"].strip() == "0 changes, 0 bytes"
    assert "segments" not in lines


def test_a_file_that_lacks_what_was_durable_is_an_error(shop, pgcdc, tmp_path):
    """One that is missing was moved, perhaps a moment ago: its stream goes on."""
    slot, out = shop.copy_slot(shop.slot), tmp_path / "changes.jsonl"
    given = ("-d", shop.uri, "-S", slot, "--publication", "p", "-f", "changes.jsonl", "--endpos", "now")
    assert pgcdc("stream", *given).status == 0
    whole = out.stat().st_size
    os.truncate(out, 100)
    ran = pgcdc("status", "changes.jsonl")
    assert ran.status == 10
    assert ran.err.startswith(f'pgcdc: error: could not read "changes.jsonl": it has 100 bytes, {whole} were')
    out.rename(tmp_path / "changes.1")
    assert pgcdc("status", "changes.jsonl").status == 0


def test_a_file_of_somebody_else_is_refused(refused, tmp_path):
    (tmp_path / "changes.jsonl").write_text("")
    refused(
        "status",
        "changes.jsonl",
        status=2,
        error='could not read "changes.jsonl": there is no changes.jsonl.checkpoint next to it',
        hint="give the directory that pgcdc stream -D writes, or the file of -f",
    )
    refused(
        *("status", "changes.jsonl", "--warehouse", "lake"),
        status=2,
        error="could not read the command line: --warehouse: only a directory is merged",
        hint="see pgcdc status --help",
    )


@pytest.mark.usefixtures("changes")
def test_a_damaged_record_is_an_error(pgcdc, tmp_path):
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "_pgcdc.json").write_text("{}")
    ran = pgcdc("status", "changes", "--warehouse", "lake")
    assert ran.status == 14
    assert 'could not read "lake/_pgcdc.json"' in ran.err


def test_transactions_that_are_prepared_are_named(shop, pgcdc):
    given = ("stream", "-d", shop.uri, "-S", shop.copy_slot(shop.slot), "--publication", "p", "--two-phase")
    run = (*given, "-D", "changes", "--endpos", "now")
    assert pgcdc(*run).status == 0
    name = f"gid of {shop.name}"
    shop.execute(
        f"BEGIN; SELECT pg_current_xact_id(); CREATE TABLE prepared (); PREPARE TRANSACTION '{name}'"
    )
    try:
        assert pgcdc(*run).status == 0
        assert f"prepared      {name}" in pgcdc("status", "changes").out.splitlines()
        (one,) = json.loads(pgcdc("status", "changes", "--json").out)["checkpoint"]["prepared"]
        assert one["gid"] == name
    finally:
        shop.execute(f"ROLLBACK PREPARED '{name}'")
    assert pgcdc(*run).status == 0
    assert "prepared" not in pgcdc("status", "changes").out


@pytest.mark.parametrize("version", VERSIONS)
def test_a_slot_that_is_invalidated_is_an_error_behind_the_rest(own_server, pgcdc, version):
    small = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    server = own_server(version, small)
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute("CREATE PUBLICATION p")
        given = ("-d", server.uri(), "-S", "s", "--create-slot", "--publication", "p", "-D", "changes")
        assert pgcdc("stream", *given, "--endpos", "now").status == 0
        for _ in range(4):
            admin.execute("SELECT pg_logical_emit_message(false, '', ''), pg_switch_wal()")
        admin.execute("CHECKPOINT")
    ran = pgcdc("status", "changes", "-d", server.uri())
    assert ran.status == 6
    assert "\ninvalidated   wal_removed\n" in ran.out
    assert ran.err == (
        'pgcdc: error: could not continue with slot "s": invalidated (wal_removed)\n'
        "hint: its changes are lost: drop it, and start over, with a snapshot, in another directory or file\n"
    )
    assert "\ninvalidated    wal_removed\n" in pgcdc("slot", "show", "s", "-d", server.uri()).out
    altered = pgcdc("slot", "alter", "s", "--failover", "-d", server.uri())
    assert (altered.status, altered.err) == (6, ran.err.replace("continue with", "alter"))


def test_a_slot_beyond_the_checkpoint_is_a_gap(changes, shop, pgcdc):
    end = shop.confirmed(changes)
    shop.execute("SELECT pg_logical_emit_message(true, 'x', 'x')")
    advance = "SELECT end_lsn::text FROM pg_replication_slot_advance(%s, pg_current_wal_lsn())"
    [position] = shop.execute(advance, (changes,)).fetchone()
    ran = pgcdc("status", "changes", "-d", shop.uri)
    assert ran.status == 6
    assert f"confirmed     {position}" in ran.out
    assert ran.err == (
        f'pgcdc: error: could not continue with slot "{changes}": it is at {position},'
        f" the output ends at {end}\n"
        "hint: changes in between are lost: --accept-gap continues without them\n"
    )


# --verify


@pytest.fixture
def files(shop, pgcdc, tmp_path):
    """A directory of two finished segments; returns the files of each."""
    slot = shop.copy_slot(shop.slot)
    for _ in range(2):
        given = ("-d", shop.uri, "-S", slot, "--publication", "p", "-D", "changes", "--endpos", "now")
        assert pgcdc("stream", *given).status == 0
        shop.execute("UPDATE items SET n = n + 1")
    manifest = (tmp_path / "changes" / "manifest.jsonl").read_text().splitlines()
    return [[tmp_path / "changes" / file["path"] for file in json.loads(line)["files"]] for line in manifest]


def test_files_that_are_as_written_are_said_to_be_so(files, pgcdc):
    ran = pgcdc("status", "changes", "--verify")
    assert (ran.status, ran.err) == (0, "")
    size = human_bytes(sum(file.stat().st_size for segment in files for file in segment))
    assert f"verified      {sum(map(len, files))} files, {size}: as they were written" in ran.out.splitlines()
    assert json.loads(pgcdc("status", "changes", "--json").out)["verified"] is None


def test_every_damaged_or_missing_file_is_named(files, pgcdc, tmp_path):
    first, second = files[0][:2]
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    second.unlink()
    assert pgcdc("status", "changes").status == 0
    ran = pgcdc("status", "changes", "--verify")
    assert ran.status == 10
    names = [str(file.relative_to(tmp_path)) for file in (first, second)]
    *damages, error, hint = ran.err.splitlines()
    assert damages[0].startswith(f'pgcdc: warning: could not read "{names[0]}": its checksum is ')
    assert damages[1] == f'pgcdc: warning: could not read "{names[1]}": No such file or directory'
    count = sum(map(len, files))
    assert error == f'pgcdc: error: could not verify "changes": 2 of {count} files are missing or damaged'
    assert hint == "hint: restore them from a copy"
    assert f"verified      {count} files, " in ran.out
    verified = json.loads(pgcdc("status", "changes", "--verify", "--json").out)["verified"]
    assert (verified["files"], len(verified["damages"]), verified["moved_segments"]) == (count, 2, 0)


def test_a_missing_schema_file_is_damage(files, pgcdc, tmp_path):
    for schema in (tmp_path / "changes" / "schemas").iterdir():
        schema.unlink()
    verified = json.loads(pgcdc("status", "changes", "--verify", "--json").out)["verified"]
    assert len(verified["damages"]) == verified["files"] == sum(map(len, files))


def test_the_oldest_segments_may_have_been_moved_away(files, pgcdc):
    for file in files[0]:
        file.unlink()
    ran = pgcdc("status", "changes", "--verify")
    assert (ran.status, ran.err) == (0, "")
    assert "moved away    the first 1 of 2 segments" in ran.out.splitlines()


def test_a_file_is_verified_as_far_as_it_is_durable(shop, pgcdc, tmp_path):
    slot, out = shop.copy_slot(shop.slot), tmp_path / "changes.jsonl"
    given = ("-d", shop.uri, "-S", slot, "--publication", "p", "-f", "changes.jsonl", "--endpos", "now")
    assert pgcdc("stream", *given).status == 0
    with out.open("ab") as file:
        file.write(b"torn")
    ran = pgcdc("status", "changes.jsonl", "--verify")
    assert (ran.status, ran.err) == (0, "")
    assert "verified      1 file, " in ran.out
    out.write_bytes(out.read_bytes().replace(b"sku1", b"sku9"))
    ran = pgcdc("status", "changes.jsonl", "--verify")
    assert ran.status == 10
    assert ran.err.splitlines()[1:] == [
        'pgcdc: error: could not verify "changes.jsonl": 1 of 1 file is missing or damaged',
        "hint: restore it from a copy",
    ]


def test_a_view_does_not_verify(refused):
    refused(
        *("status", "changes", "--verify", "--watch"),
        status=2,
        error="could not read the command line: --verify: with --watch, all files would be read each time",
        hint="see pgcdc status --help",
    )
