"""The RPO paper to the letter, for reproduction: every choice of its equations, tables and reference code.

- The initial cache C(0) is sampled before training, one path per question, right or wrong (section 3.1).
- Questions come in data order, and each continues its stored path, cut by m ~ U{0..L} (equations 3 and 4).
- A response has at most m tokens (``max_tokens = m`` in the reference code). The equations have no such cap; use
  ``--rpo.budget.rule remaining`` for that.
- The whole path carries loss, the paper's |o_i|, although an older policy sampled the prefix.
- Rewards are shaped by length, including those of wrong answers, which rise from 0 to 0.5 (section 3.4).
- Any sample may be stored (section 3.3), so a mistake inside a prefix is never corrected.

On the testbed this method learns little or nothing; ``rpo`` does.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import ClassVar

from openrlhf_rpo.algo.cuts import largest_cut, parse_largest, uniform
from openrlhf_rpo.algo.epsilon_greedy import epsilon_option, need_initial_cache, pick
from openrlhf_rpo.algo.methods.method import Choice, Cut, Method, Scored, Stored
from openrlhf_rpo.algo.methods.rpo import RPO, capped, parse_budget
from openrlhf_rpo.option import option, options_of
from openrlhf_rpo.types import OWN, Path

_OF_RPO = options_of(RPO)


class Paper(Method):
    """The paper's choices, taken literally."""

    sets: ClassVar[Mapping[str, object]] = {
        "rpo.init.mode": "bulk",
        "rpo.shaping.alpha": 0.01,
        "rpo.shaping.min": 0.5,
        "rpo.shaping.max": 1.0,
        "rpo.shaping.scope": "all",
        # The prefix carries loss with the log-probs of former policies: it would be weighted, or left out.
        "algo.advantage.is_correction_level": "off",
    }

    # The paper's accuracy table uses ratio:0.5, its timing tables fixed:300, fixed:500 and fixed:800.
    cut_max: str = option("ratio:0.5", _OF_RPO["cut_max"].metadata["help"])
    budget_rule: str = option("factor:1", _OF_RPO["budget_rule"].metadata["help"])
    update_epsilon: float | None = epsilon_option()

    @property
    def admits_wrong(self) -> bool:
        return True

    def check(self) -> None:
        parse_largest(self.cut_max)
        parse_budget(self.budget_rule)

    def check_run(self, args: SimpleNamespace) -> None:
        need_initial_cache(self.update_epsilon, args)

    def paths(self, stored: Stored, n_samples: int) -> Sequence[Path]:
        return (stored.paths[OWN],) * n_samples if OWN in stored.paths else ()

    def cuts(self, cut: Cut) -> Sequence[int]:
        largest = largest_cut(self.cut_max, len(cut.path), cut.shortest_path)
        return cut.alike(lambda: uniform(largest, cut.least, cut.generator))

    def budget(self, prefix_length: int, cut: int, remaining: int) -> int:
        return capped(self.budget_rule, prefix_length, cut, remaining)

    def loss_from(self, prefix_lengths: Sequence[int]) -> Sequence[int]:
        return [0] * len(prefix_lengths)

    def store(self, group: Scored) -> Choice:
        if self.update_epsilon is None:
            return Choice({}, "update_off")
        every = range(len(group.scores))
        index, outcome = pick(group.rewards, group.path_lengths, every, self.update_epsilon, group.generator)
        return Choice({OWN: index}, outcome)
