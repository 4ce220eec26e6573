"""What a cut rule may look at."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from openrlhf_rpo.config import CutOptions
from openrlhf_rpo.types import Path, Visit


@dataclass(frozen=True)
class CutContext:
    """The cached path of one question, its newest visit (None before the first group), and a keyed generator."""

    path: Path
    last_visit: Visit | None
    n_samples: int
    options: CutOptions
    generator: random.Random

    @property
    def ends_with_end_token(self) -> bool:
        """Kept whole, such a path would leave nothing to generate."""
        return self.path.finish_reason == "stop"

    @property
    def shortest_path(self) -> int:
        """The paper's l in tokens: of the question's last group, before the first group the cached path's length."""
        return len(self.path) if self.last_visit is None else self.last_visit.shortest_path

    def for_each_sample(self, draw: Callable[[], int]) -> tuple[int, ...]:
        """One draw for the group, repeated, or (``scope sample``) one for each sample."""
        if self.options.scope == "sample":
            return tuple(draw() for _ in range(self.n_samples))
        return (draw(),) * self.n_samples


CutRule = Callable[[CutContext], tuple[int, ...]]
"""A pure function to the cuts m, one for each of ``n_samples`` samples, 0 <= m <= path length."""
