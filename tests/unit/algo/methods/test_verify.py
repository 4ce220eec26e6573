"""Laws of verified reuse: what an accepted path and the token after it are distributed as."""

import itertools
import math
import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from openrlhf_rpo.algo.methods import Choice, Cut, Scored, Verify
from openrlhf_rpo.algo.methods.prefixes import choose_prefixes
from openrlhf_rpo.algo.methods.verify import accepted, residual_weight
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.types import Path

LOG_PROBS = st.lists(st.floats(-5, -0.01), min_size=1, max_size=20)
DRAWS = 40_000
LIMIT = 26.12  # chi-square with 8 degrees of freedom exceeds it with probability 0.001


def cut(then, now, seed=0, finish="length", lenience=1.0):
    path = Path("q", tuple(range(len(now))), then and tuple(then), finish, 1.0, 1.0)
    return Verify(verify_lenience=lenience).cuts(Cut((path,), random.Random(seed), (), (tuple(now),)))[0]


@given(LOG_PROBS, st.integers(0, 100), st.sampled_from(["length", "stop"]))
def test_an_unchanged_policy_accepts_everything(log_probs, seed, finish):
    assert cut(log_probs, log_probs, seed, finish) == 0


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
@example((-1.0, -1.0), (-1.0, -2.0), 0.5, 1.0, 55)  # another lenience deals each token the same number
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
    while tuple(ids) in model:
        ids.append(generator.choices(VOCABULARY, model[tuple(ids)])[0])
    return tuple(ids)


def log_probs(model, ids):
    return tuple(math.log(model[ids[:t]][token]) for t, token in enumerate(ids))


def reweighted(distribution, token, weight):
    return tuple(p * weight if x == token else p for x, p in zip(VOCABULARY, distribution, strict=True))


def answers(model, start=()):
    return [ids for x in VOCABULARY for ids in answers(model, (*start, x))] if start in model else [start]


def reused(lenience, seed, old=OLD, new=NEW, end=None):
    """A path of the old policy, verified by the new one and finished by it, its first token as ``Rejected`` says."""
    generator = random.Random(seed)
    ids = draw(old, (), generator)
    path = Path("q", ids, log_probs(old, ids), "stop" if ids[-1] == end else "length", 1.0, 1.0)
    now = log_probs(new, ids)
    [prefix] = choose_prefixes(Verify(verify_lenience=lenience), Cut((path,), generator, (), (now,)), len(ids))
    start, refused = tuple(prefix.token_ids), prefix.rejected
    if refused is not None:
        kept = len(start)
        assert refused.token_id == ids[kept] and refused.log_prob == now[kept]
        start = draw(new | {start: reweighted(new[start], refused.token_id, refused.weight)}, start, generator)[: kept + 1]
    return draw(new, start, generator)


def probability(model, ids):
    return math.exp(sum(log_probs(model, ids)))


def chi_square(lenience, expected, old=OLD, new=NEW, end=None):
    """Pearson's statistic of all paths, at most nine, which has at most 8 degrees of freedom."""
    counts = Counter(reused(lenience, seed, old, new, end) for seed in range(DRAWS))
    return sum((counts[p] - DRAWS * expected(p)) ** 2 / (DRAWS * expected(p)) for p in answers(new))


@pytest.mark.parametrize("lenience", [0.0, 0.5, 0.8])
def test_below_every_growth_of_a_probability_the_samples_are_those_of_the_current_policy(lenience):
    """No probability grew by more than 1.15 < 1 / 0.8."""
    assert chi_square(lenience, lambda ids: probability(NEW, ids)) < LIMIT


# One token lost probability, up to half of it, and the others gained alike, as where two tokens share it.
ALIKE = {(): (0.25, 0.45, 0.3), (0,): (0.4, 0.3, 0.3), (1,): (0.15, 0.7, 0.15), (2,): (0.15, 0.85 * 3 / 7, 0.85 * 4 / 7)}


@pytest.mark.parametrize("lenience", [0.0, 0.5, 0.8, 1.0])
def test_where_one_token_lost_what_the_others_gained_alike_the_samples_are_those_of_the_current_policy(lenience):
    assert chi_square(lenience, lambda ids: probability(ALIKE, ids), new=ALIKE) < LIMIT


# Answers that may end, with the token 2, in their first or second place; later that token is a third less likely.
ENDS = {(): (0.5, 0.2, 0.3), (0,): (0.2, 0.2, 0.6), (1,): (0.3, 0.1, 0.6)}
FEWER = {(): (0.5 * 8 / 7, 0.2 * 8 / 7, 0.2), (0,): (0.3, 0.3, 0.4), (1,): (0.45, 0.15, 0.4)}


