"""One run as a report sees it: the figures of its steps and evaluations, its options, and how far it got."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from openrlhf_rpo.algo.variance import CENTERED
from openrlhf_rpo.cache.history import CacheHistory
from openrlhf_rpo.run.metrics import GENERATED_TOTAL, REUSED_TOTAL
from openrlhf_rpo.types import StepRecord

STEP_SECONDS = "timing/step_total"
TRAINING_FIGURES = ("reward", "actor_grad_norm", "kl", "critic_loss")
"""Figures of the training side. Earlier versions logged them to TensorBoard and W&B only."""


@dataclass(frozen=True)
class Run:
    """``kind``: "rpo", read from its path cache or event files, or "plain", OpenRLHF's own, read from its event files.

    ``planned_steps`` is None if the options are not stored. ``questions`` counts the training data, ``cached`` the questions
    with a path; both are 0 if unknown. ``initial_tokens``: generated for the initial cache; None if unknown.
    """

    name: str
    place: str
    kind: Literal["rpo", "plain"]
    records: list[StepRecord]
    evaluations: list[tuple[int, dict[str, float]]]
    questions: int = 0
    cached: int = 0
    initial_tokens: int | None = 0
    initialised: bool = True
    kept_from: int = 0
    planned_steps: int | None = None
    model: str | None = None
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def replays(self) -> bool:
        """Whether its method continues stored paths; if the method is unknown, whether any token was reused."""
        method = self.options.get("rpo.method")
        if method is None and self.records and self.records[-1].metrics.get(REUSED_TOTAL) == 0:
            return False
        return self.kind == "rpo" and method != '"off"'

    @property
    def compares(self) -> bool:
        """Whether a group learns from how its samples differ; True if the options are unknown."""
        estimator = self.options.get("algo.advantage.estimator")
        return (
            self.options.get("rollout.n_samples_per_prompt") != "1"
            and self.options.get("rpo.advantage.baseline") != '"zero"'
            and (estimator is None or estimator.strip('"') in CENTERED)
        )

    @property
    def latest_step(self) -> int:
        """The newest step with a record; 0 before the first."""
        return self.records[-1].step if self.records else 0

    def series(self, name: str) -> list[float]:
        """A figure by step; NaN for steps without it."""
        return [record.metrics.get(name, math.nan) for record in self.records]

    def accuracy(self) -> list[tuple[int, float]]:
        """(step, held-out accuracy): pass@1 from the bare question, averaged over the data sources."""
        found = []
        for step, metrics in self.evaluations:
            values = [v for name, v in metrics.items() if name.endswith("_pass1") and math.isfinite(v)]
            if values:
                found.append((step, sum(values) / len(values)))
        return found

    def at_step(self, name: str, step: int) -> float:
        """A cumulative figure after ``step``; at step 0 the tokens of the initial cache, or 0. NaN if unknown."""
        if step == 0:
            initial = math.nan if self.initial_tokens is None else float(self.initial_tokens)
            return initial if name == GENERATED_TOTAL else 0.0
        return next((r.metrics.get(name, math.nan) for r in reversed(self.records) if r.step <= step), math.nan)


def read_run(cache: CacheHistory, name: str, place: str, questions: int, before: Sequence[StepRecord] = ()) -> Run:
    """The run of a path cache, finished or still training. Raises ``CacheError``.

    ``questions``: their number in the cache. ``before``: the records of an earlier reading; only later ones are read, unless
    the run went back to a checkpoint since.
    """
    options = cache.options
    return Run(
        name=name,
        place=place,
        kind="rpo",
        records=_records(cache, before),
        evaluations=cache.evaluations(),
        questions=questions,
        cached=cache.count(),
        initial_tokens=cache.initial_tokens,
        initialised=cache.initialised,
        kept_from=cache.kept_from,
        planned_steps=_planned_steps(options, questions),
        model=cache.model,
        fingerprints=cache.fingerprints,
        options=options,
    )


def _records(cache: CacheHistory, before: Sequence[StepRecord]) -> list[StepRecord]:
    if before:
        later = cache.records(before[-1].step - 1)
        if later and later[0] == before[-1]:
            return [*before, *later[1:]]
    return cache.records()


def _planned_steps(options: Mapping[str, str], questions: int) -> int | None:
    """The trainer's ``max_steps``; the data may run out earlier."""
    try:
        episodes, batch = json.loads(options["train.num_episodes"]), json.loads(options["rollout.batch_size"])
    except KeyError:
        return None
    return questions * episodes // batch if questions else None


def state_of(run: Run) -> list[str]:
    """What a reader must know before the figures: what is missing, and why."""
    notes = list(run.notes)
    if not run.initialised:
        notes.append(
            f"The initial cache is not complete: {run.cached:,} of {run.questions:,} questions have a path so far. "
            "Questions and their paths are shown; there are no steps to plot yet."
        )
    elif not run.records:
        notes.append("No step was committed yet: questions and their paths are shown, but there is nothing to plot.")
    elif run.planned_steps and run.latest_step < run.planned_steps:
        notes.append(
            f"Unfinished: {run.latest_step:,} of {run.planned_steps:,} steps. The run is still training, was interrupted, "
            "or ran out of data. Everything up to here is shown."
        )
    if run.records and not run.accuracy():
        why = "it includes prefixes" if run.replays else "it is of the questions trained on"
        notes.append(
            "No evaluation was recorded (--eval.dataset, --eval.steps): accuracy from the bare question is unknown. The "
            f"training score is no substitute, because {why}."
        )
    if run.records and not any(name in record.metrics for record in run.records for name in TRAINING_FIGURES):
        notes.append(
            "Reward, gradient norm and KL are missing: an earlier version of openrlhf_rpo wrote this run's database. They "
            "are in its TensorBoard or W&B logs."
        )
    if run.kept_from:
        notes.append(f"Paths replaced before step {run.kept_from:,} were pruned: lineages begin there.")
    return notes


def columns(run: Run, after: int = 0) -> dict[str, Any]:
    """The figures of the steps after ``after`` as columns: steps, and name -> values, None where not finite or absent."""
    return _columns([(record.step, record.metrics) for record in run.records if record.step > after])


def evaluation_columns(run: Run) -> dict[str, Any]:
    """The same for all evaluations."""
    return _columns(run.evaluations)


def _columns(points: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, Any]:
    names = sorted({name for _, metrics in points for name in metrics})
    return {
        "steps": [step for step, _ in points],
        "series": {name: [rounded(metrics.get(name)) for _, metrics in points] for name in names},
    }


def rounded(value: float | None) -> float | None:
    """Seven digits, more than a plot shows and half the bytes; None if not finite."""
    return float(f"{value:.7g}") if value is not None and math.isfinite(value) else None
