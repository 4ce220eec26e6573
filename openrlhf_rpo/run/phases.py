"""Timing the phases of a training step."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


class PhaseClock:
    """Seconds by phase since ``start_step``. Time outside all phases is the step's own control code."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.start_step()

    def start_step(self, present: Sequence[str] = (), carried: Sequence[str] = ()) -> None:
        """Reset. ``present``: phases to record in any case; ``carried``: phases that keep seconds since the last record."""
        self.seconds = dict.fromkeys(present, 0.0) | {name: self.seconds.get(name, 0.0) for name in carried}
        self._started = time.perf_counter()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time the block, even if it raises."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started

    def add(self, seconds: Mapping[str, float]) -> None:
        """Count seconds that another clock measured within this step."""
        for phase, n in seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + n

    def metrics(self) -> dict[str, float]:
        """timing/PHASE for each phase, timing/own and timing/step_total, in seconds."""
        total = time.perf_counter() - self._started
        own = max(0.0, total - sum(self.seconds.values()))
        record = {f"timing/{k}": v for k, v in {**self.seconds, "own": own, "step_total": total}.items()}
        self.seconds = {}
        return record
