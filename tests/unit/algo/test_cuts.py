"""Laws of the cuts: the paper's uniform draw, and the one that follows the policy's doubt."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.cuts import largest_cut, uncertain, uniform

RULES = st.one_of(
    st.integers(0, 60).map("fixed:{}".format),
    st.integers(1, 100).map(lambda percent: f"ratio:{percent / 100}"),
)
PROBABILITIES = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("rule", "path_length", "shortest", "largest"),
    [
        ("ratio:0.5", 10, 8, 4),
        ("ratio:0.5", 10, 7, 3),  # 3.5 is rounded down
        ("ratio:0.29", 100, 100, 29),  # 0.29 * 100 is 28.999999999999996
        ("ratio:1", 10, 30, 10),  # never more than the path
        ("fixed:300", 1000, 8, 300),
        ("fixed:300", 120, 8, 120),
        ("fixed:0", 10, 8, 0),
    ],
)
def test_largest_cut_by_hand(rule, path_length, shortest, largest):
    assert largest_cut(rule, path_length, shortest) == largest


@given(st.integers(1, 50), st.integers(1, 50), RULES)
def test_largest_cut_never_exceeds_the_path(path_length, shortest, rule):
    assert 0 <= largest_cut(rule, path_length, shortest) <= path_length


# ── Uniform ──


def test_every_cut_from_0_to_the_largest_is_equally_likely():
    generator = random.Random(0)
    counts = Counter(uniform(4, generator) for _ in range(50_000))
    assert sorted(counts) == [0, 1, 2, 3, 4]
    assert all(abs(count - 10_000) < 500 for count in counts.values())  # 5.6 standard deviations


# ── Uncertain ──


def logs(probabilities):
    return tuple(math.log(p) for p in probabilities)


def draws(probabilities, n, largest=99):
    generator = random.Random(0)
    return Counter(uncertain(logs(probabilities), largest, generator) for _ in range(n))


def test_worked_example_only_the_unsure_tokens_are_cut_at():
    counts = draws([0.5, 1.0, 0.5, 1.0], 20_000)
    assert sorted(counts) == [2, 4]
    assert abs(counts[2] - 10_000) < 400  # 5.7 standard deviations


def test_a_token_is_cut_at_in_proportion_to_its_doubt():
    """Doubts 0.1, 0.2, 0.3 and 0.4 at tokens 0 to 3, that is at the cuts 4, 3, 2 and 1."""
    counts = draws([0.9, 0.8, 0.7, 0.6], 50_000)
    for cut, share in {4: 0.1, 3: 0.2, 2: 0.3, 1: 0.4}.items():
        assert abs(counts[cut] / 50_000 - share) < 0.012  # 5 standard deviations


@given(PROBABILITIES, st.integers(1, 40), st.integers(0, 9))
def test_a_cut_is_within_reach_and_leaves_something_to_generate_where_there_is_doubt(probabilities, largest, seed):
    largest = min(largest, len(probabilities))
    cut = uncertain(logs(probabilities), largest, random.Random(seed))
    lowest = 1 if any(p < 1 for p in probabilities[-largest:]) else 0
    assert lowest <= cut <= largest


@pytest.mark.parametrize(
    ("log_probs", "largest"),
    [
        (None, 10),  # imported as text
        (logs([1.0] * 10), 10),  # sure of everything
        (logs([0.5] * 10), 0),
        (logs([0.5] * 5 + [1.0] * 5), 5),  # unsure, but out of reach
    ],
)
def test_without_doubt_to_weigh_the_cut_is_uniform(log_probs, largest):
    for seed in range(20):
        assert uncertain(log_probs, largest, random.Random(seed)) == uniform(largest, random.Random(seed))
