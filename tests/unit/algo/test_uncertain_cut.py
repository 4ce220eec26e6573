"""Laws of the cut that follows the policy's doubt."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.cut import CUT_RULES, CutContext
from openrlhf_rpo.algo.cut.uncertain import uncertain
from openrlhf_rpo.algo.cut.uniform import uniform
from openrlhf_rpo.config import CutOptions
from openrlhf_rpo.types import Path

PROBABILITIES = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30)


def context(probabilities, n=4, seed=0, finish="stop", log_probs=True, **options):
    stored = tuple(math.log(p) for p in probabilities) if log_probs else None
    path = Path("q", tuple(range(len(probabilities))), stored, finish, 1.0, 1.0)
    return CutContext((path,), n, CutOptions(**{"max": "ratio:1", **options}), random.Random(seed))


def test_worked_example_only_the_unsure_tokens_are_cut_at():
    counts = Counter(uncertain(context([0.5, 1.0, 0.5, 1.0], n=20_000, scope="sample")))
    assert sorted(counts) == [2, 4]
    assert abs(counts[2] - 10_000) < 400  # 5.7 standard deviations


def test_a_token_is_cut_at_in_proportion_to_its_doubt():
    """Doubts 0.1, 0.2, 0.3 and 0.4 at tokens 0 to 3, that is at the cuts 4, 3, 2 and 1."""
    counts = Counter(uncertain(context([0.9, 0.8, 0.7, 0.6], n=50_000, scope="sample")))
    for cut, share in {4: 0.1, 3: 0.2, 2: 0.3, 1: 0.4}.items():
        assert abs(counts[cut] / 50_000 - share) < 0.012  # 5 standard deviations


@pytest.mark.parametrize("finish", ["stop", "length"])
@given(PROBABILITIES, st.integers(1, 40), st.sampled_from(["group", "sample"]), st.integers(0, 9))
def test_a_cut_is_within_reach_and_leaves_something_to_generate(finish, probabilities, largest, scope, seed):
    cuts = uncertain(context(probabilities, n=5, seed=seed, finish=finish, scope=scope, max=f"fixed:{largest}"))
    assert len(cuts) == 5
    lowest = 1 if finish == "stop" or any(p < 1 for p in probabilities[-largest:]) else 0
    assert all(lowest <= cut <= min(largest, len(probabilities)) for cut in cuts)


@given(st.integers(0, 99))
def test_a_group_shares_one_cut(seed):
    assert len(set(uncertain(context([0.5] * 20, n=8, seed=seed)))) == 1


def test_samples_can_have_cuts_of_their_own():
    assert len(set(uncertain(context([0.5] * 20, n=64, scope="sample")))) > 1


@pytest.mark.parametrize(
    "without_weights",
    [
        {"probabilities": [0.5] * 10, "log_probs": False},  # imported as text
        {"probabilities": [1.0] * 10},  # sure of everything
        {"probabilities": [0.5] * 10, "max": "fixed:0"},
        {"probabilities": [0.5] * 5 + [1.0] * 5, "max": "fixed:5"},  # unsure, but out of reach
    ],
)
def test_without_doubt_to_weigh_the_cut_is_uniform(without_weights):
    assert [uncertain(context(**without_weights, seed=s)) for s in range(20)] == [
        uniform(context(**without_weights, seed=s)) for s in range(20)
    ]


def test_equal_keys_give_equal_cuts():
    assert uncertain(context([0.3, 0.9] * 9, seed=5)) == uncertain(context([0.3, 0.9] * 9, seed=5))


def test_the_rule_is_registered_under_its_name():
    assert CUT_RULES["uncertain"].choose is uncertain
