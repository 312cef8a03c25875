"""`--watch`: a view that is drawn again and again, with its history."""

import html
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import termios
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from processes import PGCDC, shown_on, wait_until

from pgcdc_cli.cli.watch import History, Sample, sparkline
from pgcdc_cli.lsn import Lsn

PROJECT = Path(__file__).parents[2]
PICTURE = "docs/status-watch.svg"


def test_a_sparkline_reaches_from_nothing_to_the_highest():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([70, 0, -5]) == "█▁▁"
    assert sparkline([]) == ""


def test_rates_come_of_what_was_seen():
    history = History()
    history.add(Sample(10.0, Lsn(1000), 400, 9000))
    assert history.facts() == []
    history.add(Sample(11.0, Lsn(1000), 200, 8000))
    history.add(Sample(12.0, Lsn(5096), 0, 7200 * 2048))
    assert history.facts() == [
        ("log written", "2.0 kB/s  ▁█"),
        ("lag, lately", "0 bytes  █▅▁"),
        ("slot lost in", "2 h, at this rate if it is not read"),
    ]


def test_a_slot_that_can_not_be_lost_has_no_time_left():
    history = History()
    for at in (1.0, 2.0):
        history.add(Sample(at, Lsn(int(at)), 0, None))
    assert [name for name, _ in history.facts()] == ["log written", "lag, lately"]


def test_without_a_terminal_views_follow_one_another(shop, tmp_path):
    shown = tmp_path / "shown"
    line = [*PGCDC, "slot", "list", "-d", shop.uri, "--json", "--watch", "--interval", "0.2s"]
    with shown.open("w") as file:
        watching = subprocess.Popen(line, stdout=file)
    wait_until(lambda: shown.read_text().count(f'"name": "{shop.slot}"') >= 3)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(30) == 130
    assert {"lag_bytes", "safe_wal_bytes"} <= json.loads(shown.read_text().splitlines()[0]).keys()


