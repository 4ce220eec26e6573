"""Stored paths cut at several places, and the scores of samples that continue them.

The result has a part per question::

    length, score      of its path; length in tokens, including the end token
    by_cut             name of the cut -> {"cut": m, "right", "tokens" (generated, summed), "truncated"} over ``samples``;
                       on the testbed also "mistake": whether the prefix holds a wrong step
"""

import argparse
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lab.studies import sampling
from lab.studies.cuts import Cut
from lab.testbed.task import wrong_steps
from lab.training_plot import BLUE, GREEN, ORANGE
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.errors import UsageError
from openrlhf_rpo.evaluation.bootstrap import interval
from openrlhf_rpo.evaluation.result import StudyResult, read
from openrlhf_rpo.exchange.places import at_step, open_to_read
from openrlhf_rpo.reports import cache_figures
from openrlhf_rpo.run.files import tokenizer_fingerprint
from openrlhf_rpo.types import Group, Prefix, Question

KINDS = {"all paths": BLUE, "right paths": GREEN, "wrong paths": ORANGE}
_PATHS, _CONTINUATIONS = -101, -102  # "steps" for the seeds


@dataclass(frozen=True, slots=True)
class StoredPath:
    """A path to cut: its token ids, with the end token if it ``ended`` by itself, and its score."""

    token_ids: tuple[int, ...]
    ended: bool
    score: float


def add_arguments(parser: argparse.ArgumentParser, questions: int, samples: int) -> None:
    """The arguments of every sampling study, the source of the paths, and the samples per cut."""
    sampling.add_arguments(parser, questions)
    parser.add_argument(
        "--cache",
        metavar="CACHE",
        help="take the paths from a run's cache (--ckpt.path, file or URL; with its --model and --data) instead of sampling",
    )
    parser.add_argument(
        "--samples", type=sampling.positive, default=samples, metavar="N", help="samples per cut (default: %(default)s)"
    )


def settings(args: argparse.Namespace, cuts: Sequence[Cut]) -> dict[str, Any]:
    """What the parts depend on. Raises UsageError, CacheError."""
    if args.cache is not None and args.model is None:
        raise UsageError("--cache needs --model and --data: the model, and the questions of the cache's run")
    state = {} if args.cache is None else _state_of(args.cache, _begun_at(args.out))
    return sampling.settings(args, "cache", "samples") | state | {"cuts": [cut.name for cut in cuts]}


def _begun_at(file: Path) -> int | None:
    """The step of an interrupted study, which keeps to it even if the run has made more since; else None."""
    begun = read(file) if file.exists() else {"figures": None, "settings": {}}
    return begun["settings"].get("cache_step") if begun["figures"] is None else None


def _state_of(place: str, step: int | None) -> dict[str, Any]:
    """``step`` of the cache (default: the newest), and a hash of its paths at that step."""
    with open_to_read(place) as cache:
        step = at_step(cache, step)
        held = sorted(cache_figures.at_step(cache.outlines(), step).values())
    return {"cache_step": step, "cache_paths": hashlib.sha256(repr(held).encode()).hexdigest()[:16]}


def measure(args: argparse.Namespace, result: StudyResult, cuts: Sequence[Cut]) -> None:
    """Add the missing parts, chunk by chunk, without questions that have no path in the cache.

    Raises UsageError if the cache does not fit.
    """
    if result.figures is not None:
        return
    with sampling.opened(args) as session:
        paths = None
        if args.cache is not None:
            paths = cached_paths(args.cache, result.settings["cache_step"], session.questions, session.tokenizer)
        questions = [q for q in session.questions if paths is None or q.question_id in paths]
        for chunk, done in sampling.unfinished(result, questions, "Continuing cut paths"):
            stored = {q.question_id: paths[q.question_id] for q in chunk} if paths is not None else None
            result.add_all(continue_paths(args, session.rollout, chunk, stored, cuts, done))


