"""Wrong usage of `pgcdc stream`: one line, a hint, exit status 2."""

import subprocess

import pytest
from processes import stream_command
from stream_runs import position, refused, stream

SEE_HELP = "see pgcdc stream --help"
OTHER_SLOT = "choose another slot: pgcdc slot list shows them, pgcdc slot create makes one"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            "--format parquet",
            '--format: "parquet" is not one of "jsonl", "arrow", "debezium", "pretty", "wal2json", "raw"',
        ),
        ("-E 0x1/0", '-E/--endpos: "0x1/0" is neither now nor an LSN, such as 0/1A2B3C8'),
        ("-E later", '-E/--endpos: "later" is neither now nor an LSN, such as 0/1A2B3C8'),
        ("-I 1", '-I/--startpos: "1" is not an LSN, such as 0/1A2B3C8'),
        (
            "--rotate-size 12parsecs",
            '--rotate-size: "12parsecs" is not a size: a number with a unit (B, kB, MB, GB, TB)',
        ),
        ("--rotate-size 0", '--rotate-size: "0" is less than a byte'),
        (
            "--rotate-size 10",
            '--rotate-size: "10" is less than a kilobyte: a number with a unit, such as 128MB, or 10B',
        ),
        ("--max-time soon", '--max-time: "soon" is not a time: a number with a unit (ms, s, min, h, d)'),
        ("-s -1", '-s/--status-interval: "-1" is not a time: a number with a unit (ms, s, min, h, d)'),
        (
            "--max-transactions 0",
            '--max-transactions: "0" is not a whole number above 0, of at most 18 digits',
        ),
        ("-f x", "-f and -D exclude each other"),
        ("--format pretty", "--format pretty goes into one file (-f) or to standard output"),
        (
            "--two-phase-at prepare --format arrow",
            "--two-phase-at prepare: --format arrow can't show how a transaction ended",
        ),
        ("--spool-limit 0", '--spool-limit: "0" is less than a byte'),
        ("-o novalue", '-o: "novalue" is not NAME=VALUE'),
        ("-o =value", '-o: "=value" is not NAME=VALUE'),
        (
            "--format wal2json --wal2json-option =on",
            '--wal2json-option: "=on" is not NAME=VALUE',
        ),
        ("-o streaming=on", "-o streaming: use --streaming"),
        (
            "-o include-xids=1",
            "-o include-xids: use --format wal2json with --wal2json-option include-xids=VALUE",
        ),
        ("-o binary=true", "-o binary: use --binary"),
        ("--wal2json-option include-xids=on", "--wal2json-option goes with --format wal2json"),
        (
            "--format wal2json",
            (
                "--format wal2json: begins and commits have no place in the tables' files;"
                " use --layout stream, or --wal2json-option include-transaction=false"
            ),
        ),
        (
            "--format wal2json --layout stream --no-catalog",
            (
                "--no-catalog: wal2json's include-types is what the catalog says;"
                " use --wal2json-option include-types=false"
            ),
        ),
        (
            (
                "--format wal2json --layout stream --no-catalog"
                " --wal2json-option include-types=off --wal2json-option filter-origins=1"
            ),
            "--no-catalog: wal2json's filter-origins is what the catalog says; leave it out",
        ),
        (
            "--format wal2json --layout stream --snapshot initial",
            "--snapshot: wal2json can't represent existing rows",
        ),
        (
            "--format wal2json --layout stream --two-phase-at prepare",
            "--two-phase-at prepare: --format wal2json can't show how a transaction ended",
        ),
        ("--if-not-exists", "--if-not-exists goes with --create-slot"),
    ],
)
def test_a_command_line_that_cannot_be_meant(tmp_path, arguments, reason):
    out = tmp_path / "out"
    run = stream("host=/nowhere dbname=never_asked", "s", "-D", str(out), *arguments.split())
    refused(run, 2, f"read the command line: {reason}", SEE_HELP)
    assert not out.exists()


def test_arrow_needs_a_directory(tmp_path):
    file = tmp_path / "x.arrow"
    run = stream("host=/nowhere dbname=never_asked", "s", "--format", "arrow", "-f", str(file))
    reason = "--format arrow needs a directory (-D): a file holds one table"
    refused(run, 2, f"read the command line: {reason}", SEE_HELP)
    assert not file.exists()


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            "--layout stream",
            'use --layout stream with format "arrow": a file has one schema',
            "see pgcdc stream --help",
        ),
        ("--compression gzip", 'use gzip with format "arrow": Arrow has none', "use zstd"),
    ],
)
def test_what_arrow_has_not(tmp_path, arguments, message, hint):
    out = ("-D", str(tmp_path / "out"), "--format", "arrow")
    run = stream("host=/nowhere dbname=never_asked", "s", *out, *arguments.split())
    refused(run, 2, message, hint)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "needs"),
    [("--streaming on", "2"), ("--streaming parallel", "4"), ("--two-phase -D x", "3")],
)
def test_a_protocol_that_is_too_old_for_what_is_asked(options, needs):
    run = stream("host=/nowhere dbname=never_asked", "s", "--proto-version", "1", *options.split())
    what = options.removesuffix(" -D x")
    hint = "leave out --proto-version: the server's newest is the default"
    refused(run, 2, f"use --proto-version 1: {what} needs {needs}", hint)


def test_nothing_keeps_prepared_transactions_for_standard_output(source):
    slot = f"s_{source.name}"
    reason = "nothing keeps a prepared transaction until it commits; use -f or -D, or --two-phase-at prepare"
    refused(
        stream(source.uri, slot, "--two-phase"), 2, f"read the command line: --two-phase: {reason}", SEE_HELP
    )
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", (slot,))
    run = stream(source.uri, slot)
    reason = "it sends prepared transactions, and nothing keeps them: use -f, -D or --two-phase-at prepare"
    refused(run, 2, f'stream slot "{slot}": {reason}', OTHER_SLOT)


def test_a_physical_slot(source, tmp_path):
    slot = f"s_{source.name}"
    source.execute("SELECT pg_create_physical_replication_slot(%s)", (slot,))
    try:
        before = position(source, slot)
        run = stream(source.uri, slot, "-D", str(tmp_path / "out"))
        refused(run, 2, f'stream slot "{slot}": it is a physical slot', OTHER_SLOT)
        assert position(source, slot) == before
    finally:
        source.execute("SELECT pg_drop_replication_slot(%s)", (slot,))


def test_debug_shows_the_traceback_and_nothing_else_does():
    line = stream_command("host=/nowhere", "s", "-n")
    quiet = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    line.insert(line.index("stream"), "--debug")
    loud = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr


@pytest.mark.parametrize("option", ["-D", "-f"])
def test_an_object_store_is_no_folder_of_this_machine(option):
    ended = stream("", "s", option, "s3://lake/changes")
    assert ended.returncode == 2
    assert "is not on this machine: write to a local -D, and copy (stream --on-segment)\n" in ended.stderr
