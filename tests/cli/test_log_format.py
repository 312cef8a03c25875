"""`--log-format json`: what is said on standard error, an object a line."""

import json
import subprocess
from datetime import datetime

import psycopg
import pytest
from processes import PGCDC, wait_until

FIELDS = ["time", "level", "program", "message"]


def said(text):
    """The objects, of which each has a time with its zone."""
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


def test_with_debug_it_has_the_traceback(pgcdc):
    [error] = said(pgcdc("--log-format", "json", "--debug", "show", "nowhere").err)
    assert error["traceback"].startswith("Traceback (most recent call last):\n")
    assert error["versions"].startswith("pgcdc ")


def test_a_running_stream_says_what_happens_to_it(shop, tmp_path):
    slot = shop.copy_slot(shop.slot)
    log = tmp_path / "log"
    given = ("-d", shop.uri, "-S", slot, "--publication", "p", "-D", "d", "--progress")
    with log.open("w") as file:
        line = [*PGCDC, "--log-format", "json", "stream", *given]
        running = subprocess.Popen(line, cwd=tmp_path, stderr=file)
        wait_until((tmp_path / "d" / "checkpoint.json").exists)
        with psycopg.connect(shop.uri, autocommit=True) as admin:
            query = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s"
            wait_until(lambda: admin.execute(query, (slot,)).fetchone() == (True,))
        wait_until(lambda: "trying again" in log.read_text())
        running.terminate()
        assert running.wait(60) == 0
    objects = said(log.read_text())
    assert all(list(one) == FIELDS for one in objects)
    assert [one["level"] for one in objects if "trying again" in one["message"]] == ["warning"]
    assert objects[-1]["level"] == "info"
    assert "rows in" in objects[-1]["message"]