def by_kind(parts: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The parts of all, right and wrong paths, under the names of ``KINDS``."""
    every = list(parts)
    right, wrong = ([part for part in every if (part["score"] > 0) is kind] for kind in (True, False))
    return dict(zip(KINDS, (every, right, wrong), strict=True))


def figures_by_kind(parts: Iterable[dict[str, Any]], of: Callable[[list[dict[str, Any]]], Any]) -> dict[str, Any]:
    """The number of paths of each kind, and ``of`` the parts of each kind that has any."""
    kinds = by_kind(parts)
    counts = {kind: len(members) for kind, members in kinds.items()}
    return {"paths": counts} | {kind: of(members) for kind, members in kinds.items() if members}


def draw(axis: Any, figures: dict[str, Any], x: Callable[[str, dict[str, Any]], float], value: str = "mean") -> None:
    """A line per kind of path: ``value`` over ``x`` of a row; a mean with its interval."""
    for kind, color in KINDS.items():
        if kind not in figures:
            continue
        points = sorted(((x(name, row), row) for name, row in figures[kind].items()), key=lambda point: point[0])
        places, rows = [place for place, _ in points], [row for _, row in points]
        label = f"{kind} ({rows[0]['questions']})"
        axis.plot(places, [row[value] for row in rows], color=color, marker="o", label=label)
        if value == "mean":
            axis.fill_between(places, [row["low"] for row in rows], [row["high"] for row in rows], color=color, alpha=0.12)


def intervals(values: Iterable[float]) -> dict[str, float]:
    """Mean and 95 % bootstrap interval over questions, and their number."""
    listed = list(values)
    return {k: round(v, 4) for k, v in asdict(interval(listed)).items()} | {"questions": len(listed)}


def cached_paths(place: str, step: int, questions: Sequence[Question], tokenizer: Any) -> dict[str, StoredPath]:
    """Question id -> its path at ``step``. Raises UsageError if there is none, or if the tokenizer differs."""
    with open_to_read(place) as cache:
        _check_tokenizer(cache, place, tokenizer)
        found = cache.paths([q.question_id for q in questions], step)
    if not found:
        raise UsageError(
            f"--cache {place}: it has no path for any of these {len(questions)} questions. Give the --data of its run, with "
            "the same template and columns"
        )
    return {i: StoredPath(tuple(p.token_ids), p.finish_reason == "stop", p.score) for i, p in found.items()}


def _check_tokenizer(cache: PathCache, place: str, tokenizer: Any) -> None:
    theirs, ours = cache.fingerprints.get("tokenizer"), tokenizer_fingerprint(tokenizer)
    if theirs is not None and theirs != ours:
        raise UsageError(f"--cache {place}: its paths have another tokenizer ({theirs}) than the model ({ours})")


def continue_paths(
    args: argparse.Namespace,
    rollout: Any,
    questions: Sequence[Question],
    stored: dict[str, StoredPath] | None,
    cuts: Sequence[Cut],
    done: Any,
) -> dict[str, Any]:
    """The parts of these questions, from ``stored`` or newly sampled paths; calls ``done()`` after each question."""
    paths = stored or sample_paths(args, rollout, questions)
    prefixes = [prefixes_of(paths[q.question_id], cuts, args.samples) for q in questions]
    usual = sampling.sampling_of(args, rollout, args.samples)
    groups = rollout.sample_from(questions, prefixes, usual, _CONTINUATIONS, lambda group: done())
    parts = {g.question.question_id: _part(g, paths[g.question.question_id], cuts, args.samples) for g in groups}
    if args.model is None:
        for question in questions:
            path, by_cut = paths[question.question_id].token_ids, parts[question.question_id]["by_cut"]
            for at in by_cut.values():
                at["mistake"] = holds_mistake(question.text, rollout.tokenizer.decode(path[: len(path) - at["cut"]]))
    return parts


def holds_mistake(question: str, prefix: str) -> bool:
    """Whether a complete line of a testbed answer's prefix is wrong."""
    lines = prefix.split("\\boxed")[0].count("\n")
    return any(step < lines for step in wrong_steps(question, prefix))


def sample_paths(args: argparse.Namespace, rollout: Any, questions: Sequence[Question]) -> dict[str, StoredPath]:
    """One path per question from the bare question, right or wrong, as in the paper's figure 1."""
    groups = rollout.sample_bare(questions, sampling.sampling_of(args, rollout, 1), _PATHS)
    return {
        g.question.question_id: StoredPath(tuple(g.samples[0].response_ids), not g.samples[0].truncated, g.samples[0].score)
        for g in groups
    }


def prefixes_of(path: StoredPath, cuts: Sequence[Cut], samples: int) -> tuple[Prefix, ...]:
    """``samples`` prefixes for each cut, in order."""
    lost = [cut.tokens(len(path.token_ids), path.ended) for cut in cuts]
    kept = [Prefix(path.token_ids[: len(path.token_ids) - m], None, m) for m in lost]
    return tuple(prefix for prefix in kept for _ in range(samples))


def _part(group: Group, path: StoredPath, cuts: Sequence[Cut], samples: int) -> dict[str, Any]:
    by_cut = {}
    for i, cut in enumerate(cuts):
        members = group.samples[i * samples : (i + 1) * samples]
        by_cut[cut.name] = {
            "cut": members[0].prefix.cut,
            "right": sum(sample.score > 0 for sample in members),
            "tokens": sum(len(sample.response_ids) for sample in members),
            "truncated": sum(sample.truncated for sample in members),
        }
    return {"length": len(path.token_ids), "score": path.score, "by_cut": by_cut}
