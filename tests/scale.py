"""How large those tests are that can be of any size: `--scale N` makes them N times as large."""

from hypothesis import Phase, settings

factor = 1
"""Set by tests/conftest.py, before any test is imported."""


def examples(count: int) -> settings:
    """So many examples of hypothesis, or `factor` times as many.

    Only where there are more is one that fails made smaller: that can take minutes.
    """
    phases = [phase for phase in Phase if factor > 1 or phase not in {Phase.shrink, Phase.explain}]
    return settings(max_examples=count * factor, phases=phases)
