"""Which of a question's first samples becomes its cached path, C(0) (spec section 1, ``init bulk``).

Degenerate cases: one sample is taken as it is (the paper); a question whose samples all fail has no cached path under
``admit rewarded``, and its groups start from the bare prompt.
"""

from collections.abc import Sequence

from openrlhf_rpo.algo.update.decide import score_of
from openrlhf_rpo.algo.variance import rewarded
from openrlhf_rpo.types import Sample


def best_of(samples: Sequence[Sample], admit: str) -> Sample | None:
    """The best score, then the shortest path, then the first; None when nothing may enter the cache.

    ``admit`` is "rewarded" or "any". Raises ValueError when a sample has no score.
    """
    candidates = [sample for sample in samples if admit == "any" or rewarded(score_of(sample))]
    return min(candidates, key=lambda sample: (-score_of(sample), sample.path_length), default=None)