def test_a_signal_that_is_ignored_ends_nothing(shop, tmp_path):
    """As under nohup."""
    shown = tmp_path / "shown"
    line = [*PGCDC, "slot", "list", "-d", shop.uri, "--json", "--watch", "--interval", "0.2s"]
    with shown.open("w") as file:
        watching = subprocess.Popen(["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *line], stdout=file)

    def views():
        return shown.read_text().count(f'"name": "{shop.slot}"')

    wait_until(views)
    watching.send_signal(signal.SIGHUP)
    before = views()
    wait_until(lambda: views() >= before + 2)
    watching.send_signal(signal.SIGTERM)
    assert watching.wait(30) == 130


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_on_a_terminal_it_is_drawn_in_place(shop, pgcdc, tmp_path, number):
    slot = shop.copy_slot(shop.slot)
    given = ("-d", shop.uri, "-S", slot, "--publication", "p", "-D", "changes", "--endpos", "now")
    assert pgcdc("stream", *given).status == 0
    controller, terminal = os.openpty()
    line = [*PGCDC, "status", "changes", "-d", shop.uri, "--watch", "--interval", "0.2s"]
    watching = subprocess.Popen(line, cwd=tmp_path, stdout=terminal, env={**os.environ, "TERM": "xterm"})
    os.close(terminal)
    shown = b""
    while shown.count(b"lag, lately") < 2:
        shown += os.read(controller, 4096)
    watching.send_signal(number)
    shown += shown_on(controller)
    assert watching.wait(30) == 130
    text = shown.decode()
    assert f"{slot}, database {shop.name}" in text
    assert "▁" in text
    # It switched to the terminal's other screen without a cursor, and back.
    assert text.index("\x1b[?1049h") < text.index("\x1b[?1049l")
    assert text.index("\x1b[?25l") < text.index("\x1b[?25h")


def test_q_ends_it_and_leaves_the_terminal_as_it_was(shop):
    line = [*PGCDC, "slot", "list", "-d", shop.uri, "--watch", "--interval", "600s"]
    waits, goes_on = os.pipe()
    pid, controller = pty.fork()
    if not pid:
        os.read(waits, 1)
        os.execvpe(line[0], line, {**os.environ, "TERM": "xterm"})
    before = termios.tcgetattr(controller)
    os.write(goes_on, b".")
    shown = b""
    while shop.slot.encode() not in shown:
        shown += os.read(controller, 4096)
    for keys in (b"x", b"\x1b[A", b"q"):
        os.write(controller, keys)
    while b"\x1b[?1049l" not in shown:
        shown += os.read(controller, 4096)
    assert os.waitpid(pid, 0)[1] == 0
    assert termios.tcgetattr(controller) == before
    assert b"^[[A" not in shown
    for end in (waits, goes_on, controller):
        os.close(end)


def test_it_is_drawn_again_when_the_terminal_gets_another_size(shop):
    line = [*PGCDC, "slot", "list", "-d", shop.uri, "--watch", "--interval", "600s"]
    # Whoever started the tests may have set these, as readline does; they count more than the terminal.
    unset = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    pid, controller = pty.fork()
    if not pid:
        os.execvpe(line[0], line, {**unset, "TERM": "xterm"})
    termios.tcsetwinsize(controller, (24, 200))
    shown = b""
    while b"LOST" not in shown:
        shown += os.read(controller, 1 << 16)
    termios.tcsetwinsize(controller, (24, 60))
    narrower = b""
    while b"WAL" not in narrower:
        narrower += os.read(controller, 1 << 16)
    assert b"LOST" not in narrower
    os.write(controller, b"q")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_in_the_background_it_leaves_the_keyboard_alone(shop):
    """A shell's job that changes its terminal there is stopped."""
    slots = shlex.join([*PGCDC, "slot", "list", "-d", shop.uri, "--watch", "--interval", "0.2s"])
    pid, controller = pty.fork()
    if not pid:
        os.execvpe("sh", ["sh", "-mc", f"{slots} & wait"], {**os.environ, "TERM": "xterm"})
    shown = b""
    while shown.count(shop.slot.encode()) < 3:
        shown += os.read(controller, 4096)
    os.kill(pid, signal.SIGKILL)
    os.close(controller)
    os.waitpid(pid, 0)


def test_on_a_dumb_terminal_views_follow_one_another(shop):
    controller, terminal = os.openpty()
    line = [*PGCDC, "slot", "list", "-d", shop.uri, "--watch", "--interval", "0.2s"]
    watching = subprocess.Popen(line, stdout=terminal, env={**os.environ, "TERM": "dumb"})
    os.close(terminal)
    shown = b""
    while shown.count(shop.slot.encode()) < 2:
        shown += os.read(controller, 4096)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(30) == 130
    assert b"\x1b" not in shown


def test_what_can_not_be_asked_at_first_is_an_error(pgcdc):
    ran = pgcdc("slot", "list", "-h", "127.0.0.1", "-p", "1", "--watch")
    assert (ran.status, ran.out) == (3, "")
    assert ran.err.startswith("pgcdc: error: could not connect to the server: ")


def names_in(drawn):
    """The labels of a picture's values, such as `lag`; without `unfinished`, which isn't always there."""
    ET.fromstring(drawn)
    lines = (html.unescape(line).replace("\xa0", " ") for line in re.findall(r">([^<]+)</text>", drawn))
    return [line.partition("  ")[0] for line in lines if "  " in line and not line.startswith("unfinished")]


def test_the_readme_shows_what_is_drawn_today():
    drawn = (PROJECT / PICTURE).read_text("utf-8")
    assert f"({PICTURE})" in (PROJECT / "README.md").read_text("utf-8")
    history = History()
    for at in (1.0, 2.0):
        history.add(Sample(at, Lsn(int(at)), 0, 1))
    assert [name for name in names_in(drawn) if name in dict(history.facts())] == list(dict(history.facts()))
    # The picture loads nothing from a server.
    assert set(re.findall(r"https?://[^\s\"]+", drawn)) == {
        "http://www.w3.org/2000/svg",
        "https://www.textualize.io",
    }
    assert len(drawn) < 20_000


@pytest.mark.long
def test_the_picture_can_be_made_anew(tmp_path):
    script = [sys.executable, "tests/screenshot.py", str(tmp_path / "new.svg"), "--seconds", "3"]
    subprocess.run(script, cwd=PROJECT, check=True)
    made = (tmp_path / "new.svg").read_text("utf-8")
    assert names_in(made) == names_in((PROJECT / PICTURE).read_text("utf-8"))
