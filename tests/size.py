"""How large those tests are that can be of any size."""

import os

from hypothesis import Phase, settings

SCALE = int(os.environ.get("PGCDC_TEST_SCALE", "1"))
"""How many times larger than need be."""


def examples(count: int) -> settings:
    """So many examples of hypothesis, or SCALE times as many.

    Only where there are more is one that fails made smaller: that can take minutes.
    """
    phases = [phase for phase in Phase if SCALE > 1 or phase not in {Phase.shrink, Phase.explain}]
    return settings(max_examples=count * SCALE, deadline=None, phases=phases)
