"""Only the owner may read what is written, unless `--file-mode` says otherwise, whatever the umask is."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import stream_command, wait_until
from stream_runs import NOW, insert, stream
from warm_process import run_warm

from pgcdc_cli.directory.disk import Disk

MODES = {
    (): (0o600, 0o700),
    ("--file-mode", "0640"): (0o640, 0o750),
    ("--file-mode", "604"): (0o604, 0o705),
}
"""The modes of files and of folders, by option."""

UMASKS = [0, 0o077]


def run(source, slot: str, umask: int, *arguments: str) -> None:
    line = stream_command(source.uri, slot, *arguments)
    done = run_warm(line, umask=umask)
    assert done.returncode == 0, done.stderr


def modes(folder: Path, *but: Path) -> dict[str, set[int]]:
    """The modes of all files and of all folders below a folder, except those in `but`."""
    found = {"file": set(), "folder": set()}
    for path in folder.rglob("*"):
        if path not in but:
            found["folder" if path.is_dir() else "file"].add(path.stat().st_mode & 0o7777)
    return found


def expected(mode: tuple[str, ...]) -> dict[str, set[int]]:
    of_files, of_folders = MODES[mode]
    return {"file": {of_files}, "folder": {of_folders}}


@pytest.mark.parametrize("umask", UMASKS)
@pytest.mark.parametrize("mode", MODES)
def test_everything_in_a_directory(source, tmp_path, mode, umask):
    slot, out = source.create_slot(), tmp_path / "out"
    insert(source, 1, 1)
    run(source, slot, umask, "-D", str(out), *NOW, *mode)
    insert(source, 2, 2)
    run(source, slot, umask, "-D", str(out), *NOW, *mode)
    names = {path.name for path in out.rglob("*")}
    assert names >= {".lock", "checkpoint.json", "manifest.jsonl", "schemas", "public.t"}
    assert modes(tmp_path) == expected(mode)


@pytest.mark.parametrize("umask", UMASKS)
@pytest.mark.parametrize("mode", MODES)
def test_a_file_and_what_is_beside_it(source, tmp_path, mode, umask):
    slot = source.create_slot()
    insert(source, 1, 1)
    run(source, slot, umask, "-f", str(tmp_path / "out"), *NOW, *mode)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.checkpoint", "out.lock"}
    assert modes(tmp_path)["file"] == expected(mode)["file"]


@pytest.mark.parametrize("umask", UMASKS)
@pytest.mark.parametrize("mode", MODES)
def test_raw_output(source, tmp_path, mode, umask):
    slot = source.create_slot()
    insert(source, 1, 1)
    run(source, slot, umask, "-f", str(tmp_path / "out"), "--format", "raw", *NOW, *mode)
    assert modes(tmp_path)["file"] == expected(mode)["file"]


@pytest.mark.parametrize("form", ["jsonl", "raw"])
def test_a_file_that_is_there_keeps_its_mode(source, tmp_path, form):
    slot, out = source.create_slot(), tmp_path / "out"
    out.touch()
    out.chmod(0o644)
    insert(source, 1, 1)
    run(source, slot, 0, "-f", str(out), "--format", form, *NOW)
    assert out.stat().st_mode & 0o7777 == 0o644
    assert modes(tmp_path, out)["file"] <= {0o600}


def test_a_directory_that_is_there_keeps_its_mode(source, tmp_path):
    slot, out = source.create_slot(), tmp_path / "out"
    out.mkdir()
    out.chmod(0o755)
    insert(source, 1, 1)
    run(source, slot, 0, "-D", str(out), *NOW)
    assert out.stat().st_mode & 0o7777 == 0o755
    assert modes(out) == expected(())


def test_what_a_crash_left_does_not_decide_over_the_mode_of_the_next(tmp_path):
    path = tmp_path / "checkpoint.json"
    left = tmp_path / "checkpoint.json.tmp"
    left.write_text("half of one")
    left.chmod(0o666)
    Disk().replace(str(path), b"whole")
    assert (path.read_bytes(), path.stat().st_mode & 0o7777) == (b"whole", 0o600)
    assert not left.exists()


@pytest.mark.parametrize("umask", UMASKS)
@pytest.mark.parametrize("where", ["-D", "-f"])
@pytest.mark.parametrize("mode", MODES)
def test_the_spool_of_a_prepared_transaction(source, tmp_path, mode, where, umask):
    slot, gid = source.create_slot(two_phase=True), source.name
    insert(source, 1, 1)
    source.execute("BEGIN")
    insert(source, 2, 2)
    source.execute(f"PREPARE TRANSACTION '{gid}'")
    run(source, slot, umask, where, str(tmp_path / "out"), "--two-phase", *NOW, *mode)
    assert list(tmp_path.rglob("*.spool/*.spool" if where == "-f" else "_spool/*.spool"))
    assert modes(tmp_path) == expected(mode)


@pytest.mark.parametrize("umask", UMASKS)
def test_the_spool_of_a_large_transaction_beside_standard_output(source, tmp_path, umask):
    slot = source.create_slot()
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PGOPTIONS": "-c logical_decoding_work_mem=64kB"}
    line = stream_command(source.uri, slot)
    with subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, umask=umask) as process:
        try:
            source.execute("BEGIN")
            source.execute(
                "INSERT INTO t SELECT g, string_agg(md5(random()::text || g || h), '')"
                " FROM generate_series(1, 3000) g, generate_series(1, 30) h GROUP BY g"
            )
            wait_until(lambda: list(tmp_path.rglob("*.spool")))
            assert modes(tmp_path) == expected(())
        finally:
            process.terminate()
            source.execute("ROLLBACK")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("umask", UMASKS)
@pytest.mark.parametrize("mode", MODES)
def test_the_bytes_of_a_message_that_could_not_be_decoded(source, tmp_path, mode, umask):
    """They are a table's data, too."""
    slot = source.create_slot()
    insert(source, 1, 1)
    broken = (
        "import sys; from pgcdc_cli.stream import encode; from pgcdc_cli.errors import UndecodableError\n"
        "def fail(*_): raise UndecodableError('could not decode it', b'bytes')\n"
        "encode.ChangeEncoder.encode = fail\n"
        "from pgcdc_cli.cli.app import run; sys.exit(run(sys.argv[1:]))"
    )
    line = stream_command(source.uri, slot, "-D", str(tmp_path / "out"), *NOW, *mode)
    command = [sys.executable, "-c", broken, *line[3:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, umask=umask)
    assert done.returncode == 8, done.stderr
    (bad,) = tmp_path.rglob("*.bad")
    assert bad.stat().st_mode & 0o7777 == MODES[mode][0]


@pytest.mark.parametrize("mode", ["0400", "0200", "0077", "1600", "0o640", "u=rw", "-640", "99", ""])
def test_modes_that_are_refused(tmp_path, mode):
    ran = stream("dbname=nix", "s", "-D", str(tmp_path / "out"), "--file-mode", mode)
    assert ran.returncode == 2
    assert re.match("pgcdc: error: could not read the command line: --file-mode: ", ran.stderr)
    assert not (tmp_path / "out").exists()
