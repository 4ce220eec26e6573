"""Laws of what a group starts from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.cut import CUT_RULES, CutRule, Stored
from openrlhf_rpo.algo.cut.prefixes import choose_prefixes, choose_rule
from openrlhf_rpo.config import CutOptions
from openrlhf_rpo.types import EXPERT, OWN, WRONG, Path, Prefix, Visit

BARE = Prefix()


def path(length=10, finish="stop", log_probs=True):
    probs = tuple(-i / 10 for i in range(length)) if log_probs else None
    return Path("q", tuple(range(100, 100 + length)), probs, finish, 1.0, 1.0, path_id=5)


def visit(start_bare=False, shortest=10):
    return Visit("q", 1, 0, 0, shortest, 4, 0, "reset", start_bare)


def choose(path, last_visit=None, n=4, step=1, **options):
    stored = Stored({} if path is None else {OWN: path}, () if last_visit is None else (last_visit,))
    return start(stored, n, step, **options)


def start(stored, n=4, step=1, longest=None, **options):
    options = CutOptions(**{"rule": "uniform"} | options)
    rule = choose_rule(stored, options, 42, step, "q")
    return choose_prefixes(rule, stored, n, options, 42, step, "q", longest)


@pytest.fixture
def cut_by(monkeypatch):
    """Make the rule return the given cuts."""
    return lambda *cuts: monkeypatch.setitem(CUT_RULES, "uniform", CutRule(lambda context: cuts))


def test_worked_example(cut_by):
    cut_by(2, 2)
    cached = path(6)
    (prefix, _) = choose(cached, n=2)
    assert prefix == Prefix((100, 101, 102, 103), (0.0, -0.1, -0.2, -0.3), 2, cached)


def test_without_a_cached_path_the_group_starts_bare():
    assert choose(None) == (BARE,) * 4


def test_after_a_reset_the_group_starts_bare():
    assert choose(path(), visit(start_bare=True)) == (BARE,) * 4
    assert all(len(prefix) > 0 for prefix in choose(path(), visit(start_bare=False)))


def test_a_bare_start_has_no_path_and_no_cut():
    assert (BARE.path, BARE.cut, len(BARE)) == (None, 0, 0)


@given(st.integers(0, 1000))
def test_fresh_share_0_never_and_1_always_starts_bare(step):
    assert all(prefix.path is not None for prefix in choose(path(), step=step, fresh_share=0.0))
    assert choose(path(), step=step, fresh_share=1.0) == (BARE,) * 4


def test_about_a_fresh_share_of_the_groups_starts_bare():
    fresh = sum(choose(path(), step=step, fresh_share=0.25)[0].path is None for step in range(4000))
    assert 850 < fresh < 1150  # 1000, standard deviation 27


def test_a_fresh_group_is_fresh_in_all_its_samples():
    groups = [choose(path(), step=step, fresh_share=0.5, scope="sample") for step in range(50)]
    assert {sum(prefix.path is None for prefix in group) for group in groups} == {0, 4}


def test_the_fresh_draw_does_not_move_the_cuts():
    kept = [choose(path(), step=step, fresh_share=0.5) for step in range(50)]
    assert all(group == choose(path(), step=step) for step, group in enumerate(kept) if group[0].path is not None)


def test_whether_a_group_is_fresh_says_nothing_about_its_cut():
    """L = 6, so m <= 3 has probability 4/7. From one draw for both, kept groups would mostly have large cuts."""
    kept = [p.cut for step in range(1000) if (p := choose(path(12), step=step, fresh_share=0.5)[0]).path is not None]
    assert abs(sum(cut <= 3 for cut in kept) / len(kept) - 4 / 7) < 0.1  # 4 standard deviations


def test_a_cut_of_nothing_keeps_the_whole_path(cut_by):
    cut_by(0)
    cached = path(6, finish="length")
    (prefix,) = choose(cached, n=1)
    assert (prefix.token_ids, prefix.log_probs, prefix.cut) == (cached.token_ids, cached.log_probs, 0)


@pytest.mark.parametrize("log_probs", [True, False])
def test_a_cut_of_everything_is_empty_but_remembers_its_path(cut_by, log_probs):
    cut_by(6)
    cached = path(6, log_probs=log_probs)
    assert choose(cached, n=1) == (Prefix((), (), 6, cached),)


def test_a_path_without_log_probs_gives_a_prefix_without(cut_by):
    cut_by(2)
    assert choose(path(6, log_probs=False), n=1)[0].log_probs is None


@given(st.integers(1, 40), st.integers(1, 60), st.sampled_from(["group", "sample"]), st.integers(0, 50), st.booleans())
def test_prefix_and_cut_make_up_the_path(length, shortest, scope, step, log_probs):
    cached = path(length, log_probs=log_probs)
    prefixes = choose(cached, visit(shortest=shortest), n=6, step=step, scope=scope)
    assert len(prefixes) == 6
    for prefix in prefixes:
        assert len(prefix) + prefix.cut == length
        assert prefix.token_ids == cached.token_ids[: len(prefix)]
        assert prefix.log_probs is None or len(prefix.log_probs) == len(prefix)
        assert prefix.cut >= 1  # it ends in an end token


def test_a_resumed_run_draws_the_same_prefixes():
    assert choose(path(), step=7, scope="sample") == choose(path(), step=7, scope="sample")


def test_steps_draw_different_cuts():
    assert len({choose(path(40), step=step)[0].cut for step in range(20)}) > 1


@pytest.mark.parametrize("cuts", [(1,), (11, 11), (-1, -1)])
def test_a_rule_that_breaks_its_contract_is_refused(cut_by, cuts):
    cut_by(*cuts)
    with pytest.raises(ValueError, match="cut"):
        choose(path(10), n=2)


def test_no_prefix_is_longer_than_asked_so_that_a_full_path_leaves_room(cut_by):
    cut_by(0, 0)
    full = path(100, finish="length")
    (prefix, _) = start(Stored({OWN: full}), 2, longest=99)
    assert (len(prefix), prefix.cut) == (99, 1)
    (shorter, _) = start(Stored({OWN: path(10)}), 2, longest=99)
    assert len(shorter) == 10


# ── Which path, and which rule ──


def history(*groups):
    """Visits of (cut, prefix length, rewarded) with 4 samples each, oldest first."""
    return tuple(Visit("q", i + 1, cut, kept, 10, 4, right, "best") for i, (cut, kept, right) in enumerate(groups))


WRONG_PATH = Path("q", (7,) * 10, None, "stop", 0.0, 0.0, slot=WRONG)
EXPERT_PATH = Path("q", (8,) * 10, None, "stop", 1.0, 1.0, slot=EXPERT)


def source(stored, **options):
    """The path that the group's samples start from, or None."""
    (path,) = {prefix.path for prefix in start(stored, **options)}
    return path


