"""`--log-format`: messages on standard error as JSON objects, or as text with or without time and level."""

import json
import os
import re
import subprocess
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from processes import PGCDC, stream_command, wait_until
from stream_runs import end_session

FIELDS = ["time", "level", "program", "message"]


def said(text):
    """The messages as objects; each must have a time with a zone."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(datetime.fromisoformat(one["time"]).tzinfo for one in found)
    return found


@pytest.mark.parametrize("place", ["before", "behind"])
def test_an_error_has_its_hint_and_exit_status(pgcdc, place):
    form = ("--log-format", "json")
    ran = pgcdc(*form, "show", "nowhere") if place == "before" else pgcdc("show", "nowhere", *form)
    [error] = said(ran.err)
    assert list(error) == [*FIELDS, "hint", "exit_status"]
    assert (error["level"], error["message"]) == ("error", 'could not open "nowhere": no such file')
    assert error["exit_status"] == ran.status == 2


def test_the_exit_status_of_a_drop_in_is_that_of_the_program_it_replaces(pgcdc):
    ran = pgcdc("--log-format", "json", "recvlogical", "--start")
    [error] = said(ran.err)
    assert (error["program"], error["exit_status"]) == ("pgcdc recvlogical", 1)
    assert ran.status == 1


def test_with_debug_it_has_the_traceback(pgcdc):
    [error] = said(pgcdc("--log-format", "json", "--debug", "show", "nowhere").err)
    assert error["traceback"].startswith("Traceback (most recent call last):\n")
    assert error["versions"].startswith("pgcdc ")


CONFIRMED = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
LOST = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s"


@contextmanager
def streaming(shop, folder, *options, **variables):
    """Run a stream that has confirmed something; yield what kills its session, and its log file."""
    slot = shop.copy_slot(shop.slot)
    given = ("-d", shop.uri, "-S", slot, "--publication", "p", "-D", "d", "--progress", "-F", "0.2")
    environment = {name: value for name, value in os.environ.items() if name != "PGCDC_LOG_FORMAT"}
    log = folder / "log"
    with log.open("w") as file, psycopg.connect(shop.uri, autocommit=True) as admin:
        begin = admin.execute(CONFIRMED, (slot,)).fetchone()
        line = [*PGCDC, *options, "stream", *given]
        running = subprocess.Popen(line, cwd=folder, stderr=file, env=environment | variables)
        wait_until(lambda: admin.execute(CONFIRMED, (slot,)).fetchone() != begin)
        yield lambda: end_session(admin, slot, running), log
        running.terminate()
        assert running.wait(60) == 0


def test_a_running_stream_says_what_happens_to_it(shop, tmp_path):
    with streaming(shop, tmp_path, "--log-format", "json") as (lose, log):
        lose()
        wait_until(lambda: "trying again" in log.read_text())
    objects = said(log.read_text())
    assert all(list(one) == FIELDS for one in objects)
    assert [one["level"] for one in objects if "trying again" in one["message"]] == ["warning"]
    assert objects[-1]["level"] == "info"
    assert "rows in" in objects[-1]["message"]


def test_a_running_stream_says_it_with_the_level(shop, tmp_path):
    with streaming(shop, tmp_path) as (lose, log):
        lose()
        wait_until(lambda: "trying again" in log.read_text())
    lines = log.read_text().splitlines()
    assert all(re.match(r"\S+Z pgcdc: (info|warning): ", line) for line in lines)
    assert [line.split()[2] for line in lines if "trying again" in line] == ["warning:"]
    assert re.fullmatch(r"\S+Z pgcdc: info: .* rows in .*", lines[-1])


CONNECTED = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s AND active"


def test_a_stream_goes_on_if_it_can_not_write_to_its_log(shop, tmp_path):
    """It would say that the connection was lost, before it connects again."""
    slot = shop.copy_slot(shop.slot)
    line = stream_command(shop.uri, slot, "-D", tmp_path / "d", publications=["p"])
    with Path("/dev/full").open("w") as full, psycopg.connect(shop.uri, autocommit=True) as admin:
        running = subprocess.Popen(line, stderr=full)

        def reader():
            assert running.poll() is None
            return admin.execute(CONNECTED, (slot,)).fetchone()

        first = wait_until(reader)
        admin.execute(LOST, (slot,))
        wait_until(lambda: reader() not in {first, None})
        running.terminate()
        assert running.wait(60) == 0


NO_SERVER = [*PGCDC, "stream", "-h", "/nowhere", "-S", "s", "--publication", "p", "-D", "d", "-n"]
ERROR = re.compile(r"pgcdc: error: could not connect to the server: .*\r?\nhint: .*\r?\n")
TIMED = re.compile(r"(\S+Z) pgcdc: error: could not connect to the server: .*\n(\S+Z) pgcdc: hint: .*\n")


@pytest.fixture
def said_by(tmp_path):
    """Run a command line after the shell command `before`; return its standard error if `errors` is None."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "JOURNAL"))}

    def run(line, errors=None, before="", **variables):
        log = tmp_path / "log"
        with log.open("wb") as file:
            shell = ["sh", "-c", f'{before} exec "$@"', "sh", *line]
            error = file if errors is None else errors
            ran = subprocess.run(shell, stderr=error, env={**clean, **variables}, cwd=tmp_path, check=False)
        assert ran.returncode == 3
        return log.read_text()

    return run


def test_a_log_of_what_has_no_end_has_time_and_level(said_by):
    before = datetime.now(UTC).replace(microsecond=0)
    times = TIMED.fullmatch(said_by(NO_SERVER)).groups()
    assert all(before <= datetime.fromisoformat(time) <= datetime.now(UTC) for time in times)
    following = [*PGCDC, "--log-format", "timed", "slot", "list", "-h", "/nowhere"]
    assert TIMED.fullmatch(said_by(following))


@pytest.mark.parametrize("end", ["--endpos=now", "--idle-timeout=1s"])
def test_what_has_an_end_does_without(said_by, end):
    assert ERROR.fullmatch(said_by([*NO_SERVER, end]))


def test_so_does_what_is_asked_for_text(said_by):
    assert ERROR.fullmatch(said_by([*NO_SERVER, "--log-format", "text"]))
    assert ERROR.fullmatch(said_by(NO_SERVER, PGCDC_LOG_FORMAT="text"))


def test_so_does_the_journal_which_has_the_time(said_by):
    journal = 'export JOURNAL_STREAM="$(stat -L -c %d:%i /dev/stderr)"; '
    assert ERROR.fullmatch(said_by(NO_SERVER, before=journal))
    # The variable names another file as the journal, and this standard error is not that file.
    assert TIMED.fullmatch(said_by(NO_SERVER, JOURNAL_STREAM="1:2"))


def test_so_does_a_terminal(said_by):
    controller, terminal = os.openpty()
    said_by(NO_SERVER, terminal, NO_COLOR="1")
    os.close(terminal)
    assert ERROR.fullmatch(os.read(controller, 1 << 16).decode())
    os.close(controller)
