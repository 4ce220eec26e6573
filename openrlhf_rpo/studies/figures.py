"""What a finished training run left, as numbers of one shape for RPO and for plain OpenRLHF.

RPO's figures come from its path cache (``metrics``), plain OpenRLHF's from its TensorBoard log. A step's gradient norm is
that of its last optimizer step, before clipping.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.checkpoints import CACHE_FILE
from openrlhf_rpo.metrics import GENERATED_TOTAL
from openrlhf_rpo.reports.event_files import PLAIN_PHASES, read_scalars
from openrlhf_rpo.reports.run import Run
from openrlhf_rpo.studies.runs import StudyError
from openrlhf_rpo.types import StepRecord

Series = Mapping[str, Mapping[int, float]]
"""TensorBoard's scalars: tag -> step -> value."""


@dataclass(frozen=True)
class Step:
    """One training step. Tokens are means a sample, ``tokens`` their sum over the step; ``seconds`` are by phase.

    ``no_variance`` is the share of groups that teach nothing; plain OpenRLHF does not record it: None.
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

    @property
    def path_length(self) -> float:
        """Tokens of prefix and response: what the paper calls response length."""
        return self.generated + self.prefix

    @property
    def samples(self) -> float:
        return self.tokens / self.generated


@dataclass(frozen=True)
class RunFigures:
    """A run's steps, its evaluations as (step, accuracy, tokens a response), and its initial cache.

    ``initial_tokens`` were generated for it, ``initial_score`` is the mean score of its paths; None without any.
    ``wall_seconds`` covers start and evaluations, too; None when the run was interrupted. ``load_average`` is that of the
    host while it ran, other work included.
    """

    steps: tuple[Step, ...]
    evaluations: tuple[tuple[int, float, float], ...]
    initial_tokens: int
    initial_paths: int
    initial_score: float | None
    eval_seconds: float
    wall_seconds: float | None
    load_average: float
    cores: int

    @property
    def generated(self) -> float:
        """Generated tokens a sample over the whole training, the initial cache left out."""
        return sum(s.tokens for s in self.steps) / sum(s.samples for s in self.steps)

    @property
    def truncated(self) -> float:
        """Share of all samples that hit their length limit."""
        return sum(s.truncated * s.samples for s in self.steps) / sum(s.samples for s in self.steps)

    def seconds(self) -> dict[str, float]:
        """Seconds of all steps by phase, under ``step_total`` together."""
        names = sorted({name for step in self.steps for name in step.seconds})
        return {name: sum(step.seconds.get(name, 0.0) for step in self.steps) for name in names}

    def document(self) -> dict[str, Any]:
        """For a result file."""
        return asdict(self)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "RunFigures":
        """What ``document`` gave."""
        steps = tuple(Step(**step) for step in document["steps"])
        return cls(**{**document, "steps": steps, "evaluations": tuple(tuple(e) for e in document["evaluations"])})


def read_run(folder: Path, record: Mapping[str, Any]) -> RunFigures:
    """The figures of the run in ``folder``; ``record`` is its run.json. Raises StudyError, CacheError."""
    wall = None if record["earlier_attempts"] else record["seconds"]
    host = {"wall_seconds": wall, "load_average": record["load_average"], "cores": record["cores"]}
    database = folder / "checkpoints" / CACHE_FILE
    if not database.exists():
        series = read_tensorboard(folder / "tensorboard" / "run")
        none = {"initial_tokens": 0, "initial_paths": 0, "initial_score": None, "eval_seconds": 0.0}
        run = Run(folder.name, str(folder), "plain", [], plain_evaluations(series))
        return RunFigures(steps=plain_steps(series), evaluations=evaluations_of(run), **none, **host)
    with PathCache.open_to_read(f"sqlite:///{database.resolve()}") as cache:
        initial = cache.initial_tokens
        run = Run(folder.name, str(folder), "rpo", cache.records(), cache.evaluations(), initial_tokens=initial)
        scores = [path.score for path in itertools.takewhile(lambda path: path.step == 0, cache.outlines())]
    return RunFigures(
        steps=rpo_steps(run.records, initial),
        evaluations=evaluations_of(run),
        initial_tokens=initial,
        initial_paths=len(scores),
        initial_score=fmean(scores) if scores else None,
        eval_seconds=sum(values.get("eval_seconds", 0.0) for _, values in run.evaluations),
        **host,
    )


def rpo_steps(records: Sequence[StepRecord], initial: int) -> tuple[Step, ...]:
    """Steps from the records of a path cache."""
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
                no_variance=m["rpo/groups_without_variance"],
                bare=m["rpo/groups_from_bare_question"],
                seconds={k.removeprefix("timing/"): v for k, v in m.items() if k.startswith("timing/")},
            )
        )
        before = m[GENERATED_TOTAL]
    return tuple(steps)


def plain_steps(series: Series) -> tuple[Step, ...]:
    """Steps from plain OpenRLHF's TensorBoard scalars. Raises StudyError when they are not there."""
    lengths = series.get("train/rollout/response_length_mean", {})
    if not lengths:
        raise StudyError("the run's TensorBoard log has no training steps: it ended before its first, see its train.log")
    timing = {tag.removeprefix("train/timing/"): values for tag, values in series.items() if "train/timing/" in tag}
    return tuple(
        Step(
            step=step,
            tokens=round(length * series["train/rollout/num_samples"][step]),
            generated=length,
            prefix=0.0,
            truncated=series["train/rollout/truncated_rate"][step],
            score=series["train/score"][step],
            grad_norm=series["train/actor_grad_norm"][step],
            no_variance=None,
            bare=1.0,
            seconds={PLAIN_PHASES.get(name, name): values[step] for name, values in timing.items()},
        )
        for step, length in sorted(lengths.items())
    )


def plain_evaluations(series: Series) -> list[tuple[int, dict[str, float]]]:
    """(step, held-out figures) from plain OpenRLHF's scalars."""
    tags = {tag.removeprefix("eval/"): values for tag, values in series.items() if tag.startswith("eval/")}
    steps = sorted({step for values in tags.values() for step in values})
    return [(step, {tag: values[step] for tag, values in tags.items() if step in values}) for step in steps]


def evaluations_of(run: Run) -> tuple[tuple[int, float, float], ...]:
    """(step, accuracy, tokens a response) of the run's evaluations."""
    tokens = {step: values["eval_response_length_mean"] for step, values in run.evaluations}
    return tuple((step, accuracy, tokens[step]) for step, accuracy in run.accuracy())


def read_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    """Every scalar of a run; of a step that was run twice, the later. Raises StudyError without a log."""
    if not folder.is_dir():
        raise StudyError(f"{folder} is missing: the run's figures are read from its TensorBoard log")
    return read_scalars(folder)
