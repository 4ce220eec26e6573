"""Where a stored path is cut: one rule a file, chosen by ``--rpo.cut.rule``."""

from openrlhf_rpo.algo.cut.adaptive import adaptive
from openrlhf_rpo.algo.cut.context import CutContext, CutRule
from openrlhf_rpo.algo.cut.uncertain import uncertain
from openrlhf_rpo.algo.cut.uniform import uniform

CUT_RULES: dict[str, CutRule] = {
    "uniform": uniform,  # m ~ U{0..L}, both ends included (RPO)
    "uncertain": uncertain,  # P(m) proportional to 1 - p of the token at which the response starts
    "adaptive": adaptive,  # so far back that about a target share of the samples succeeds
}

__all__ = ["CUT_RULES", "CutContext", "CutRule"]
