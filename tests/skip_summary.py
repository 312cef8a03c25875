"""What a run left out, told at its end: one line per reason, with how many tests it cost."""

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the reasons, the most expensive first."""
    reports = terminalreporter.stats.get("skipped", [])
    # Where it was skipped, its line, and why.
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)
    if not reasons:
        return
    terminalreporter.section(f"not run: {reasons.total()}", yellow=True)
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5}  {reason}")
