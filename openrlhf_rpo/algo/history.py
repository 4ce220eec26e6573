"""What a question's visits say about its chance: the value estimate (by cut, from the history).

One model serves the cut rules ``adaptive`` and ``pivot`` and the baseline ``history``: every part of a path carries the same
risk, so that a sample that writes the share s of its path itself is right with the probability exp(-risk * s). A head of a
*wrong* path may hold the mistake already: the share k of it costs exp(-mistake * k) on top of what a bare question risks.
"""

import math
from collections.abc import Sequence

from openrlhf_rpo.types import OWN, WRONG, Visit

_FADING = 0.5  # what a visit counts against the next newer one: the policy moves on


def success_rate(visit: Visit) -> float:
    """q = (rewarded + 1/2) / (samples + 1): inside (0, 1) also for a group that was all right or all wrong."""
    return (visit.n_rewarded + 0.5) / (visit.n_samples + 1)


def share_to_write(cut: int, prefix_length: int) -> float:
    """The part of a path that a sample writes itself, by tokens of the path that was cut; 1 from the bare question."""
    return cut / (cut + prefix_length) if prefix_length else 1.0


def expected_score(visits: Sequence[Visit], share: float, slot: int = OWN) -> float:
    """The chance of a sample that writes ``share`` of its path, by the question's visits, oldest first.

    The risk is fitted to their success rates by least squares, a visit counting half of the next newer one. Example, one
    visit that wrote half and was right in 1 of 4: q = 1.5 / 5, risk = 2.41, hence 0.30 for a half, 0.55 for a quarter,
    0.09 bare. ``slot`` is the path's that is continued. Degenerate cases: without visits a whole path succeeds with 1/2; a
    visit whose path was kept whole says nothing.
    """
    if slot == WRONG:
        return math.exp(-_risk(visits) - mistake(visits) * (1 - share))
    return math.exp(-_risk(visits) * share)


def mistake(visits: Sequence[Visit]) -> float:
    """What a whole wrong path costs, as a logarithm, >= 0; fitted like the risk to the visits that cut one.

    Example, a question whose risk is 0.69 (1/2 from the bare question) and 1 of 4 right from half of a wrong path:
    (1.20 - 0.69) / 0.5 = 1.02. Without such visits half of a wrong path halves the chance: 2 ln 2.
    """
    found = [visit for visit in visits if visit.slot == WRONG]
    kept = [1 - share_to_write(visit.cut, visit.prefix_length) for visit in found]
    risk = _risk(visits)
    costs = [-math.log(success_rate(visit)) - risk for visit in found]
    return max(0.0, _slope(kept, costs, 2 * math.log(2)))


def _risk(visits: Sequence[Visit]) -> float:
    found = [visit for visit in visits if visit.slot != WRONG]
    shares = [share_to_write(visit.cut, visit.prefix_length) for visit in found]
    return _slope(shares, [-math.log(success_rate(visit)) for visit in found], math.log(2))


def _slope(xs: Sequence[float], ys: Sequence[float], unknown: float) -> float:
    """b of y = b x by least squares, the newest point last and counting most; ``unknown`` where every x is 0."""
    weights = [_FADING ** (len(xs) - 1 - i) for i in range(len(xs))]
    known = sum(w * x * x for w, x in zip(weights, xs, strict=True))
    return sum(w * x * y for w, x, y in zip(weights, xs, ys, strict=True)) / known if known else unknown
