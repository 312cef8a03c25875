"""At the end of a run, list what was skipped: one line per reason, with the number of tests."""

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the reasons, those with the most tests first."""
    reports = terminalreporter.stats.get("skipped", [])
    # `longrepr` is the file, the line and the reason.
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)
    if not reasons:
        return
    terminalreporter.section(f"not run: {reasons.total()}", yellow=True)
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5}  {reason}")
