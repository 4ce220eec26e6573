"""Verified reuse: the current policy accepts a stored path token by token; the first rejection is the cut.

After SPEC-RL (arXiv 2509.23232), which treats the path as a draft in speculative decoding. q_t is the probability that token
t had when it was sampled, p_t its probability under the current policy, l the lenience::

    token t is accepted with probability min(1, l * p_t / q_t);   kept = tokens before the first rejection

Each sample has its own stored path, right or wrong, so that groups stay as diverse as the policy. The whole path counts as a
sample of the current policy: it carries loss, and is stored with the log-probs p.

After a rejection, speculative decoding draws the next token from the residual p - min(q, l p), which needs the *whole*
distribution q at that position; the cache only has q of the stored token x. So all other tokens are assumed to have changed
by one factor, 1 / c with c = (1 - q_x) / (1 - p_x), and the next token is drawn from p with the rejected one weighted by ::

    max(0, 1 - l) / (1 - min(c, l))        at l = 1 it is not drawn again

For l <= 1 the sample follows the current policy exactly if the stored path is independent of that policy given q, and q is
the distribution that the path was drawn from. Training on a path breaks the first condition. The approximate residual breaks
the second, except where two tokens share all probability, where one token lost what the others gained in proportion, or
where no probability grew by more than 1 / l. Elsewhere a token is off by at most the share of rejected ones. l > 1 accepts
more than the policy would, l = 0 nothing (plain sampling).

Example, q = 0.5, 0.5, 0.4 and p = 0.6, 0.4, 0.2 with l = 1: accepted with probabilities 1, 0.8 and 0.5.

The end token is verified like any other: if it were always drawn again, an answer could end only where it is drawn twice,
and answers would grow. A path that is accepted whole is the sample.

Degenerate cases: a path without log-probs (imported as text) is rejected whole, and its tokens may be drawn again. The last
place that the length limit allows is always drawn again from p, whatever was there. In half precision q is the log-prob of
reading the new answer, not of drawing it: the kernels round differently (``rollout/rollout.py``).
"""

import math
import random
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from openrlhf_rpo.algo.methods.method import Cut, Stored
from openrlhf_rpo.algo.methods.replay import Replay
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.option import NOT_NEGATIVE, option, options_of
from openrlhf_rpo.types import LogProbs, Path, Rejected

_OF_REPLAY = options_of(Replay)


class Verify(Replay):
    """Keep what the current policy still accepts, and continue from there."""

    scores = True

    replay_max_reuses: int = option(6, _OF_REPLAY["replay_max_reuses"].metadata["help"], bounds=NOT_NEGATIVE)
    verify_lenience: float = option(
        1.0, "how readily a stored token is accepted; 1: as in speculative decoding", bounds=NOT_NEGATIVE
    )

    @property
    def admits_wrong(self) -> bool:
        """Paths chosen by reward would not be distributed as q."""
        return True

    def check_run(self, args: SimpleNamespace) -> None:
        super().check_run(args)
        mode, n = args.rpo.init.mode, args.rollout.n_samples_per_prompt
        if n > 1 and mode != "progressive":
            raise UsageError(
                f"--rpo.init.mode {mode} stores one path a question, and --rpo.method {self.name} needs one for each of its "
                f"{n} samples: leave the initial cache out, or give --rollout.n_samples_per_prompt 1"
            )

    def paths(self, stored: Stored, n_samples: int) -> Sequence[Path]:
        # Samples from copies of one path would not be independent.
        enough = len(stored.paths) >= n_samples and not self.worn_out(stored.visits)
        return stored.in_turn(n_samples) if enough else ()

    def cuts(self, cut: Cut) -> Sequence[int]:
        pairs = zip(cut.paths, cut.log_probs, strict=True)
        return [_cut(path, now, self.verify_lenience, cut.generator) for path, now in pairs]

    def rejected(self, path: Path, kept: int, log_probs: LogProbs) -> Rejected | None:
        if path.log_probs is None or kept == len(path):
            return None
        weight = residual_weight(path.log_probs[kept], log_probs[kept], self.verify_lenience)
        return Rejected(path.token_ids[kept], log_probs[kept], weight) if weight < 1 else None

    def loss_from(self, prefix_lengths: Sequence[int]) -> Sequence[int]:
        return [0] * len(prefix_lengths)


def accepted(then: Sequence[float], now: Sequence[float], lenience: float, generator: random.Random) -> int:
    """How many tokens are accepted, given the log-probs q (``then``) and p (``now``). NaN rejects."""
    if lenience == 0:
        return 0
    q, p = np.asarray(then, np.float64), np.asarray(now, np.float64)
    with np.errstate(invalid="ignore"):  # -inf - -inf
        ratio = math.log(lenience) + p - q
    noise = np.random.default_rng(generator.getrandbits(64)).random(len(ratio))  # the same whatever the lenience
    rejected = np.flatnonzero(~(np.log1p(-noise) <= ratio))  # 1 - noise is in (0, 1]
    return int(rejected[0]) if len(rejected) else len(now)


def residual_weight(q: float, p: float, lenience: float) -> float:
    """The factor on a rejected token's probability in the draw that replaces it; ``q`` and ``p`` are log-probs."""
    if not p < 0:  # no other token is possible, or NaN
        return 1.0
    others = min(math.expm1(min(q, 0.0)) / math.expm1(p), lenience)
    return max(0.0, 1 - lenience) / (1 - others) if others < 1 else 1.0


def _cut(path: Path, now: LogProbs, lenience: float, generator: random.Random) -> int:
    if path.log_probs is None:
        return len(path)
    return len(path) - accepted(path.log_probs, now, lenience, generator)
