"""Laws of verified reuse: what an accepted path and the token after it are distributed as."""

import itertools
import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.cut import CutContext
from openrlhf_rpo.algo.cut.verify import accepted, verify
from openrlhf_rpo.config import CutOptions
from openrlhf_rpo.types import Path

LOG_PROBS = st.lists(st.floats(-5, -0.01), min_size=1, max_size=20)
DRAWS = 40_000
LIMIT = 26.12  # chi-square with 8 degrees of freedom exceeds it with probability 0.001


def cut(then, now, seed=0, finish="length", **options):
    path = Path("q", tuple(range(len(now))), then and tuple(then), finish, 1.0, 1.0)
    context = CutContext((path,), 1, CutOptions(rule="verify", **options), random.Random(seed), (), (tuple(now),))
    return verify(context)[0]


@given(LOG_PROBS, st.integers(0, 100))
def test_an_unchanged_policy_accepts_everything(log_probs, seed):
    assert cut(log_probs, log_probs, seed) == 0


@given(LOG_PROBS, st.integers(0, 100))
def test_a_path_that_ended_writes_its_last_token_anew(log_probs, seed):
    assert cut(log_probs, log_probs, seed, finish="stop") == 1


@given(LOG_PROBS, st.integers(0, 100))
def test_lenience_0_is_plain_sampling_and_a_path_without_log_probs_too(log_probs, seed):
    assert cut(log_probs, log_probs, seed, lenience=0.0) == len(log_probs)
    assert cut(None, log_probs, seed) == len(log_probs)


def test_worked_example():
    then, now = [math.log(q) for q in (0.5, 0.5, 0.4)], [math.log(p) for p in (0.6, 0.4, 0.2)]
    kept = Counter(3 - cut(then, now, seed) for seed in range(20_000))
    expected = {1: 0.2, 2: 0.8 * 0.5, 3: 0.8 * 0.5}
    assert kept.keys() == expected.keys()
    assert all(abs(kept[k] / 20_000 - share) < 0.02 for k, share in expected.items())


@given(LOG_PROBS, LOG_PROBS, st.floats(0.1, 3), st.floats(0.1, 3), st.integers(0, 100))
def test_more_lenience_never_accepts_less(then, now, one, other, seed):
    n = min(len(then), len(now))
    low, high = sorted((one, other))
    kept = [accepted(tuple(then[:n]), tuple(now[:n]), lenience, random.Random(seed)) for lenience in (low, high)]
    assert kept[0] <= kept[1]


# A model of two tokens after which a third of three may come, before and after training.
VOCABULARY = (0, 1, 2)
OLD = {(): (0.5, 0.3, 0.2), (0,): (0.6, 0.2, 0.2), (1,): (0.1, 0.8, 0.1), (2,): (0.3, 0.3, 0.4)}
NEW = {(): (0.45, 0.33, 0.22), (0,): (0.55, 0.22, 0.23), (1,): (0.105, 0.79, 0.105), (2,): (0.32, 0.28, 0.4)}


def draw(model, start, generator):
    ids = list(start)
    while len(ids) < 2:
        ids.append(generator.choices(VOCABULARY, model[tuple(ids)])[0])
    return tuple(ids)


def log_probs(model, ids):
    return tuple(math.log(model[ids[:t]][token]) for t, token in enumerate(ids))


def reused(lenience, seed):
    """A path of the old policy, verified by the new one and finished by it."""
    generator = random.Random(seed)
    ids = draw(OLD, (), generator)
    kept = accepted(log_probs(OLD, ids), log_probs(NEW, ids), lenience, generator)
    return draw(NEW, ids[:kept], generator)


def probability(model, ids):
    return math.exp(sum(log_probs(model, ids)))


def chi_square(lenience, expected):
    """Pearson's statistic of the nine paths, which has 8 degrees of freedom."""
    counts = Counter(reused(lenience, seed) for seed in range(DRAWS))
    paths = itertools.product(VOCABULARY, repeat=2)
    return sum((counts[p] - DRAWS * expected(p)) ** 2 / (DRAWS * expected(p)) for p in paths)


@pytest.mark.parametrize("lenience", [0.0, 0.5, 0.8])
def test_below_every_growth_of_a_probability_the_samples_are_those_of_the_current_policy(lenience):
    """No probability grew by more than 1.15 < 1 / 0.8."""
    assert chi_square(lenience, lambda ids: probability(NEW, ids)) < LIMIT


def test_at_lenience_1_a_sample_is_off_by_what_the_redrawn_token_lacks_of_the_residual():
    """min(q, p) + (1 - sum min(q, p)) p at each token, as the rule's own page says; the policy it is not."""

    def model(start):
        kept = [min(q, p) for q, p in zip(OLD[start], NEW[start], strict=True)]
        return tuple(k + (1 - sum(kept)) * p for k, p in zip(kept, NEW[start], strict=True))

    # After a rejected first token the second is drawn from the new policy; after an accepted one it is verified.
    def expected(ids):
        first = min(OLD[()][ids[0]], NEW[()][ids[0]])
        redrawn = model(())[ids[0]] - first
        return first * model(ids[:1])[ids[1]] + redrawn * NEW[ids[:1]][ids[1]]

    assert chi_square(1.0, expected) < LIMIT
    assert max(abs(expected(ids) - probability(NEW, ids)) for ids in itertools.product(VOCABULARY, repeat=2)) < 0.03


def test_the_draw_from_the_old_policy_alone_would_be_found_out():
    assert chi_square(1e9, lambda ids: probability(NEW, ids)) > 4 * LIMIT
