"""Batches for the training side: made when it asks for them, or ahead of it in a thread (``--train.async_enable``).

With ``--train.async_queue_size`` N the batch of step t + N is made while step t trains, by the policy that had completed
t - 1 steps, and the next one is begun when step t is committed. So which policy samples what does not depend on timing, and
a run repeats bit for bit, except with ``--train.partial_rollout_enable``, which stops samples midway.

Groups that are made or begun but not committed are *in flight*: a checkpoint has them, and a resumed run continues them.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import SimpleNamespace

from openrlhf_rpo.rollout.batches import Batch, Batches
from openrlhf_rpo.run.phases import PhaseClock
from openrlhf_rpo.types import Begun


class InStep:
    """Makes each batch when it is needed: the synchronous loop. ``clock`` times the training side."""

    def __init__(self, batches: Batches, clock: PhaseClock) -> None:
        self.batches = batches
        self.clock = clock

    def start(self, step: int, last: int) -> None:
        """Begin with the batch of ``step``; ``last`` is the run's last one."""

    def take(self, step: int) -> Batch | None:
        """The batch of a step; None at the end of the data."""
        return self.batches.make(step)

    @contextmanager
    def still(self) -> Iterator[None]:
        """While inside, the engines and the cache belong to the caller."""
        yield

    def in_flight(self) -> list[Begun]:
        """Every group that is begun and not taken, by step; only inside ``still``."""
        return self.batches.begun

    def timing(self, batch: Batch) -> dict[str, float]:
        """The seconds of a step by phase; only inside ``still``."""
        self.clock.add(batch.seconds)
        return self.clock.metrics()


class Ahead(InStep):
    """Makes batches in a thread, at most ``size`` ahead. ``partial``: stops samples so that a step can end."""

    def __init__(self, batches: Batches, clock: PhaseClock, size: int, partial: bool) -> None:
        super().__init__(batches, clock)
        self.partial = partial
        self.size = size
        self._n_made = self._n_taken = 0  # each has one writer
        self._ended = False
        self._error: Exception | None = None
        self._made: SimpleQueue[Batch | None] = SimpleQueue()
        self._queued: list[Batch] = []
        self._worked = 0.0
        self._gate, self._engines = batches.rollout.gate, batches.rollout.generator

    def start(self, step: int, last: int) -> None:
        threading.Thread(target=self._make_all, args=(step, last), name="rollout", daemon=True).start()

    def take(self, step: int) -> Batch | None:
        """Waits for it. Raises the rollout side's error."""
        with self.clock("waiting"):
            made = self._made.get()
        if made is None and self._error is not None:
            raise self._error
        if made is not None:
            self._queued.pop(0)
            self._n_taken += 1
            self._gate.changed()
        return made

    @contextmanager
    def still(self) -> Iterator[None]:
        """Unless ``partial``, first makes every batch there is room for, so that timing decides nothing.

        Raises the rollout side's error: what it left could not be continued as if nothing had happened.
        """
        with self.clock("waiting"):
            if self.partial:
                self._gate.hold(stop=self._engines.stop)
                self._engines.go_on()  # the caller may evaluate
            else:
                self._gate.hold(done=lambda: self._ended or not self._ready())
        if self._error is not None:
            raise self._error
        yield
        self._gate.release()

    def timing(self, batch: Batch) -> dict[str, float]:
        waited, before, self._worked = self.clock.seconds["waiting"], self._worked, self._gate.worked
        metrics = self.clock.metrics()
        total = metrics["timing/step_total"]
        beside = {f"timing/{phase}": seconds for phase, seconds in batch.seconds.items()}
        busy = {"rpo/rollout_busy": (self._worked - before) / total, "rpo/train_busy": 1 - waited / total}
        return metrics | {name: metrics.get(name, 0.0) + seconds for name, seconds in beside.items()} | busy

    def in_flight(self) -> list[Begun]:
        return [group.begun for batch in self._queued for group in batch.groups] + self.batches.on_the_way()

    def _ready(self) -> bool:
        return self._n_made - self._n_taken < self.size and not self.batches.short

    def _make_all(self, step: int, last: int) -> None:
        try:
            while not self._ended:
                with self._gate.passing(self._ready):
                    batch = self.batches.make(step) if step <= last else None
                    self._n_made += 1
                    self._ended = batch is None
                    if batch is not None:
                        self._queued.append(batch)
                    self._made.put(batch)
                step += 1
        except Exception as error:  # raised again in ``take`` or ``still``
            self._error, self._ended = error, True
            self._made.put(None)
            self._gate.changed()


def source_of(batches: Batches, clock: PhaseClock, args: SimpleNamespace) -> InStep:
    """The batch source for these options."""
    size = args.train.async_queue_size if args.train.async_enable else 0
    return Ahead(batches, clock, size, args.train.partial_rollout_enable) if size else InStep(batches, clock)
