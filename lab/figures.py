"""The figures of a finished training run, in the same form for RPO and for plain OpenRLHF.

RPO's figures come from its path cache (``metrics``), plain OpenRLHF's from its TensorBoard log. A step's gradient norm is
that of its last optimizer step, before clipping.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from lab.runs import StudyError
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.reports.event_files import read_event_files
from openrlhf_rpo.reports.run import Run
from openrlhf_rpo.run.checkpoints import CACHE_FILE
from openrlhf_rpo.run.metrics import GENERATED_TOTAL
from openrlhf_rpo.types import StepRecord

_OVERLAP = ("rollout_busy", "train_busy", "policy_age", "policy_age_max", "groups_too_old")


@dataclass(frozen=True)
class Step:
    """One training step. Token counts are means per sample, except ``tokens``, the sum of generated ones.

    ``no_variance`` is the share of groups without signal, None for plain OpenRLHF. ``seconds`` are by phase. ``overlap``:
    how rollout and training overlapped, by metric (``rpo/...``), as far as the run recorded it.
    """

    step: int
    tokens: int
    generated: float
    prefix: float
    truncated: float
    score: float
    grad_norm: float
    no_variance: float | None
    bare: float
    seconds: Mapping[str, float]
    overlap: Mapping[str, float] = field(default_factory=dict)

    @property
    def path_length(self) -> float:
        """Tokens of prefix and response, the paper's response length."""
        return self.generated + self.prefix

    @property
    def samples(self) -> float:
        return self.tokens / self.generated


@dataclass(frozen=True)
class RunFigures:
    """A run's steps, its evaluations as (step, accuracy, tokens per response), and its initial cache.

    ``initial_tokens`` were generated for the initial cache; ``initial_score`` is the mean score of its paths, None without
    any. ``wall_seconds`` includes start-up and evaluations; None if the run was interrupted. ``neighbours``: how many of
    the host's ``cores`` other work kept busy during the run, or since it was last continued.
    """

    steps: tuple[Step, ...]
    evaluations: tuple[tuple[int, float, float], ...]
    initial_tokens: int
    initial_paths: int
    initial_score: float | None
    eval_seconds: float
    wall_seconds: float | None
    neighbours: float
    cores: int

    @property
    def quiet(self) -> bool:
        """Whether the run had the host to itself; otherwise its seconds say nothing. Unknown if it was interrupted."""
        return self.wall_seconds is not None and self.neighbours <= 0.05 * self.cores

    @property
    def generated(self) -> float:
        """Generated tokens per sample over the whole training, without the initial cache."""
        return sum(s.tokens for s in self.steps) / sum(s.samples for s in self.steps)

    @property
    def truncated(self) -> float:
        """Share of all samples that hit the length limit."""
        return sum(s.truncated * s.samples for s in self.steps) / sum(s.samples for s in self.steps)

    def seconds(self) -> dict[str, float]:
        """Seconds of all steps by phase; ``step_total`` is their sum."""
        names = sorted({name for step in self.steps for name in step.seconds})
        return {name: sum(step.seconds.get(name, 0.0) for step in self.steps) for name in names}

    def overlap(self) -> dict[str, float]:
        """Means over the steps, by metric, for metrics that every step recorded."""
        names = [name for name in _OVERLAP if all(name in step.overlap for step in self.steps)]
        return {name: fmean(step.overlap[name] for step in self.steps) for name in names}

    def document(self) -> dict[str, Any]:
        """The figures as JSON."""
        return asdict(self)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "RunFigures":
        """Inverse of ``document``."""
        steps = tuple(Step(**step) for step in document["steps"])
        return cls(**{**document, "steps": steps, "evaluations": tuple(tuple(e) for e in document["evaluations"])})


def read_run(folder: Path, record: Mapping[str, Any]) -> RunFigures:
    """The figures of the run in ``folder``; ``record`` is its run.json. Raises StudyError, CacheError."""
    database = folder / "checkpoints" / CACHE_FILE
    scores = []
    if database.exists():
        with PathCache.open_to_read(f"sqlite:///{database.resolve()}") as cache:
            initial = cache.initial_tokens
            run = Run(folder.name, str(folder), "rpo", cache.records(), cache.evaluations(), initial_tokens=initial)
            scores = [path.score for path in itertools.takewhile(lambda path: path.step == 0, cache.outlines())]
    else:
        run = plain_run(folder / "tensorboard" / "run")
    return RunFigures(
        steps=steps_of(run.records, run.initial_tokens),
        evaluations=evaluations_of(run),
        initial_tokens=run.initial_tokens,
        initial_paths=len(scores),
        initial_score=fmean(scores) if scores else None,
        eval_seconds=sum(values.get("eval_seconds", 0.0) for _, values in run.evaluations),
        wall_seconds=None if record["earlier_attempts"] else record["seconds"],
        neighbours=record["neighbours"],
        cores=record["cores"],
    )


def plain_run(folder: Path) -> Run:
    """Plain OpenRLHF's run from its TensorBoard log. Raises StudyError if the log is missing or has no steps."""
    if not folder.is_dir():
        raise StudyError(f"{folder} is missing: the run's figures are read from its TensorBoard log")
    try:
        run = read_event_files(folder, folder.name)
    except UsageError as error:
        raise StudyError(f"{error} See the run's train.log") from error
    if not run.records:
        raise StudyError("the run's TensorBoard log has no training steps: it ended before its first, see its train.log")
    return run


def steps_of(records: Sequence[StepRecord], initial: int) -> tuple[Step, ...]:
    """Steps from a run's records; ``initial`` tokens were generated for the initial cache."""
    steps, before = [], float(initial)
    for record in records:
        m = record.metrics
        steps.append(
            Step(
                step=record.step,
                tokens=round(m[GENERATED_TOTAL] - before),
                generated=m["rpo/generated_tokens"],
                prefix=m["rpo/prefix_tokens"],
                truncated=m["rpo/truncated_rate"],
                score=m["rpo/score"],
                grad_norm=m.get("actor_grad_norm", 0.0),  # a frozen actor has none
                no_variance=m.get("rpo/groups_without_variance"),
                bare=m.get("rpo/groups_from_bare_question", 1.0),
                seconds={k.removeprefix("timing/"): v for k, v in m.items() if k.startswith("timing/")},
                overlap={name: m[f"rpo/{name}"] for name in _OVERLAP if f"rpo/{name}" in m},
            )
        )
        before = m[GENERATED_TOTAL]
    return tuple(steps)


def evaluations_of(run: Run) -> tuple[tuple[int, float, float], ...]:
    """(step, accuracy, tokens per response) of the run's evaluations."""
    tokens = {step: values["eval_response_length_mean"] for step, values in run.evaluations}
    return tuple((step, accuracy, tokens[step]) for step, accuracy in run.accuracy())
