"""Whether drafts pay, from the seconds that a token takes with them and without.

What a forward pass with drafts costs, and how many of them are accepted, depends on hardware, model, policy and data, and
most of all on how many requests run: few, as in the tail of a rollout, leave room for drafts. So nothing is assumed: each
way is timed, by the number of running requests in powers of two, and the faster one is taken. Now and then the other is.
"""

from dataclasses import dataclass

TRIALS = 4
"""Passes of each way before one is preferred."""
AGAIN = 32
"""Every so many passes the slower way is tried."""


@dataclass
class Timing:
    """Seconds and tokens of the passes so far, of which each counts ``memory`` times as much as the one after it."""

    memory: float = 0.95
    seconds: float = 0.0
    tokens: float = 0.0
    passes: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        self.seconds = self.memory * self.seconds + seconds
        self.tokens = self.memory * self.tokens + tokens
        self.passes += 1

    @property
    def per_token(self) -> float:
        """Seconds; 0 before the first pass."""
        return self.seconds / self.tokens if self.tokens else 0.0


class Pace:
    """The two ways to do a forward pass, timed."""

    def __init__(self) -> None:
        self.timings: dict[tuple[int, bool], Timing] = {}
        self.saved = 0.0
        """Seconds that the tokens of passes with drafts would have taken longer without, by the passes without."""

    def add(self, requests: int, with_drafts: bool, tokens: int, seconds: float) -> None:
        """A pass of ``requests`` requests that gave them ``tokens`` tokens."""
        self._timing(requests, with_drafts).add(tokens, seconds)
        if with_drafts and (plain := self._timing(requests, False)).passes:
            self.saved += tokens * plain.per_token - seconds

    def pays(self, requests: int) -> bool:
        """Whether the next pass of so many requests should have drafts."""
        drafted, plain = self._timing(requests, True), self._timing(requests, False)
        if min(drafted.passes, plain.passes) < TRIALS:
            return drafted.passes <= plain.passes
        faster = drafted.per_token < plain.per_token
        return faster != ((drafted.passes + plain.passes) % AGAIN == 0)

    def _timing(self, requests: int, with_drafts: bool) -> Timing:
        return self.timings.setdefault((requests.bit_length(), with_drafts), Timing())
