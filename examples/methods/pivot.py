"""Start deep in a wrong path, but where it can still be recovered (DEEP-GRPO, arXiv 2602.14169).

    --rpo.method examples/methods/pivot.py:Pivot

After an all-right group, the next one continues a wrong path of the question (see failure.py). A deeper start is closer to
the mistake and costs fewer tokens, but the mistake is more likely to be inside the prefix, and then nothing is learned. The
kept head has t tokens with probability ::

    P(t) in proportion to t * exp(-c t / T),   T - L <= t < T

T is the wrong path's length; keeping the share k of it multiplies the success probability by exp(-c k). c is fitted to
the question's visits: a sample that writes the share s of a path is right with probability exp(-risk * s), with one risk for
every part of a path, and starting in a wrong path multiplies the probability of the bare question by exp(-c k). Each visit
counts half as much as the next newer one. Example, T = 4, L = 4, c = 2 ln 2, its value without such visits::

    P(1) : P(2) : P(3) = 1 * 0.71 : 2 * 0.5 : 3 * 0.35 = 0.26 : 0.36 : 0.38

DEEP-GRPO fits the probability of recovery over all questions, by a logistic regression on the relative position.

Degenerate cases: with L below 1, or a path of one token, the group starts from the bare question.

Measured on the testbed (24 steps of 16x4, three fresh seeds): 0.845 +- 0.039 on main (169k tokens, 55 s), 0.795 +- 0.009 on
hard (208k, 68 s); plain ``rpo`` 0.881 (162k, 54 s) and 0.794 (186k, 65 s). It costs a little on main and gains nothing.
Then replays also went to questions without a right path, which start bare; without these it was not measured.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

from openrlhf_rpo.algo.cuts import largest_cut
from openrlhf_rpo.algo.methods import RPO, Choice, Cut, Scored, Stored
from openrlhf_rpo.types import Path, Visit

WRONG = 1  # the slot of the wrong path


class Pivot(RPO):
    @property
    def reads_history(self) -> bool:
        return True

    def paths(self, stored: Stored, n_samples: int) -> Sequence[Path]:
        last = stored.last_visit
        if last and last.n_rewarded == last.n_samples and WRONG in stored.paths and not self.worn_out(stored.visits):
            return (stored.paths[WRONG],) * n_samples
        return super().paths(stored, n_samples)

    def cuts(self, cut: Cut) -> Sequence[int]:
        """m = T - t for a wrong path, with t drawn by P(t)."""
        if cut.path.slot != WRONG:
            return super().cuts(cut)
        length = len(cut.path)
        depths = range(max(1, length - largest_cut(self.cut_max, length, cut.shortest_path)), length)
        if not depths:
            return (length,) * cut.n_samples
        cumulated = list(accumulate(utilities(depths, length, mistake(cut.visits))))
        return cut.alike(lambda: length - cut.generator.choices(depths, cum_weights=cumulated)[0])

    def store(self, group: Scored) -> Choice:
        own = super().store(group)
        if not group.wrong or not (own.samples or group.has_path):  # replayed, it would only start bare
            return own
        return Choice({**own.samples, WRONG: group.generator.choice(group.wrong)}, own.outcome, own.start_bare)


def utilities(depths: range, length: int, cost: float) -> list[float]:
    """t exp(-c t / T) for each number of kept tokens t."""
    return [t * math.exp(-cost * t / length) for t in depths]


def mistake(visits: Sequence[Visit]) -> float:
    """c, at least 0. Example, risk 0.69 (1/2 from the bare question) and 1 of 4 right from half of a wrong path:
    (1.20 - 0.69) / 0.5 = 1.02. Without such visits, half of a wrong path halves the success probability: 2 ln 2.
    """
    costs = [(_kept(visit), -math.log(_rate(visit))) for visit in visits if visit.slot == WRONG]
    risks = [(1 - _kept(visit), -math.log(_rate(visit))) for visit in visits if visit.slot != WRONG]
    risk = _slope(risks, math.log(2))
    return max(0.0, _slope([(kept, cost - risk) for kept, cost in costs], 2 * math.log(2)))


def _kept(visit: Visit) -> float:
    """The share of its path that the visit kept."""
    return visit.prefix_length / (visit.cut + visit.prefix_length) if visit.prefix_length else 0.0


def _rate(visit: Visit) -> float:
    """The success rate, inside (0, 1) even for an all-right or all-wrong group."""
    return (visit.n_rewarded + 0.5) / (visit.n_samples + 1)


def _slope(points: Sequence[tuple[float, float]], unknown: float) -> float:
    """Least squares fit of b in y = b x, newer (later) points counting more; ``unknown`` if every x is 0."""
    weights = [0.5 ** (len(points) - 1 - i) for i in range(len(points))]
    known = sum(w * x * x for w, (x, _) in zip(weights, points, strict=True))
    return sum(w * x * y for w, (x, y) in zip(weights, points, strict=True)) / known if known else unknown
