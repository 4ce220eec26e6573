"""How long a draft pays, from the seconds that forward passes take and the share of drafted tokens that is accepted.

A forward pass over T tokens takes about a + b T seconds. Each drafted token costs b. One that is accepted, and with it all
before it in its draft, saves its request one pass: b, and its part a / n of what n requests share. With acceptance p a
token, the j-th token of a draft pays while ::

    p^j (a / n + b) > b

Where b is all that counts (many requests, a large model on a CPU) nothing pays; where a is (few requests, as in the tail
of a rollout), even drafts that are mostly wrong.
"""

import math
from dataclasses import dataclass


@dataclass
class Pace:
    """a and b by least squares over the passes so far, of which each counts ``memory`` times as much as the one after it."""

    memory: float = 0.99
    weight: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """A pass over ``tokens`` tokens."""
        new = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        names = ("weight", "tokens", "seconds", "squares", "products")
        for name, value in zip(names, new, strict=True):
            setattr(self, name, self.memory * getattr(self, name) + value)

    def costs(self) -> tuple[float, float]:
        """a and b in seconds, neither below 0; 0 and 0 before two passes of different size."""
        spread = self.weight * self.squares - self.tokens**2
        if spread <= 1e-9 * self.squares * self.weight:
            return 0.0, 0.0
        b = max(0.0, (self.weight * self.products - self.tokens * self.seconds) / spread)
        return max(0.0, (self.seconds - b * self.tokens) / self.weight), b

    def longest(self, acceptance: float, requests: int, most: int) -> int:
        """The longest draft that pays, at most ``most`` tokens; ``acceptance`` below 1."""
        a, b = self.costs()
        if b == 0:
            return most
        if a == 0:
            return 0
        return min(most, math.floor(math.log(b / (a / requests + b)) / math.log(acceptance)))
