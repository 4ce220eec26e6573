"""What a question's visits say about its chance: the value estimate (by cut, from the history).

One model serves the cut rule ``adaptive`` and the baseline ``history``: every part of a path carries the same risk, so that
a sample that writes the share s of its path itself is right with the probability exp(-risk * s).
"""

import math
from collections.abc import Sequence

from openrlhf_rpo.types import Visit

_FADING = 0.5  # what a visit counts against the next newer one: the policy moves on


def success_rate(visit: Visit) -> float:
    """q = (rewarded + 1/2) / (samples + 1): inside (0, 1) also for a group that was all right or all wrong."""
    return (visit.n_rewarded + 0.5) / (visit.n_samples + 1)


def share_to_write(cut: int, prefix_length: int) -> float:
    """The part of a path that a sample writes itself, by tokens of the path that was cut; 1 from the bare question."""
    return cut / (cut + prefix_length) if prefix_length else 1.0


def expected_score(visits: Sequence[Visit], share: float) -> float:
    """The chance of a sample that writes ``share`` of its path, by the question's visits, oldest first.

    The risk is fitted to their success rates by least squares, a visit counting half of the next newer one. Example, one
    visit that wrote half and was right in 1 of 4: q = 1.5 / 5, risk = 2.41, hence 0.30 for a half, 0.55 for a quarter,
    0.09 bare. Degenerate cases: without visits a whole path succeeds with 1/2; a visit whose path was kept whole says
    nothing.
    """
    weights = [_FADING ** (len(visits) - 1 - i) for i in range(len(visits))]
    shares = [share_to_write(visit.cut, visit.prefix_length) for visit in visits]
    known = sum(w * s * s for w, s in zip(weights, shares, strict=True))
    if known == 0:
        return math.exp(-math.log(2) * share)
    risks = (-math.log(success_rate(visit)) for visit in visits)
    risk = sum(w * s * r for w, s, r in zip(weights, shares, risks, strict=True)) / known
    return math.exp(-risk * share)
