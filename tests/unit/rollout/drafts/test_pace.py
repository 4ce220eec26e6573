"""The longest draft that pays."""

import pytest

from openrlhf_rpo.rollout.drafts.pace import Pace


def paced(a, b, tokens=(1, 4, 16, 64)):
    pace = Pace()
    for n in tokens:
        pace.add(n, a + b * n)
    return pace


def test_the_costs_are_those_that_the_passes_had():
    assert paced(0.01, 0.002).costs() == pytest.approx((0.01, 0.002))


def test_old_passes_are_forgotten():
    pace = paced(0.5, 0.1)
    for _ in range(1000):
        for n in (1, 8):
            pace.add(n, 0.01 + 0.002 * n)
    assert pace.costs() == pytest.approx((0.01, 0.002), rel=0.01)


def test_before_passes_of_different_size_every_draft_is_tried():
    assert paced(0.01, 0.002, tokens=(5, 5, 5)).longest(0.5, 8, 4) == 4


@pytest.mark.parametrize(
    ("a", "b", "acceptance", "requests", "longest"),
    [
        (0.01, 0.0, 0.1, 64, 8),  # tokens cost nothing
        (0.0, 0.01, 0.9, 64, 0),  # passes cost nothing
        (0.03, 0.01, 0.5, 1, 2),  # 0.5^2 x 0.04 = 0.01
        (0.03, 0.01, 0.5, 3, 1),  # 0.5 x 0.02 = 0.01
        (0.03, 0.01, 0.5, 300, 0),
        (0.03, 0.01, 0.9, 1, 8),
    ],
)
def test_a_draft_is_as_long_as_its_last_token_pays(a, b, acceptance, requests, longest):
    assert paced(a, b).longest(acceptance + 1e-9, requests, 8) == longest
