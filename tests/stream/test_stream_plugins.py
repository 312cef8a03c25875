"""Slots of other plugins: raw output only."""

import subprocess
from pathlib import Path

import psycopg
import pytest
from debian_server import DebianServer
from processes import stream_command
from stream_runs import stream

INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/lib/test_decoding.so"))
"""The embedded servers have no plugin but pgoutput; a distribution's packages have others."""


@pytest.fixture
def test_decoding():
    """A connection string to a server of the distribution, with a slot `s` of that plugin and some rows."""
    if not INSTALLED:
        pytest.skip("no PostgreSQL with the plugin test_decoding in /usr/lib/postgresql")
    server = DebianServer(programs=INSTALLED[-1].parent.parent / "bin")
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute("CREATE TABLE t (a int PRIMARY KEY, b text)")
        admin.execute("SELECT pg_create_logical_replication_slot('s', 'test_decoding')")
        admin.execute("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    yield server.uri()
    server.stop()


def test_what_another_plugin_says_goes_into_raw_output_only(test_decoding, tmp_path):
    refused = stream(test_decoding, "s", "-D", str(tmp_path / "out"))
    assert refused.returncode == 2
    assert refused.stderr == (
        'pgcdc: error: could not stream slot "s": its plugin is test_decoding,'
        " which only --format raw can write\n"
        "hint: choose another slot: pgcdc slot list shows them, pgcdc slot create makes one\n"
    )
    options = ["--format", "raw", "-o", "include-xids=0", "-E", "now"]
    line = stream_command(test_decoding, "s", *options, publications=())
    run = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == (
        "BEGIN\n"
        "table public.t: INSERT: a[integer]:1 b[text]:'one'\n"
        "table public.t: INSERT: a[integer]:2 b[text]:'two'\n"
        "COMMIT\n"
    )
