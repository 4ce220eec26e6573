"""Replaying methods: the share of a batch to replay (least recently visited first), and how often in a row."""

from collections.abc import Sequence
from fractions import Fraction
from math import floor

from openrlhf_rpo.algo.methods.method import Method, Stored
from openrlhf_rpo.option import NOT_NEGATIVE, SHARE_BELOW_ONE, option
from openrlhf_rpo.types import OWN, Path, Visit


class Replay(Method):
    """Every sample continues the question's path in slot 0."""

    replay_share: float = option(
        0.75,
        "share of a batch that replays stored paths; the rest starts from the bare question. 0, as in the paper: data "
        "order, and every question that has a path continues it",
        bounds=SHARE_BELOW_ONE,
    )
    replay_max_reuses: int = option(
        0, "after this many replays of a question in a row, start from the bare question; 0: never", bounds=NOT_NEGATIVE
    )

    @property
    def reads_history(self) -> bool:
        return self.replay_max_reuses > 0

    def paths(self, stored: Stored, n_samples: int) -> Sequence[Path]:
        if self.worn_out(stored.visits) or OWN not in stored.paths:
            return ()
        return (stored.paths[OWN],) * n_samples

    def worn_out(self, visits: Sequence[Visit]) -> bool:
        """Whether the question has been replayed ``replay_max_reuses`` times in a row."""
        return 0 < self.replay_max_reuses <= replays_in_a_row(visits)


def replays_in_a_row(visits: Sequence[Visit]) -> int:
    """Visits since the last group that started from the bare question, which had neither prefix nor cut."""
    count = 0
    for visit in reversed(visits):
        if visit.cut == 0 and visit.prefix_length == 0:
            break
        count += 1
    return count


def n_replayed(n: int, share: float, step: int) -> int:
    """How many of the ``n`` questions of a step (counted from 1) are replayed, if that many have a path.

    Rounding remainders carry over, so that steps 1 to s together replay the share of s * n, rounded down.
    """
    a_step = n * Fraction(str(share))  # exact: 0.29 * 100 is 28.999... in floating point
    return floor(a_step * step) - floor(a_step * (step - 1))
