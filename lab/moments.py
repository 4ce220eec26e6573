"""Where a run is killed, and what the kill hit."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import inspect, text

from lab.attempt import Attempt
from lab.invariants import copied_cache
from openrlhf_rpo.upstream import STAGING


@dataclass(frozen=True)
class Plan:
    """Kill ``delay`` seconds after ``when`` becomes true."""

    name: str
    when: Callable[[Attempt], bool]
    delay: float


def draw_plan(rng: random.Random, folder: Path, first: bool) -> Plan:
    """A random moment. Most plans wait for training, so that the chain progresses between kills."""

    def call(name: str) -> Callable[[Attempt], bool]:
        return lambda attempt: name in attempt.calls()

    staging = folder / "checkpoints" / STAGING
    if first and rng.random() < 0.6:
        return Plan("initial cache", call("trainer.fit"), rng.uniform(0.5, 15))
    plans = {"start-up": 1, "any moment": 5, "steps": 5, "forward": 1, "train": 2, "commit": 3, "checkpoint": 5}
    kind = rng.choices(list(plans), list(plans.values()))[0]
    if kind == "start-up":
        return Plan(kind, lambda attempt: True, rng.uniform(1, 30))
    if kind == "any moment":
        return Plan(kind, call("trainer.fit"), rng.uniform(0, 12))
    if kind == "checkpoint":
        # Leftovers of an earlier attempt are gone by then.
        return Plan(kind, lambda attempt: any(staging.glob("*")) and "trainer.fit" in attempt.calls(), rng.uniform(0, 0.5))
    if kind == "forward":
        return Plan(kind, call("policy.forward"), rng.uniform(0, 0.3))
    if kind == "train":
        return Plan(kind, call("policy.fit"), rng.uniform(0, 1))
    steps = rng.randint(1, 2)
    if kind == "steps":
        return Plan(kind, lambda attempt: len(attempt.steps()) >= steps, rng.uniform(0, 4))
    return Plan("commit", _EndOf("policy.broadcast_to_vllm", steps), rng.uniform(0, 0.06))


class _EndOf:
    """True after a call has started and ended ``times`` times: a step is committed right after its weight sync."""

    def __init__(self, call: str, times: int) -> None:
        self.call, self.left, self.inside = call, times, False

    def __call__(self, attempt: Attempt) -> bool:
        now = self.call in attempt.calls()
        self.left -= self.inside and not now
        self.inside = now
        return self.left <= 0


def phase(folder: Path, calls: set[str], plan: Plan, eval_steps: int) -> tuple[str, int]:
    """What the killed run, evaluated every ``eval_steps``, was doing (from its actors' last calls and its files), and its
    last step."""
    initialised, step, evaluated = read_state(folder)
    staging = folder / "checkpoints" / STAGING
    if "policy.save_model" in calls:
        return "saving the model", step
    if "trainer.fit" not in calls:
        return "start-up", step
    if any(staging.glob("*")):  # the folder itself stays
        copying = any(staging.rglob("rpo_cache.db*"))
        return ("database copy, publishing" if copying else "writing a checkpoint"), step
    if not initialised:
        return "initial cache", step
    for call, name in (("fit", "training"), ("forward", "log-probs"), ("broadcast_to_vllm", "weight sync")):
        if f"policy.{call}" in calls:
            return name, step
    if plan.name == "commit":
        return "around the commit", step
    due = step % eval_steps == 0 and step not in evaluated
    return ("evaluation" if due else "rollout, rewards"), step


def read_state(folder: Path) -> tuple[bool, int, set[int]]:
    """Whether C(0) is complete, the last step, the evaluated steps."""
    with copied_cache(folder) as connection:
        if "steps" not in inspect(connection).get_table_names():
            return False, 0, set()
        done = connection.execute(text("SELECT value FROM runs WHERE key = 'initialised'")).first()
        step = connection.execute(text("SELECT max(step) FROM steps")).scalar()
        evaluated = set(connection.execute(text("SELECT step FROM evaluations")).scalars())
    return done is not None, step or 0, evaluated


def wait_for(attempt: Attempt, plan: Plan, timeout: float) -> bool:
    """Wait for the planned moment; False if the run ends before it."""
    deadline = time.perf_counter() + timeout
    due = None
    while attempt.root.poll() is None:
        now = time.perf_counter()
        if due is None and plan.when(attempt):
            due = now + plan.delay
        if due is not None and now >= due:
            return True
        if now > deadline:
            raise TimeoutError(f"{attempt.log_file}: still running after {timeout:.0f} s")
        pause = 0.05 if due is None else max(0.0, min(0.05, due - now))
        time.sleep(0.005 if plan.name in ("commit", "checkpoint") and attempt.actors else pause)
    return False
