"""Laws of the methods that continue a wrong path (failure, pivot) or an imported one (expert)."""

import math
import random
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.methods.expert import EXPERT, Expert
from examples.methods.failure import WRONG, Failure
from examples.methods.pivot import Pivot, mistake, utilities
from openrlhf_rpo.algo.methods import RPO, Cut, Scored, Stored
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.types import OWN, Path, Visit

SCORES = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=8)
OWN_PATH = Path("q", (1,) * 10, None, "stop", 1.0, 1.0)
OTHER = Path("q", (7,) * 10, None, "stop", 0.0, 0.0, slot=1)


def visit(cut=0, prefix=0, rewarded=2, slot=OWN):
    return Visit("q", 1, cut, prefix, 100, 4, rewarded, "best", slot=slot)


def source(method, paths, rewarded):
    """The slot of the path that the group after one with so many right samples starts from, None for the bare question."""
    found = {path.slot for path in method.paths(Stored({path.slot: path for path in paths}, (visit(3, 7, rewarded),)), 4)}
    return found.pop() if found else None


@pytest.mark.parametrize(
    ("method", "turn"), [(Failure(), 4), (Pivot(), 4), (Expert(), 0)], ids=["failure", "pivot", "expert"]
)
def test_after_groups_that_agree_the_other_path_has_its_turn_where_it_is_there(method, turn):
    assert source(method, [OWN_PATH, OTHER], turn) == 1
    assert source(method, [OWN_PATH, OTHER], 2) == OWN
    assert source(method, [OWN_PATH], turn) == OWN
    assert source(method, [OTHER], 2) is None


@pytest.mark.parametrize("method", [Failure, Pivot, Expert])
def test_replays_of_the_other_path_count_as_well(method):
    turn = {Expert: 0}.get(method, 4)
    stored = Stored({OWN: OWN_PATH, 1: OTHER}, (visit(3, 7, turn, slot=1),) * 3)
    assert method(replay_max_reuses=3).paths(stored, 4) == ()
    assert method(replay_max_reuses=4).paths(stored, 4) == (OTHER,) * 4


def scored(scores, seed=0):
    return Scored(tuple(scores), tuple(scores), (5,) * len(scores), True, random.Random(seed))


@pytest.mark.parametrize("method", [Failure(), Pivot()], ids=["failure", "pivot"])
@given(scores=SCORES, seed=st.integers(0, 50))
def test_rpos_choice_is_stored_and_a_wrong_sample_beside_it(method, scores, seed):
    choice, own = method.store(scored(scores, seed)), RPO().store(scored(scores, seed))
    assert {slot: i for slot, i in choice.samples.items() if slot == OWN} == own.samples
    assert (choice.outcome, choice.start_bare) == (own.outcome, own.start_bare)
    assert (WRONG in choice.samples) == (0.0 in scores)
    assert WRONG not in choice.samples or scores[choice.samples[WRONG]] == 0.0


@pytest.mark.parametrize("method", [Failure(), Pivot()], ids=["failure", "pivot"])
@given(scores=SCORES)
def test_a_question_that_was_never_solved_stores_nothing_as_under_rpo(method, scores):
    group = Scored(tuple(scores), tuple(scores), (5,) * len(scores), False, random.Random(0))
    assert bool(method.store(group).samples) == (1.0 in scores)


def test_each_wrong_sample_is_equally_likely():
    taken = [Failure().store(scored([0.0, 1.0, 0.0], seed)).samples[WRONG] for seed in range(2000)]
    assert set(taken) == {0, 2} and abs(taken.count(0) - 1000) < 112


def test_the_experts_path_is_imported_to_its_own_slot_and_never_replaced():
    assert Expert.import_slot == EXPERT != OWN
    assert EXPERT not in Expert().store(scored([1.0, 1.0])).samples
    assert not Expert().store(scored([0.0])).start_bare  # its turn comes instead
    args = SimpleNamespace(rpo=SimpleNamespace(init=SimpleNamespace(mode="progressive")))
    with pytest.raises(UsageError, match="add --rpo.init.mode import and --rpo.init.source"):
        Expert().check_run(args)
    args.rpo.init.mode = "import"
    Expert().check_run(args)


# ── Where the pivot takes a wrong path up again ──


def pivots(length, visits=(), seed=0, n=4, largest="ratio:1"):
    path = Path("q", tuple(range(length)), None, "stop", 0.0, 0.0, slot=WRONG)
    return Pivot(cut_max=largest).cuts(Cut((path,) * n, random.Random(seed), visits))


def test_worked_example():
    found = utilities(range(1, 4), 4, 2 * math.log(2))
    assert [u / sum(found) for u in found] == pytest.approx([0.26, 0.36, 0.38], abs=0.005)


def test_draws_follow_the_utilities():
    bare = visit()  # no wrong path was cut yet: 2 ln 2; l = 100 lets L be the path
    counts = Counter(4 - pivots(4, (bare,), seed)[0] for seed in range(4000))
    assert [counts[t] / 4000 for t in (1, 2, 3)] == pytest.approx([0.26, 0.36, 0.38], abs=0.025)


def test_recoveries_push_the_pivot_deeper_and_failures_pull_it_back():
    def mean(*rewarded):
        seen = (visit(), *(visit(50, 50, r, WRONG) for r in rewarded))
        return sum(100 - pivots(100, seen, seed)[0] for seed in range(500)) / 500

    assert mean(4) > mean() + 3 > mean(0) + 6


@given(st.integers(1, 60), st.integers(0, 2**20), st.integers(0, 40))
def test_something_is_kept_and_something_written(length, seed, largest):
    found = pivots(length, seed=seed, largest=f"fixed:{largest}")
    assert len(found) == 4 and len(set(found)) == 1
    allowed = range(1, min(largest, length - 1) + 1)
    assert all(m in allowed for m in found) if allowed else set(found) == {length}


def test_a_right_path_is_cut_as_rpo_cuts_it():
    own = Cut((OWN_PATH,) * 4, random.Random(3))
    assert Pivot().cuts(own) == RPO().cuts(Cut((OWN_PATH,) * 4, random.Random(3)))


def test_what_half_of_a_wrong_path_costs():
    """1/2 from the bare question (2 of 4), 1 of 4 from half of a wrong path: the logarithm of 0.5 / 0.3, for a half."""
    assert mistake([visit(), visit(50, 50, 1, slot=WRONG)]) == pytest.approx(2 * math.log(0.5 / 0.3))


def test_an_unknown_wrong_path_halves_the_chance_by_its_middle_and_none_raises_it():
    assert mistake([]) == pytest.approx(2 * math.log(2))
    assert mistake([visit(rewarded=0), visit(10, 90, 4, slot=WRONG)]) == 0.0
