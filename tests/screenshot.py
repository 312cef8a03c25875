"""Make the README's picture of `pgcdc status --watch` from a real run.

    python tests/screenshot.py docs/status-watch.svg [--seconds 30]

It opens the demo's shop, runs `pgcdc stream` into a directory, and draws the last view after
so many seconds.
"""

import argparse
import io
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from processes import PGCDC, stream_command, wait_until
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text
from servers import started

from pgcdc_cli.demo import shop
from pgcdc_cli.demo.load import Workload

COMMAND = "pgcdc status changes -d shop --watch"
SETTINGS = {"max_slot_wal_keep_size": "2GB"}
RHYTHM = ("--rotate-size", "4MB", "--rotate-interval", "5s", "-s", "1s", "-F", "1s")
FONTS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
"""Web fonts, which the picture would load from another server; a reader's own fonts are good enough."""


@contextmanager
def running(line: list[str], folder: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as file:
        process = subprocess.Popen(line, cwd=folder, stdout=file, stderr=file)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def last_view(folder: Path, seconds: float) -> str:
    """Watch a stream for so many seconds; return the last complete view."""
    with started(18, SETTINGS) as server:
        with psycopg.connect(server.uri(), autocommit=True) as admin:
            admin.execute("CREATE DATABASE shop")
        uri = server.uri("shop")
        shop.create(uri)
        with psycopg.connect(uri, autocommit=True) as admin:
            admin.execute("CREATE PUBLICATION shop_pub FOR TABLES IN SCHEMA shop")
            admin.execute("SELECT pg_create_logical_replication_slot('shop_slot', 'pgoutput')")
        shop.fill(uri, seed=1)
        stream = stream_command(uri, "shop_slot", "-D", "changes", *RHYTHM, publications=["shop_pub"])
        watch = [*PGCDC, "status", "changes", "-d", uri, "--watch", "--interval", "1s"]
        shown = folder / "shown"
        with running(stream, folder, folder / "said"), Workload(uri, rate=200) as load:
            wait_until(lambda: len(list(folder.glob("changes/shop.stock/*.jsonl"))) >= 3)
            with running(watch, folder, shown):
                wait_until(lambda: "slot lost in" in shown.read_text())
                time.sleep(seconds)
            load.stop()
        views = re.split(r"^(?=\d{4}-\d\d-\d\d .* UTC$)", shown.read_text(), flags=re.MULTILINE)
        return views[-2]


def picture(view: str) -> str:
    """Draw a terminal that shows the view, as SVG."""
    lines = [f"$ {COMMAND}", *view.splitlines()]
    console = Console(record=True, width=max(map(len, lines)) + 2, file=io.StringIO(), force_terminal=True)
    console.print(Text("\n".join(lines)), soft_wrap=True)
    drawn = console.export_svg(
        title="pgcdc", code_format=FONTS.sub("", CONSOLE_SVG_FORMAT), unique_id="pgcdc"
    )
    return re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=30)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given.file.write_text(picture(last_view(Path(folder), given.seconds)), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