@pytest.mark.parametrize(("old", "new"), [(ENDS, ENDS), (ENDS, FEWER)])
def test_an_answer_ends_as_often_as_the_current_policy_ends_it(old, new):
    """An end token that is always drawn again would end half as many answers, or fewer."""
    assert len(answers(new)) == 7
    assert chi_square(1.0, lambda ids: probability(new, ids), old, new, end=2) < LIMIT


def test_at_lenience_1_a_token_is_off_by_what_its_redraw_lacks_of_the_residual():
    """min(q, p), and for each rejected token its share of the rest of p; the policy it is not quite."""

    def model(start):
        old, new = OLD[start], NEW[start]
        total = [min(q, p) for q, p in zip(old, new, strict=True)]
        for token in VOCABULARY:
            others = reweighted(new, token, 0.0)
            refused = max(0.0, old[token] - new[token])
            total = [t + refused * p / sum(others) for t, p in zip(total, others, strict=True)]
        return tuple(total)

    # After a rejected first token the second is drawn from the new policy; after an accepted one it is verified.
    def expected(ids):
        first = min(OLD[()][ids[0]], NEW[()][ids[0]])
        redrawn = model(())[ids[0]] - first
        return first * model(ids[:1])[ids[1]] + redrawn * NEW[ids[:1]][ids[1]]

    assert chi_square(1.0, expected) < LIMIT
    assert 0 < max(abs(expected(ids) - probability(NEW, ids)) for ids in itertools.product(VOCABULARY, repeat=2)) < 0.01


@given(st.floats(-5, 0), st.floats(-5, -1e-6), st.floats(0.01, 3))
def test_a_rejected_token_is_not_drawn_again_at_lenience_1_and_as_it_is_where_no_token_grew_by_more(q, p, lenience):
    assume(p + math.log(lenience) < q - 1e-9)  # else it is not rejected
    weight = residual_weight(q, p, lenience)
    if lenience >= 1:
        assert weight == 0
    elif math.expm1(q) <= lenience * math.expm1(p):  # the others: 1 - q >= l (1 - p)
        assert weight == 1
    else:
        assert 0 < weight < 1


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_an_accepted_path_and_one_without_log_probs_reject_nothing(finish):
    rejected = Verify().rejected
    path = Path("q", (5, 6, 1), (-1.0, -1.0, -1.0), finish, 1.0, 1.0)
    assert rejected(path, 2, (-1.0, -1.0, -9.0)).token_id == 1
    assert rejected(path, 3, (-1.0, -1.0, -1.0)) is None
    assert rejected(replace(path, log_probs=None), 0, (-1.0, -1.0, -1.0)) is None


@pytest.mark.parametrize("now", [0.0, math.nan])
def test_a_token_that_nothing_can_follow_in_place_of_is_drawn_as_it_is(now):
    assert residual_weight(-1.0, now, 1.0) == 1.0


def test_the_draw_from_the_old_policy_alone_would_be_found_out():
    assert chi_square(1e9, lambda ids: probability(NEW, ids)) > 4 * LIMIT


def test_the_whole_path_carries_loss_and_every_sample_is_stored():
    assert list(Verify().loss_from([4, 0, 9])) == [0, 0, 0] and Verify.scores
    group = Scored((0.0, 1.0), (0.0, 1.0), (3, 3), True, random.Random(0))
    assert Verify().store(group) == Choice({0: 0, 1: 1}, "every")


@pytest.mark.parametrize(("temperature", "top_p"), [(0.7, 1.0), (1.0, 0.9)])
def test_it_needs_the_distribution_that_engines_score(temperature, top_p):
    args = run_options(temperature=temperature, top_p=top_p)
    with pytest.raises(UsageError, match="--rpo.method verify .* needs --rollout.temperature 1 and --rollout.top_p 1"):
        Verify().check_run(args)
    Verify().check_run(run_options())


def run_options(mode="progressive", **rollout):
    rollout = {"temperature": 1.0, "top_p": 1.0, "n_samples_per_prompt": 4} | rollout
    return SimpleNamespace(rollout=SimpleNamespace(**rollout), rpo=SimpleNamespace(init=SimpleNamespace(mode=mode)))


@pytest.mark.parametrize("mode", ["bulk", "import"])
def test_a_group_cannot_start_from_copies_of_one_path(mode):
    with pytest.raises(UsageError, match=f"--rpo.init.mode {mode} stores one path a question"):
        Verify().check_run(run_options(mode))
    Verify().check_run(run_options(mode, n_samples_per_prompt=1))
