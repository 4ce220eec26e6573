"""Laws of the pivot: where a wrong path is taken up again."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.cut import CUT_RULES, CutContext, Stored
from openrlhf_rpo.algo.cut.pivot import pivot, utilities
from openrlhf_rpo.algo.cut.prefixes import choose_prefixes, choose_rule
from openrlhf_rpo.algo.draws import keyed_generator
from openrlhf_rpo.config import CutOptions
from openrlhf_rpo.types import OWN, WRONG, Path, Visit


def path(length, slot=WRONG):
    return Path("q", tuple(range(length)), None, "stop", 0.0, 0.0, slot=slot)


def visit(cut, prefix, rewarded, slot):
    return Visit("q", 1, cut, prefix, 100, 4, rewarded, "best", slot=slot)


def cuts(length, visits=(), seed=0, n=4, **options):
    options = CutOptions(rule="pivot", **({"max": "ratio:1"} | options))
    return pivot(CutContext((path(length),) * n, n, options, keyed_generator(seed, 1, "q", "cut"), visits))


def test_worked_example():
    found = utilities(range(1, 4), 4, 2 * math.log(2))
    assert [u / sum(found) for u in found] == pytest.approx([0.26, 0.36, 0.38], abs=0.005)


def test_draws_follow_the_utilities():
    bare = visit(0, 0, 2, OWN)  # no wrong path was cut yet: 2 ln 2; l = 100 lets L be the path
    counts = Counter(4 - cuts(4, (bare,), seed)[0] for seed in range(4000))
    assert [counts[t] / 4000 for t in (1, 2, 3)] == pytest.approx([0.26, 0.36, 0.38], abs=0.025)


def test_recoveries_push_the_pivot_deeper_and_failures_pull_it_back():
    def mean(*rewarded):
        seen = (visit(0, 0, 2, OWN), *(visit(50, 50, r, WRONG) for r in rewarded))
        return sum(100 - cuts(100, seen, seed)[0] for seed in range(500)) / 500

    assert mean(4) > mean() + 3 > mean(0) + 6


@given(st.integers(1, 60), st.integers(0, 2**20), st.sampled_from(["group", "sample"]), st.integers(0, 40))
def test_something_is_kept_and_something_written(length, seed, scope, largest):
    found = cuts(length, seed=seed, scope=scope, max=f"fixed:{largest}")
    assert len(found) == 4 and (scope == "sample" or len(set(found)) == 1)
    allowed = range(1, min(largest, length - 1) + 1)
    assert all(m in allowed for m in found) if allowed else set(found) == {length}


def test_a_question_starts_bare_until_it_has_a_wrong_path():
    options = CutOptions(rule="pivot", max="ratio:1")
    own = Stored({OWN: path(9, OWN)})
    assert choose_rule(own, options, 0, 1, "q") is None
    both = Stored({OWN: path(9, OWN), WRONG: path(7)}, (visit(0, 0, 2, OWN),))
    rule = choose_rule(both, options, 0, 1, "q")
    assert rule is CUT_RULES["pivot"]
    prefixes = choose_prefixes(rule, both, 4, options, 0, 1, "q")
    assert all(p.path is both.paths[WRONG] and 1 <= len(p) < 7 for p in prefixes)