@pytest.mark.parametrize(("right", "expected"), [(4, WRONG), (0, EXPERT), (2, OWN)])
def test_after_groups_that_agree_other_rules_have_their_turn(right, expected):
    own = path()
    stored = Stored({OWN: own, WRONG: WRONG_PATH, EXPERT: EXPERT_PATH}, history((3, 7, right)))
    options = {"after_all_right": "failure", "after_all_wrong": "expert"}
    assert source(stored, **options) is stored.paths[expected]
    assert source(stored) is own


def test_without_its_path_a_rule_leaves_the_turn_to_the_usual_one():
    own = path()
    assert source(Stored({OWN: own}, history((3, 7, 4))), after_all_right="failure") is own
    assert start(Stored({WRONG: WRONG_PATH}, history((3, 7, 2))), after_all_right="failure") == (BARE,) * 4


def test_a_question_is_replayed_at_most_so_many_times_in_a_row():
    stored = {OWN: path()}
    twice = history((0, 0, 2), (3, 7, 2), (10, 0, 2))  # the last one was cut whole, which is a replay, too
    assert source(Stored(stored, twice), max_reuses=3) is stored[OWN]
    assert start(Stored(stored, twice), max_reuses=2) == (BARE,) * 4
    again = (*twice, *history((0, 0, 2)))
    assert source(Stored(stored, again), max_reuses=2) is stored[OWN]


def test_max_reuses_0_is_without_end():
    stored = {OWN: path()}
    assert source(Stored(stored, history((0, 0, 2), *[(3, 7, 2)] * 50)), max_reuses=0) is stored[OWN]


def test_a_rule_that_keeps_a_path_a_sample_gives_each_its_own_in_turn(monkeypatch):
    monkeypatch.setitem(CUT_RULES, "uniform", CutRule(lambda context: (1,) * context.n_samples, each=True))
    paths = {slot: Path("q", (slot,) * 5, None, "stop", 0.0, 0.0, slot=slot) for slot in range(3)}
    assert [prefix.token_ids[0] for prefix in start(Stored(paths), 4)] == [0, 1, 2, 0]


def test_a_path_that_was_scored_keeps_the_new_log_probs(monkeypatch):
    monkeypatch.setitem(CUT_RULES, "uniform", CutRule(lambda context: (7,) * context.n_samples, scores=True))
    now = tuple(-float(i) for i in range(10))
    assert start(Stored({OWN: path()}, log_probs={OWN: now}))[0].log_probs == now[:3]
