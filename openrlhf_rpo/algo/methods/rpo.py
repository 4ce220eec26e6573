"""RPO: the paper's method with its failing choices replaced (docs/methods.md says which, and why).

1. A group continues the head of the question's stored path, cut by m tokens (``algo/cuts.py``); ``cut_scope sample`` draws
   one m per sample. A share of every batch starts from the bare question instead.
2. Only response tokens carry loss, because this step's policy did not sample the prefix.
3. Afterwards one of the rewarded samples replaces the stored path (``algo/epsilon_greedy.py``). After a group without one,
   the question is not replayed before its next turn, which starts bare; otherwise a mistake inside its prefix would stay.
4. A sample may generate what its prefix leaves of the longest path, or at most F times what was cut (``factor:F``)::

    budget = min(remaining, ceil(F * m))
"""

import math
from collections.abc import Sequence
from types import SimpleNamespace

from openrlhf_rpo.algo.cuts import largest_cut, parse_largest, uncertain, uniform
from openrlhf_rpo.algo.epsilon_greedy import pick
from openrlhf_rpo.algo.methods.method import Choice, Cut, Scored
from openrlhf_rpo.algo.methods.replay import Replay
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.option import POSITIVE, SHARE, need, number_or_off, option, parse_amount
from openrlhf_rpo.types import OWN

REMAINING = "remaining"


class RPO(Replay):
    """Cut a stored path at random, continue it, and train on the continuation."""

    cut_at: str = option(
        "uniform",
        "where to cut a path: uniform over 0..L (the paper), or uncertain, where the policy was unsure of the next token",
        choices=("uniform", "uncertain"),
    )
    cut_max: str = option(
        "ratio:0.5", "L, the largest cut: ratio:R of the shortest path of the question's last group, or fixed:N tokens"
    )
    cut_scope: str = option(
        "group", "one cut for the whole group, which then shares its prefix, or one per sample", choices=("group", "sample")
    )
    budget_rule: str = option(
        REMAINING, "tokens a sample may generate: remaining (what its prefix leaves) or factor:F (at most F times its cut)"
    )
    update_epsilon: float | None = option(
        0.1,
        "probability of storing the best sample instead of another one; off keeps the initial cache",
        bounds=SHARE,
        parse=number_or_off,
    )
    update_admit: str = option(
        "rewarded", "which samples may be stored: rewarded, or any (the paper's equation)", choices=("rewarded", "any")
    )
    update_on_all_wrong: str = option(
        "reset",
        "after a group without a rewarded sample: keep its path, or reset (no replay before its next turn, a bare one)",
        choices=("keep", "reset"),
    )

    @property
    def admits_wrong(self) -> bool:
        return self.update_admit == "any"

    def check(self) -> None:
        parse_largest(self.cut_max)
        parse_budget(self.budget_rule)

    def check_run(self, args: SimpleNamespace) -> None:
        super().check_run(args)
        if self.update_epsilon is None and args.rpo.init.mode == "progressive":
            raise UsageError(
                "--rpo.update.epsilon off keeps the initial cache, but --rpo.init.mode progressive starts with an empty "
                "one, so nothing would ever be replayed: add --rpo.init.mode bulk or import"
            )

    def cuts(self, cut: Cut) -> Sequence[int]:
        largest = largest_cut(self.cut_max, len(cut.path), cut.shortest_path)

        def draw() -> int:
            if self.cut_at == "uncertain":
                return uncertain(cut.path.log_probs, largest, cut.generator)
            return uniform(largest, cut.generator)

        return cut.each(draw) if self.cut_scope == "sample" else cut.alike(draw)

    def budget(self, prefix_length: int, cut: int, remaining: int) -> int:
        return capped(self.budget_rule, cut, remaining)

    def store(self, group: Scored) -> Choice:
        if self.update_epsilon is None:
            return Choice({}, "update_off")
        candidates = list(range(len(group.scores))) if self.update_admit == "any" else group.right
        if not candidates:
            reset = self.update_on_all_wrong == "reset" and group.has_path
            return Choice({}, "reset" if reset else "no_rewarded_sample", start_bare=reset)
        index, outcome = pick(group.rewards, group.path_lengths, candidates, self.update_epsilon, group.generator)
        return Choice({OWN: index}, outcome)


def parse_budget(rule: str) -> float | None:
    """F of ``factor:F``, or None for ``remaining``. Raises OptionError."""
    if rule == REMAINING:
        return None
    need(rule.startswith("factor:"), "budget.rule", rule, f"expected {REMAINING} or factor:NUMBER")
    return parse_amount("budget.rule", rule, {"factor": POSITIVE})[1]


def capped(rule: str, cut: int, remaining: int) -> int:
    """Tokens, at least 1, that a sample may generate under ``--rpo.budget.rule``."""
    factor = parse_budget(rule)
    if factor is None:
        return remaining
    return max(1, math.ceil(min(remaining, factor * cut) - 1e-9))  # 1.1 * 10 is 11.000000000000002 and means 11
