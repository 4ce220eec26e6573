"""Groups stay together, ranks carry equal cost, and shared tokens count once."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_rpo.training.shared_prefix.batches import drawn_order, fewest_micro_batches, fit, micro_batches, over_ranks
from openrlhf_rpo.training.shared_prefix.layout import shared_tokens


def rows_of(*groups):
    """Groups given as (prefix length, response lengths); tokens of different groups and responses differ."""
    rows = []
    for prefix, responses in groups:
        head = [len(rows)] * prefix
        rows += [torch.tensor(head + [1000 + len(rows) + i] * n) for i, n in enumerate(responses)]
    return rows


def cost(rows, samples):
    return shared_tokens([rows[i] for i in samples])


def test_ranks_get_whole_groups_of_equal_cost():
    rows = rows_of((90, [10, 10]), (10, [5, 5]), (80, [5, 5]), (20, [10, 10]))  # 110, 20, 90, 40 tokens
    ranks = over_ranks(rows, 2, 2)
    assert sorted(map(sorted, ranks)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_cost_and_not_length_balances_ranks():
    """By length, 4 x 60 outweighs 4 x 40; with the prefix once it is 120 against 130 tokens."""
    rows = rows_of((40, [20] * 4), (10, [30] * 4))
    assert [cost(rows, samples) for samples in over_ranks(rows, 4, 2)] in ([120, 130], [130, 120])


def longest_at_a_time(rows, dealt, size):
    """The cost of the largest of all ranks' n-th groups, summed over n, as multiple of a rank's fair share."""
    turns = zip(*([cost(rows, own[i : i + size]) for i in range(0, len(own), size)] for own in dealt), strict=True)
    return sum(map(max, turns)) * len(dealt) / sum(cost(rows, own) for own in dealt)


@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_do_not_wait_for_each_other_and_large_groups_are_not_all_first(ranks):
    random_ = random.Random(0)
    rows = rows_of(*[(20, [int(random_.lognormvariate(4, 1)) + 1 for _ in range(4)]) for _ in range(128)])
    dealt = over_ranks(rows, 4, ranks)
    assert longest_at_a_time(rows, dealt, 4) < 1.15 < longest_at_a_time(rows, [sorted(own) for own in dealt], 4)
    first, second = (
        sum(cost(rows, own[part]) for own in dealt) for part in (slice(256 // ranks), slice(256 // ranks, None))
    )
    assert 0.7 < first / second < 1.4


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))
def test_every_rank_gets_equally_many_samples_and_groups_stay_together(group_size, groups, ranks):
    rows = rows_of(*[(5 + i, [3] * group_size) for i in range(groups * ranks)])
    dealt = over_ranks(rows, group_size, ranks)
    assert sorted(i for samples in dealt for i in samples) == list(range(len(rows)))
    for samples in dealt:
        assert len(samples) == group_size * groups
        for start in range(0, len(samples), group_size):
            assert len({i // group_size for i in samples[start : start + group_size]}) == 1


def test_groups_are_parted_as_little_as_possible_where_ranks_need_it():
    """Three groups of 4 over 2 ranks: 6 samples a rank, so groups are halved."""
    dealt = over_ranks(rows_of(*[(9, [3] * 4)] * 3), 4, 2)
    halves = [samples[i : i + 2] for samples in dealt for i in range(0, 6, 2)]
    assert sorted(halves) == [[i, i + 1] for i in range(0, 12, 2)]


def test_samples_that_cannot_be_dealt_out_evenly_are_refused():
    with pytest.raises(ValueError, match="3 samples cannot be dealt out evenly to 2 ranks"):
        over_ranks(rows_of((2, [1, 1, 1])), 3, 2)


def test_a_token_budget_counts_shared_tokens_once():
    rows = rows_of((80, [5, 5, 5, 5]), (80, [5, 5, 5, 5]))  # 100 tokens a group, 340 as whole rows
    units = [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert fit(rows, units, 100) == units
    assert fewest_micro_batches(rows, units, 200) == 1
    assert fewest_micro_batches(rows, units, 199) == 2


def test_a_group_that_does_not_fit_is_parted_until_its_parts_do():
    rows = rows_of((10, [30, 30, 30, 30]))
    assert fit(rows, [[0, 1, 2, 3]], 70) == [[0, 1], [2, 3]]
    assert fit(rows, [[0, 1, 2, 3]], 5) == [[0], [1], [2], [3]]


@given(st.integers(1, 8))
def test_every_number_of_micro_batches_can_be_had(n):
    rows = rows_of((10, [3, 4, 5, 6]), (20, [3, 4, 5, 6]))
    parts = micro_batches(rows, [[0, 1, 2, 3], [4, 5, 6, 7]], n)
    assert len(parts) == n and all(parts)
    assert [cost(rows, part) for part in parts] == sorted((cost(rows, part) for part in parts), reverse=True)
    assert sorted(i for part in parts for i in part) == list(range(8))


def test_the_order_is_another_in_the_next_step_and_the_same_after_a_resume():
    rows, later = rows_of((9, [3] * 4)), rows_of((9, [3, 3, 3, 4]))
    orders = [drawn_order(30, one) for one in (rows, rows, later)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[2]) == list(range(30))
