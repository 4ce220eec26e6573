"""How long ranks wait for each other in training, at the size that users have: 4,096 samples of up to 16,384 tokens.

Ranks meet at every micro-batch, so a step takes the sum over micro-batches of the slowest rank's tokens. The ideal is a
rank's fair share of all tokens. Lengths are synthetic: log-normal (median 2,000 tokens, a tenth of them over 9,000), in
groups of 8 behind a prompt of 200 tokens, from the bare question or behind half of a stored path. Compared: groups dealt to
ranks as in a run, and the same in the order of the batch on each rank; one group a micro-batch, and dynamic micro-batches.

    make bench NAME=balance QUICK=1
    python -m lab.bench balance --report lab/results/DATE-balance

The figures: by ranks and case, tokens of the slowest ranks as a multiple of the ideal; seconds to deal groups out.
"""

import argparse
import random
import time
from collections.abc import Sequence
from typing import Any

import torch

from lab.bench import about, header, table, write_report
from openrlhf_rpo.training.shared_prefix.batches import fewest_micro_batches, fit, micro_batches, over_ranks
from openrlhf_rpo.training.shared_prefix.layout import shared_tokens

GROUP, PROMPT, LONGEST = 8, 200, 16_384


def draw(samples: int, with_prefix: bool, generator: random.Random) -> list[torch.Tensor]:
    """Rows of token ids, group by group; tokens of different samples differ."""
    rows = []
    for group in range(samples // GROUP):
        length = int(min(LONGEST, generator.lognormvariate(7.6, 1.2))) // 2 if with_prefix else 0
        head = torch.full((PROMPT + length,), group)
        for i in range(GROUP):
            response = max(1, int(min(LONGEST - length, generator.lognormvariate(7.6, 1.2) / (1 + with_prefix))))
            rows.append(torch.cat([head, torch.full((response,), 10**6 + GROUP * group + i)]))
    return rows


def slowest(rows: Sequence[torch.Tensor], ranks: Sequence[Sequence[Sequence[int]]]) -> float:
    """The slowest rank's tokens, summed over the micro-batches of ``ranks``, as a multiple of a rank's fair share."""
    tokens = [[shared_tokens([rows[i] for i in batch]) for batch in batches] for batches in ranks]
    return sum(max(turn) for turn in zip(*tokens, strict=True)) * len(tokens) / sum(map(sum, tokens))


def dynamic(rows: Sequence[torch.Tensor], dealt: Sequence[Sequence[int]]) -> list[list[list[int]]]:
    """Micro-batches of at most two of the longest samples, as many on each rank."""
    limit = 2 * LONGEST
    units = [fit(rows, in_groups(own), limit) for own in dealt]
    n = max(fewest_micro_batches(rows, own, limit) for own in units)
    return [micro_batches(rows, own, n) for own in units]


def in_groups(own: Sequence[int]) -> list[list[int]]:
    return [list(own[i : i + GROUP]) for i in range(0, len(own), GROUP)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=4096, help="of a step (default: %(default)s)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64], help="(default: 8 64)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Deal one step's groups out to each number of ranks."""
    if args.quick:
        args.samples, args.ranks = 256, [8]
    cases = {}
    for name, with_prefix in (("bare questions", False), ("half a path", True)):
        rows = draw(args.samples, with_prefix, random.Random(0))
        for ranks in args.ranks:
            started = time.perf_counter()
            dealt = over_ranks(rows, GROUP, ranks)
            seconds = time.perf_counter() - started
            before = [in_groups(sorted(own)) for own in dealt]
            cases[f"{name}, {ranks} ranks"] = {
                "order of the batch": slowest(rows, before),
                "as dealt": slowest(rows, [in_groups(own) for own in dealt]),
                "dynamic micro-batches": slowest(rows, dynamic(rows, dealt)),
                "seconds": seconds,
            }
    figures = about() | {"cases": cases}
    write_report(args.report, figures, page(figures))
    return figures


def page(figures: dict[str, Any]) -> list[str]:
    """The report as Markdown."""
    head = ["case", "order of the batch", "as dealt", "dynamic micro-batches", "seconds to deal"]
    rows = [[name, *(f"{value:.2f}" for value in case.values())] for name, case in figures["cases"].items()]
    said = "Tokens of the slowest ranks, micro-batch by micro-batch, as a multiple of a rank's fair share."
    return [*header("Ranks that wait for each other", figures), said, "", *table(head, rows)]
