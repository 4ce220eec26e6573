"""Options with numbers that no run can use: every bound of the one table, from both sides, and what is no finite number."""

import math

import pytest

from openrlhf_rpo.launch.options import build_parser
from openrlhf_rpo.launch.ranges import RANGES
from openrlhf_rpo.option import Bounds


def outside(bounds: Bounds) -> list[float]:
    """A number at or beyond each end."""
    beyond = []
    if bounds.low > -math.inf:
        beyond.append(bounds.low if bounds.open[0] else bounds.low - 1)
    if bounds.high < math.inf:
        beyond.append(bounds.high if bounds.open[1] else bounds.high + 1)
    return beyond


LISTS = {action.dest for action in build_parser()._actions if action.nargs not in (None, 0)}
ATTACKS = [(name, number) for name, bounds in RANGES.items() if name not in LISTS for number in outside(bounds)]


@pytest.mark.parametrize(("name", "number"), ATTACKS)
def test_a_number_out_of_bounds_is_refused_by_name(train, name, number):
    assert f"--{name} {number}" in train(**{name.replace(".", "__"): number})
