"""Whether drafts pay, judged by the seconds per token with and without them.

The cost of a forward pass with drafts, and the share accepted, depend on hardware, model, policy and data, and most of all
on how many requests run: few, as in the tail of a rollout, leave room for drafts. So nothing is assumed: both ways are
timed, by the number of running requests in powers of two. The faster one is used, the other tried now and then.

What drafts have saved is not the sum over passes of how much longer their tokens would have taken: requests whose drafts are
accepted run ahead and end; the rest then run with few others, where a token costs most. Without drafts all would have run
side by side, so the seconds of that are computed (``abreast``).
"""

from dataclasses import dataclass
from heapq import heapreplace

import numpy as np

TRIALS = 4
"""Passes of each way before one is preferred."""
AGAIN = 64
"""One pass in so many tries the slower way."""


@dataclass
class Timing:
    """Seconds and tokens of the passes so far; each pass counts ``memory`` times as much as the next."""

    memory: float = 0.95
    seconds: float = 0.0
    tokens: float = 0.0
    weight: float = 0.0
    passes: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        self.seconds = self.memory * self.seconds + seconds
        self.tokens = self.memory * self.tokens + tokens
        self.weight = self.memory * self.weight + 1
        self.passes += 1

    @property
    def per_token(self) -> float:
        """Seconds; 0 before the first pass."""
        return self.seconds / self.tokens if self.tokens else 0.0


class Pace:
    """The two ways to do a forward pass, timed."""

    def __init__(self) -> None:
        self.timings: dict[tuple[int, bool], Timing] = {}

    def add(self, requests: int, with_drafts: bool, tokens: int, seconds: float) -> None:
        """Record a pass: ``requests`` requests got ``tokens`` tokens."""
        self._timing(requests, with_drafts).add(tokens, seconds)

    def pays(self, requests: int) -> bool:
        """Whether the next pass of so many requests should have drafts."""
        drafted, plain = self._timing(requests, True), self._timing(requests, False)
        if min(drafted.passes, plain.passes) < TRIALS:
            return drafted.passes <= plain.passes
        faster = drafted.per_token < plain.per_token
        return faster != ((drafted.passes + plain.passes) % AGAIN == 0)

    def plain_seconds(self, running: np.ndarray) -> float | None:
        """Seconds of passes without drafts, of ``running`` requests, [passes]; None before one was timed."""
        known = [timing for (_, with_drafts), timing in sorted(self.timings.items()) if timing.passes and not with_drafts]
        if not known:
            return None
        requests = [timing.tokens / timing.weight for timing in known]
        return float(np.interp(running, requests, [timing.seconds / timing.weight for timing in known]).sum())

    def _timing(self, requests: int, with_drafts: bool) -> Timing:
        return self.timings.setdefault((requests.bit_length(), with_drafts), Timing())


def abreast(new: np.ndarray, before: np.ndarray, at_once: int) -> tuple[np.ndarray, np.ndarray]:
    """Per pass, [passes]: the running sequences, and all the tokens they have so far.

    ``new``: tokens that each sequence is given, one per pass; ``before``: those it starts with. At most ``at_once`` run; the
    others follow in order.
    """
    if not len(new):
        return np.zeros(0), np.zeros(0)
    ends = [0] * min(at_once, len(new))
    changes = []
    for n, behind in zip(new.astype(int).tolist(), before.tolist(), strict=True):
        start = ends[0]
        heapreplace(ends, start + n)
        changes.append((start, start + n, behind - start))
    starts, stops, offsets = (np.array(column) for column in zip(*changes, strict=True))
    passes = int(stops.max())

    def summed(weights: np.ndarray | None) -> np.ndarray:
        return (np.bincount(starts, weights, passes + 1) - np.bincount(stops, weights, passes + 1))[:passes].cumsum()

    running = summed(None)
    return running, summed(offsets) + running * np.arange(passes)
