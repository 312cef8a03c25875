"""The size of tests that can have any size: `--scale N` makes them N times as large."""

from hypothesis import Phase, settings

factor = 1
"""Set by tests/conftest.py, before any test is imported."""


def examples(count: int) -> settings:
    """Run `count` examples of hypothesis, or `factor` times as many.

    A failing example is shrunk only if `factor` is larger than 1, because that can take minutes.
    """
    phases = [phase for phase in Phase if factor > 1 or phase not in {Phase.shrink, Phase.explain}]
    return settings(max_examples=count * factor, phases=phases)
