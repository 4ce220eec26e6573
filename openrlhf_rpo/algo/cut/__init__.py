"""Where a stored path is cut: one rule a file, chosen by ``--rpo.cut.rule``; ``config.CUT_RULES`` has a line on each."""

from openrlhf_rpo.algo.cut.adaptive import adaptive
from openrlhf_rpo.algo.cut.bare import bare
from openrlhf_rpo.algo.cut.context import CutContext, CutRule, Stored
from openrlhf_rpo.algo.cut.pivot import pivot
from openrlhf_rpo.algo.cut.tree import tree
from openrlhf_rpo.algo.cut.uncertain import uncertain
from openrlhf_rpo.algo.cut.uniform import uniform
from openrlhf_rpo.algo.cut.verify import rejected, verify
from openrlhf_rpo.algo.user_rules import load
from openrlhf_rpo.types import EXPERT, WRONG

CUT_RULES: dict[str, CutRule] = {
    "uniform": CutRule(uniform),
    "uncertain": CutRule(uncertain),
    "adaptive": CutRule(adaptive),
    "tree": CutRule(tree),
    "bare": CutRule(bare),
    "verify": CutRule(verify, each=True, scores=True, rejected=rejected),
    # The same cut of another path. A wrong one, which update rule right_and_wrong keeps: failure-prefix conditioning
    # (arXiv 2601.20829). One that was imported: BREAD's expert prefix.
    "failure": CutRule(uniform, slot=WRONG),
    "pivot": CutRule(pivot, slot=WRONG, history=True),
    "expert": CutRule(uniform, slot=EXPERT),
}


def cut_rule(name: str) -> CutRule:
    """The rule of that name, or the user's, as FILE.py:NAME, a function or a ``CutRule``. Raises ``UserRuleError``."""
    if name in CUT_RULES:
        return CUT_RULES[name]
    found = load(name, CutRule)
    return found if isinstance(found, CutRule) else CutRule(found)


__all__ = ["CUT_RULES", "CutContext", "CutRule", "Stored", "cut_rule"]
