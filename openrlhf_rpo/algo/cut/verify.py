"""Verified reuse: the current policy accepts a stored path token by token, the first rejection is the cut.

After SPEC-RL (arXiv 2509.23232), which takes the path as a draft of speculative decoding. q_t is the probability with
which token t was sampled when the path was stored, p_t the current policy's, l the lenience (``cut.lenience``)::

    token t is accepted with probability min(1, l * p_t / q_t);   kept = tokens before the first rejection

Each sample has a stored path of its own (update rule ``every``), right or wrong, so that a group stays as various as the
policy is. The whole path is then a sample of the current policy and carries loss (``prefix_loss include``), and is stored
with the log-probs p. With this rule these are the defaults of their options.

After a rejection speculative decoding draws the next token from the residual p - min(q, l p), which takes the *whole*
distribution q at that place; a cache has q of the stored token x alone. So the other tokens are taken to have changed by
one factor, 1 / c with c = (1 - q_x) / (1 - p_x), and the next token is drawn from p with the rejected one weighted by ::

    max(0, 1 - l) / (1 - min(c, l))        at l = 1 it is not drawn again

How exact it is, for l <= 1: the sample is the current policy's wherever one token lost what the others gained in
proportion, so where two share the probability; and wherever no token's probability grew by more than the factor 1 / l,
where the weight is 1. Elsewhere a token is off by at most the share of rejected ones. An unchanged policy accepts
everything. l > 1 accepts more than the policy would, l = 0 nothing (plain sampling).

Example, q = 0.5, 0.5, 0.4 and p = 0.6, 0.4, 0.2 with l = 1: accepted with probabilities 1, 0.8 and 0.5.

Degenerate cases: a path without log-probs (imported as text) is rejected whole, and its tokens may come again. The end
token of a path, and the last place of one that was cut off at its length limit, are always written anew, from p, so that
there is something to generate.

Choose it where tokens are what costs: every stored path is scored at each visit, a forward pass of all its tokens.
"""

import math
import random

from openrlhf_rpo.algo.cut.context import CutContext
from openrlhf_rpo.config import CutOptions
from openrlhf_rpo.types import Path, Rejected


def verify(context: CutContext) -> tuple[int, ...]:
    """For each sample the tokens of its own stored path from the first rejected one on."""
    pairs = zip(context.paths, context.log_probs, strict=True)
    return tuple(_cut(path, now, context.options.lenience, context.generator) for path, now in pairs)


def accepted(then: tuple[float, ...], now: tuple[float, ...], lenience: float, generator: random.Random) -> int:
    """How many tokens are accepted before the first rejection, of log-probs q ``then`` and p ``now``."""
    if lenience == 0:
        return 0
    leeway = math.log(lenience)
    for t, (q, p) in enumerate(zip(then, now, strict=True)):
        if not math.log(1.0 - generator.random()) <= leeway + p - q:  # 1 - u is in (0, 1]; not a number is no yes
            return t
    return len(now)


def rejected(path: Path, kept: int, now: tuple[float, ...], options: CutOptions) -> Rejected | None:
    """The token after the ``kept`` ones, and its weight where another is drawn instead; None: that one is drawn from p.

    ``now`` are the log-probs p of all tokens of the path.
    """
    if path.log_probs is None or kept == _n_verified(path):
        return None
    weight = residual_weight(path.log_probs[kept], now[kept], options.lenience)
    return Rejected(path.token_ids[kept], now[kept], weight) if weight < 1 else None


def residual_weight(q: float, p: float, lenience: float) -> float:
    """What a rejected token counts where another is drawn instead, as a share of its probability; ``q``, ``p`` are logs."""
    if not p < 0:  # nothing else can come, or not a number
        return 1.0
    others = min(math.expm1(min(q, 0.0)) / math.expm1(p), lenience)
    return max(0.0, 1 - lenience) / (1 - others) if others < 1 else 1.0


def _cut(path: Path, now: tuple[float, ...], lenience: float, generator: random.Random) -> int:
    if path.log_probs is None:
        return len(path)
    n = _n_verified(path)
    return len(path) - accepted(path.log_probs[:n], now[:n], lenience, generator)


def _n_verified(path: Path) -> int:
    """All tokens but the end token."""
    return len(path) - (path.finish_reason == "stop")
