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
from typing import ClassVar

from openrlhf_rpo.algo.methods.rpo import RPO
from openrlhf_rpo.option import option, options_of


class Paper(RPO):
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

    # The paper's accuracy table uses --rpo.cut.max ratio:0.5, its timing tables fixed:300, fixed:500 and fixed:800.
    budget_rule: str = option("factor:1", options_of(RPO)["budget_rule"].metadata["help"])
    # No options here: made without ``option``.
    replay_share: float = 0.0
    replay_max_reuses: int = 0
    cut_at: str = "uniform"
    cut_scope: str = "group"
    update_admit: str = "any"
    update_on_all_wrong: str = "keep"

    def loss_from(self, prefix_lengths: Sequence[int]) -> Sequence[int]:
        return [0] * len(prefix_lengths)
