"""Assign samples to ranks and micro-batches by their cost in tokens, keeping groups together.

A unit is a list of sample indices that run together: a group, or part of a group that does not fit. Its cost is
``shared_tokens`` of its rows: tokens that they share count once.

Ranks wait for each other at every micro-batch (ZeRO reduces gradients there), so equal totals are not enough: their first
micro-batches must be about equal, their second ones, and so on.
"""

import random
from collections.abc import Sequence
from math import gcd

import torch

from openrlhf_rpo.training.shared_prefix.layout import shared_tokens
from openrlhf_rpo.upstream import get_minimum_num_micro_batch_size, get_seqlen_balanced_partitions

Unit = list[int]


def over_ranks(rows: Sequence[torch.Tensor], group_size: int, ranks: int) -> list[Unit]:
    """The samples of each rank, in order: the same number per rank, whole groups if possible, balanced by cost.

    The n-th units of all ranks cost about the same. Their order is drawn, the same for all ranks, so that no optimizer step
    gets all the large ones.

    ``rows``: the samples' token ids, group by group. If groups do not divide evenly they are split as little as possible.
    Raises ValueError unless every rank can get the same number of samples.
    """
    if len(rows) % ranks:
        raise ValueError(f"{len(rows)} samples cannot be dealt out evenly to {ranks} ranks")
    size = gcd(group_size, len(rows) // ranks)
    units = [list(range(i, i + size)) for i in range(0, len(rows), size)]
    if ranks == 1:
        return [[i for unit in units for i in unit]]
    costs = [_cost(rows, unit) for unit in units]
    largest_first = sorted(range(len(units)), key=lambda u: -costs[u])
    turns, totals = [], [0] * ranks
    for start in range(0, len(units), ranks):
        # The largest of these goes to the rank that has the least so far.
        turn = dict(zip(sorted(range(ranks), key=totals.__getitem__), largest_first[start : start + ranks], strict=True))
        totals = [total + costs[turn[rank]] for rank, total in enumerate(totals)]
        turns.append(turn)
    turns = [turns[i] for i in drawn_order(len(turns), rows)]
    return [[i for turn in turns for i in units[turn[rank]]] for rank in range(ranks)]


def drawn_order(n: int, rows: Sequence[torch.Tensor]) -> list[int]:
    """0 to n - 1 in an order seeded by the number of tokens in ``rows``: it varies by step, and repeats after a resume."""
    return random.Random(sum(map(len, rows))).sample(range(n), n)


def fit(rows: Sequence[torch.Tensor], units: list[Unit], limit: int) -> list[Unit]:
    """Halve units of more than ``limit`` tokens until each fits or is a single sample."""
    fitting = []
    for unit in units:
        if len(unit) > 1 and _cost(rows, unit) > limit:
            fitting += fit(rows, _halves(unit), limit)
        else:
            fitting.append(unit)
    return fitting


def fewest_micro_batches(rows: Sequence[torch.Tensor], units: list[Unit], limit: int) -> int:
    """How many micro-batches of at most ``limit`` tokens the units need."""
    return get_minimum_num_micro_batch_size([_cost(rows, unit) for unit in units], limit, 1, 1)


def micro_batches(rows: Sequence[torch.Tensor], units: list[Unit], n: int) -> list[Unit]:
    """The units in exactly ``n`` micro-batches of about equal cost, the largest first; with fewer than ``n`` units, the
    largest are halved."""
    units = list(units)
    while len(units) < n:
        largest = max(units, key=len)
        units.remove(largest)
        units += _halves(largest)
    costs = [_cost(rows, unit) for unit in units]
    parts = get_seqlen_balanced_partitions(costs, n, equal_size=False)
    parts.sort(key=lambda part: -sum(costs[u] for u in part))
    return [[i for u in part for i in units[u]] for part in parts]


def _halves(unit: Unit) -> list[Unit]:
    return [unit[: len(unit) // 2], unit[len(unit) // 2 :]]


def _cost(rows: Sequence[torch.Tensor], unit: Unit) -> int:
    return shared_tokens([rows[i] for i in unit])
