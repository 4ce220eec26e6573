"""What a cut rule may look at, and what a rule is."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from openrlhf_rpo.config import CutOptions
from openrlhf_rpo.types import OWN, Path, Rejected, Visit


@dataclass(frozen=True)
class Stored:
    """What the cache knows of one question: its paths by slot, and its visits.

    ``visits`` are oldest first; all of them where a rule or an option asks for the history, else the newest alone.
    ``log_probs`` are those of the paths' tokens under the current policy, by slot, where the rule scores them.
    """

    paths: Mapping[int, Path] = field(default_factory=dict)
    visits: tuple[Visit, ...] = ()
    log_probs: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    @property
    def last_visit(self) -> Visit | None:
        return self.visits[-1] if self.visits else None


@dataclass(frozen=True)
class CutContext:
    """The paths that are cut, the question's visits, and a keyed generator.

    ``paths`` is one path, or one for each sample, in their order (``CutRule.each``). ``visits`` and ``log_probs`` are those
    of ``Stored``, the latter in the order of ``paths``; empty for a rule that does not score.
    """

    paths: tuple[Path, ...]
    n_samples: int
    options: CutOptions
    generator: random.Random
    visits: tuple[Visit, ...] = ()
    log_probs: tuple[tuple[float, ...], ...] = ()

    @property
    def path(self) -> Path:
        """The path that is cut; of several, the first sample's."""
        return self.paths[0]

    @property
    def last_visit(self) -> Visit | None:
        """None before the first group."""
        return self.visits[-1] if self.visits else None

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


@dataclass(frozen=True)
class CutRule:
    """A rule: ``choose`` is a pure function to the cuts m, one for each of ``n_samples``, 0 <= m <= path length.

    It cuts the path in ``slot``, or (``each``) for sample i the one in slot i. ``scores``: it reads what the current
    policy thinks of the stored tokens, which takes a pass over them. ``history``: it reads all visits. ``rejected``
    says of a path, the number of kept tokens, the scores and the options how the next token is drawn (``Prefix.rejected``).
    """

    choose: Callable[[CutContext], tuple[int, ...]]
    slot: int = OWN
    each: bool = False
    scores: bool = False
    history: bool = False
    rejected: Callable[[Path, int, tuple[float, ...], CutOptions], Rejected | None] | None = None
