"""Laws of the token budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.algo.budget import token_budget
from openrlhf_rpo.config import BudgetOptions

LENGTH = st.integers(0, 2000)


@pytest.mark.parametrize(
    ("rule", "prefix_length", "cut", "budget"),
    [
        ("remaining", 0, 0, 1000),
        ("remaining", 400, 100, 600),
        ("remaining", 1000, 1, 1),  # never 0
        ("remaining", 1200, 1, 1),
        ("factor:1", 400, 100, 100),
        ("factor:1.1", 400, 100, 110),  # 1.1 * 100 is 110.00000000000001
        ("factor:2.5", 400, 101, 253),  # 252.5 is rounded up
        ("factor:1", 400, 3, 16),  # the floor
        ("factor:1", 400, 0, 16),  # nothing was cut, yet something is generated
        ("factor:2", 900, 100, 100),  # what remains
        ("factor:1", 995, 3, 5),  # what remains is less than the floor
        ("factor:1", 0, 200, 200),  # m = path length: the factor applies
        ("factor:1", 0, 0, 1000),  # a fresh group has no cut to be a factor of
    ],
)
def test_budgets_by_hand(rule, prefix_length, cut, budget):
    assert token_budget(prefix_length, cut, 1000, BudgetOptions(rule=rule, floor=16)) == budget


@given(LENGTH, LENGTH, st.integers(1, 2000), st.sampled_from(["remaining", "factor:0.5", "factor:1", "factor:3"]))
def test_a_budget_is_at_least_1_and_fits_the_longest_path(prefix_length, cut, longest, rule):
    budget = token_budget(prefix_length, cut, longest, BudgetOptions(rule=rule))
    assert budget >= 1
    assert prefix_length + budget <= max(longest, prefix_length + 1)


@given(LENGTH, LENGTH)
def test_factor_1_never_outgrows_the_cut_or_the_floor(prefix_length, cut):
    budget = token_budget(prefix_length + 1, cut, 2000, BudgetOptions(rule="factor:1", floor=16))
    assert budget <= max(cut, 16)
