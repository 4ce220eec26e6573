"""Laws of RPO and of the paper's literal method: cuts, budgets, what is stored, what carries loss."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.methods import RPO, Choice, Cut, Off, Paper, Scored, Stored, Verify
from openrlhf_rpo.algo.methods.prefixes import choose_prefixes
from openrlhf_rpo.errors import OptionError, UsageError
from openrlhf_rpo.types import OWN, Path, Visit

LENGTH = st.integers(0, 2000)
SCORES = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=8)


def cut(length=10, finish="stop", shortest=None, n=4, seed=0, log_probs=None):
    visits = () if shortest is None else (Visit("q", 1, 0, 0, shortest, n, 1, "best"),)
    path = Path("q", tuple(range(length)), log_probs, finish, 1.0, 1.0)
    return Cut((path,) * n, random.Random(seed), visits)


def scored(*scores, has_path=True, seed=0):
    return Scored(scores, scores, tuple(range(1, len(scores) + 1)), has_path, random.Random(seed))


# ── Where it cuts ──


@pytest.mark.parametrize("method", [RPO, Paper])
def test_half_of_the_shortest_path_of_the_last_group_is_the_default(method):
    cuts = {method().cuts(cut(shortest=8, finish="length", seed=seed))[0] for seed in range(200)}
    assert cuts == {0, 1, 2, 3, 4}


def test_before_the_first_group_the_stored_path_is_the_shortest():
    assert {RPO().cuts(cut(finish="length", seed=seed))[0] for seed in range(200)} == {0, 1, 2, 3, 4, 5}


def test_the_largest_cut_can_be_the_whole_path():
    assert 10 in RPO(cut_max="fixed:99", cut_scope="sample").cuts(cut(n=200))


@given(
    st.integers(1, 40), st.integers(1, 60), st.sampled_from(["group", "sample"]), st.sampled_from(["uniform", "uncertain"])
)
def test_an_end_token_is_always_lost(length, shortest, scope, at):
    asked = cut(length, shortest=shortest, log_probs=(-0.5,) * length)
    prefixes = choose_prefixes(RPO(cut_scope=scope, cut_at=at), asked, 99)
    assert all(1 <= prefix.cut <= length for prefix in prefixes)


@given(st.integers(0, 99), st.sampled_from(["uniform", "uncertain"]))
def test_a_group_shares_one_cut_and_samples_can_have_their_own(seed, at):
    at_once = cut(40, n=64, seed=seed, log_probs=(-0.5,) * 40)
    cuts = RPO(cut_at=at).cuts(at_once)
    assert len(cuts) == 64 and len(set(cuts)) == 1
    assert len(set(RPO(cut_at=at, cut_scope="sample").cuts(at_once))) > 1


# ── How much a sample may generate ──


@pytest.mark.parametrize(
    ("rule", "prefix_length", "cut", "budget"),
    [
        ("remaining", 0, 0, 1000),
        ("remaining", 400, 100, 600),
        ("factor:1", 400, 100, 100),
        ("factor:1.1", 400, 100, 110),  # 1.1 * 100 is 110.00000000000001
        ("factor:2.5", 400, 101, 253),  # 252.5 is rounded up
        ("factor:1", 400, 3, 3),  # to the letter: no floor
        ("factor:1", 400, 0, 1),  # nothing was cut, yet something is generated
        ("factor:2", 900, 100, 100),  # what remains
        ("factor:1", 0, 200, 200),  # m = path length: the factor applies
    ],
)
def test_budgets_by_hand(rule, prefix_length, cut, budget):
    for method in (RPO, Paper):
        assert method(budget_rule=rule).budget(prefix_length, cut, 1000 - prefix_length) == budget


@given(LENGTH, LENGTH, st.integers(1, 2000), st.sampled_from(["remaining", "factor:0.5", "factor:1", "factor:3"]))
def test_a_budget_is_at_least_1_and_at_most_what_remains(prefix_length, cut, remaining, rule):
    assert 1 <= RPO(budget_rule=rule).budget(prefix_length, cut, remaining) <= remaining


@given(LENGTH, st.integers(1, 2000))
def test_factor_1_never_outgrows_the_cut(prefix_length, cut):
    assert RPO(budget_rule="factor:1").budget(prefix_length, cut, 2000) <= cut


# ── What is stored ──


@given(SCORES, st.floats(0, 1), st.integers(0, 99))
def test_only_rewarded_samples_are_stored_by_default(scores, epsilon, seed):
    choice = RPO(update_epsilon=epsilon).store(scored(*scores, seed=seed))
    assert (OWN in choice.samples) == any(scores)
    assert all(scores[i] > 0 for i in choice.samples.values())


def test_admit_any_and_the_paper_let_a_wrong_answer_in():
    """Two samples, the best never taken: the wrong one enters."""
    for method in (RPO(update_epsilon=0.0, update_admit="any"), Paper(update_epsilon=0.0)):
        assert method.store(scored(1.0, 0.0)) == Choice({OWN: 1}, "random")
        assert method.admits_wrong
    assert not RPO().admits_wrong


def test_verified_reuse_lets_a_wrong_answer_in():
    """Right answers of an initial policy are not distributed as its answers are."""
    assert Verify().admits_wrong


def test_after_a_group_without_a_rewarded_sample_the_next_one_starts_bare():
    assert RPO().store(scored(0.0, -1.0)) == Choice({}, "reset", start_bare=True)


def test_keep_goes_on_with_the_path_and_without_one_there_is_nothing_to_reset():
    kept = Choice({}, "no_rewarded_sample")
    assert RPO(update_on_all_wrong="keep").store(scored(0.0)) == kept
    assert RPO().store(scored(0.0, has_path=False)) == kept


def test_the_paper_never_resets():
    assert Paper().store(scored(0.0, 0.0)).samples and not Paper().store(scored(0.0, 0.0)).start_bare


@pytest.mark.parametrize("method", [RPO, Paper])
@given(scores=SCORES)
def test_epsilon_off_keeps_the_initial_cache(method, scores):
    assert method(update_epsilon=None).store(scored(*scores)) == Choice({}, "update_off")


@pytest.mark.parametrize("method", [RPO, Paper])
def test_epsilon_off_needs_an_initial_cache(method):
    args = SimpleNamespace(rpo=SimpleNamespace(init=SimpleNamespace(mode="progressive")))
    with pytest.raises(UsageError, match="nothing would ever be replayed: add --rpo.init.mode bulk or import"):
        method(update_epsilon=None).check_run(args)
    method().check_run(args)
    args.rpo.init.mode = "bulk"
    method(update_epsilon=None).check_run(args)


def test_bare_questions_store_every_sample_and_read_none():
    path = Path("q", (1, 2), None, "stop", 1.0, 1.0)
    assert Off().store(scored(1.0, 0.0)) == Choice({0: 0, 1: 1}, "every")
    assert Off().paths(Stored({0: path}), 4) == () and Off().replay_share == 0


# ── What carries loss ──


def test_rpo_trains_on_the_response_and_the_paper_on_the_whole_path():
    assert list(RPO().loss_from([4, 0])) == [4, 0] and list(Off().loss_from([0])) == [0]
    assert list(Paper().loss_from([4, 0])) == [0, 0]


def test_the_paper_starts_in_every_group_that_has_a_path():
    path = Path("q", (1, 2), None, "stop", 1.0, 1.0)
    assert Paper().paths(Stored({OWN: path}), 2) == (path, path) and Paper().paths(Stored(), 2) == ()
    assert Paper().replay_share == 0 and Paper.sets["rpo.init.mode"] == "bulk"


@pytest.mark.parametrize(
    ("option", "values"),
    {
        "cut_max": ("ratio:0", "ratio:1.5", "fixed:-1", "ratio:nan", "fixed:inf", "ratio:", "half:0.5", "300", ""),
        "budget_rule": ("factor:0", "factor:-1", "factor:x", "factor:inf", "most", "remaining:5", "remaining:-3"),
    }.items(),
)
def test_a_value_out_of_range_is_refused_and_the_option_named(option, values):
    for method in (RPO, Paper):
        for value in values:
            with pytest.raises(OptionError, match=rf"^--rpo\.{option.replace('_', '.', 1)} "):
                method(**{option: value}).check()
