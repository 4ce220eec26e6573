"""No number of OpenRLHF's that makes no sense gets as far as an engine."""

import math

import pytest

from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.launch.options import build_parser
from openrlhf_rpo.launch.ranges import RANGES

EDGES = [(name, edge) for name, bounds in RANGES.items() for edge in (bounds.low, bounds.high) if math.isfinite(edge)]


@pytest.mark.parametrize(("name", "edge"), EDGES)
def test_a_number_beyond_the_edge_of_its_range_is_refused_by_its_option(parse, name, edge):
    outside = edge - 1 if edge == RANGES[name].low else edge + 1
    with pytest.raises(UsageError, match=f"^--{name} {outside:g}(\\.0)?: "):
        parse(**{name.replace(".", "__"): f"{outside:g}"})


@pytest.mark.parametrize(
    "name", [n for n, a in ((a.dest, a) for a in build_parser()._actions) if n in RANGES and a.type is float]
)
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_no_number_that_is_not_finite_is_accepted(parse, name, number):
    with pytest.raises(UsageError, match=f"^--{name} {number}: "):
        parse(**{name.replace(".", "__"): number})


@pytest.mark.parametrize(
    ("name", "value"), [("rollout.temperature", 0), ("rollout.top_p", 0), ("vllm.gpu_memory_utilization", 0)]
)
def test_a_lower_end_that_does_not_belong_to_its_range_is_refused(parse, name, value):
    with pytest.raises(UsageError, match=f"^--{name} {value}.0: above 0"):
        parse(**{name.replace(".", "__"): value})


def test_every_default_is_in_its_range():
    defaults = {action.dest: action.default for action in build_parser()._actions}
    assert {n for n, bounds in RANGES.items() if defaults[n] is not None and not bounds.admit(defaults[n])} == set()
