"""Where the seconds of a training step go."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class PhaseClock:
    """Seconds by phase since ``start_step``. What ran in none of the phases is the step's own control code."""

    def __init__(self) -> None:
        self.start_step()

    def start_step(self, **carried: float) -> None:
        """Begin anew; ``carried``: seconds of phases that could not be counted in the step before."""
        self.seconds = dict(carried)
        self._started = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count what runs inside, also when it raises."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started

    def metrics(self) -> dict[str, float]:
        """timing/PHASE of each phase, timing/own, and timing/step_total, in seconds."""
        total = time.perf_counter() - self._started
        own = max(0.0, total - sum(self.seconds.values()))
        return {f"timing/{k}": v for k, v in {**self.seconds, "own": own, "step_total": total}.items()}
