"""Which side of a run has the engines and the cache: rollout or training.

In a synchronous run both are one thread, and the gate is always open. With ``--train.async_enable`` groups are generated
while an earlier step trains; between two steps the training side holds the gate to send the new weights, to commit, to
evaluate and to write a checkpoint. The rollout side stops between two batches or, if its samples may be stopped midway
(``--train.partial_rollout_enable``), as soon as every engine has returned what it has.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Gate:
    """``version``: training steps completed by the engines' weights. ``worked``: seconds the rollout side worked inside
    ``passing``; ``parked``: seconds it stood still there."""

    def __init__(self) -> None:
        self.version = 0
        self.worked = self.parked = 0.0
        self._held = self._busy = False
        self._entered = 0.0
        self._condition = threading.Condition()

    @property
    def held(self) -> bool:
        return self._held

    @contextmanager
    def passing(self, ready: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Rollout side: while inside, the engines are its own. Waits until it is ``ready`` and the gate is not held."""
        self._enter(ready)
        try:
            yield
        finally:
            self._leave()

    def park(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Rollout side, inside ``passing``, with no request running: let the training side go first, and be ``ready``."""
        started = time.perf_counter()
        self._leave()
        self._enter(ready)
        self.parked += time.perf_counter() - started

    def changed(self) -> None:
        """Wake whoever waits, to check again."""
        with self._condition:
            self._condition.notify_all()

    def hold(self, done: Callable[[], bool] = lambda: True, stop: Callable[[], object] | None = None) -> None:
        """Training side: wait until the rollout side stands still and is ``done``, and keep it so until ``release``.

        ``stop``: do not wait for the end of a batch; make the engines return what they have.
        """
        if stop is not None:
            self._held = True
            stop()
        with self._condition:
            self._condition.wait_for(lambda: not self._busy and done())
            self._held = True

    def release(self) -> None:
        with self._condition:
            self._held = False
            self._condition.notify_all()

    def _enter(self, ready: Callable[[], bool]) -> None:
        with self._condition:
            self._condition.wait_for(lambda: not self._held and ready())
            self._busy, self._entered = True, time.perf_counter()

    def _leave(self) -> None:
        with self._condition:
            self._busy = False
            self.worked += time.perf_counter() - self._entered
            self._condition.notify_all()
