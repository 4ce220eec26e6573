"""Stored paths cut at several places, and what becomes of the answers that continue them.

The result has a part for each question::

    length, score      of its path, in tokens, end token included
    by_cut             name of the cut -> {"cut": m, "right", "tokens" (generated, summed), "truncated"}, of ``samples``;
                       on the testbed, whose steps can be checked, also "mistake": whether the prefix holds a wrong one
"""

import argparse
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.cli.cache.places import at_step, open_to_read
from openrlhf_rpo.evaluation.bootstrap import interval
from openrlhf_rpo.reports import cache_figures
from openrlhf_rpo.reports.training_plot import BLUE, GREEN, ORANGE
from openrlhf_rpo.run_files import tokenizer_fingerprint
from openrlhf_rpo.studies import sampling
from openrlhf_rpo.studies.cuts import Cut
from openrlhf_rpo.studies.result import StudyResult
from openrlhf_rpo.testbed.task import wrong_steps
from openrlhf_rpo.types import Group, Prefix, Question
from openrlhf_rpo.upstream import UsageError

KINDS = {"all paths": BLUE, "right paths": GREEN, "wrong paths": ORANGE}
CHUNK = 32  # questions between two commits
_PATHS, _CONTINUATIONS = -101, -102  # the "steps" that key the seeds


@dataclass(frozen=True, slots=True)
class StoredPath:
    """A path to cut: its token ids, end token included when it ``ended`` by itself, and its score."""

    token_ids: tuple[int, ...]
    ended: bool
    score: float


def add_arguments(parser: argparse.ArgumentParser, questions: int, samples: int) -> None:
    """Those of every sampling study, where the paths come from, and the samples of each cut."""
    sampling.add_arguments(parser, questions)
    parser.add_argument(
        "--cache",
        metavar="CACHE",
        help="take the paths from a run's cache (its --ckpt.path, file or URL; --model and --data are that run's) instead "
        "of sampling one path a question from the model",
    )
    parser.add_argument(
        "--samples", type=sampling.positive, default=samples, metavar="N", help="samples a cut (default: %(default)s)"
    )


def settings(args: argparse.Namespace, cuts: Sequence[Cut]) -> dict[str, Any]:
    """What the parts depend on. Raises UsageError, CacheError."""
    if args.cache is not None and args.model is None:
        raise UsageError("--cache needs --model and --data: the model, and the questions of the cache's run")
    state = {} if args.cache is None else _state_of(args.cache)
    return sampling.settings(args, "cache", "samples") | state | {"cuts": [cut.name for cut in cuts]}


def _state_of(place: str) -> dict[str, Any]:
    """The cache's newest step, which the paths are read at, and a hash of what it holds there."""
    with open_to_read(place) as cache:
        step = at_step(cache, None)
        held = sorted(cache_figures.at_step(cache.outlines(), step).values())
    return {"cache_step": step, "cache_paths": hashlib.sha256(repr(held).encode()).hexdigest()[:16]}


def measure(args: argparse.Namespace, result: StudyResult, cuts: Sequence[Cut]) -> None:
    """Add the part of every question that is not there yet, chunk by chunk. Raises UsageError for a cache that does not fit.

    A question without a path in the cache is left out.
    """
    if result.figures is not None:
        return
    with sampling.opened(args) as session:
        paths = None
        if args.cache is not None:
            paths = cached_paths(args.cache, result.settings["cache_step"], session.questions, session.tokenizer)
        questions = [q for q in session.questions if paths is None or q.question_id in paths]
        missing = set(result.missing(q.question_id for q in questions))
        todo = [q for q in questions if q.question_id in missing]
        with sampling.progress(len(questions), "Continuing cut paths") as bar:
            bar.update(len(questions) - len(todo))
            for chunk in sampling.chunks(todo, CHUNK):
                stored = {q.question_id: paths[q.question_id] for q in chunk} if paths is not None else None
                result.add_all(continue_paths(args, session.rollout, chunk, stored, cuts, bar.update))


def by_kind(parts: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The parts of all paths, of right ones and of wrong ones, under the names of ``KINDS``."""
    every = list(parts)
    right, wrong = ([part for part in every if (part["score"] > 0) is kind] for kind in (True, False))
    return dict(zip(KINDS, (every, right, wrong), strict=True))


def draw(axis: Any, figures: dict[str, Any], x: Callable[[str, dict[str, Any]], float], value: str = "mean") -> None:
    """A line for each kind of path: one of its figures over ``x`` of a row, a mean with its interval."""
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
    """Mean and 95 % bootstrap interval by question, and the number of questions."""
    listed = list(values)
    return {k: round(v, 4) for k, v in asdict(interval(listed)).items()} | {"questions": len(listed)}


def cached_paths(place: str, step: int, questions: Sequence[Question], tokenizer: Any) -> dict[str, StoredPath]:
    """The path of each question that has one at ``step``, by question id. Raises UsageError when none fits or is there."""
    with open_to_read(place) as cache:
        _check_tokenizer(cache, place, tokenizer)
        found = cache.paths([q.question_id for q in questions], step)
    if not found:
        raise UsageError(
            f"--cache {place}: it has no path for any of these {len(questions)} questions. Give the --data of its run, with "
            "the same template and columns"
        )
    return {i: StoredPath(p.token_ids, p.finish_reason == "stop", p.score) for i, p in found.items()}


def _check_tokenizer(cache: PathCache, place: str, tokenizer: Any) -> None:
    theirs, ours = cache.fingerprints.get("tokenizer"), tokenizer_fingerprint(tokenizer)
    if theirs is not None and theirs != ours:
        raise UsageError(f"--cache {place}: its paths are of another tokenizer ({theirs}) than the model's ({ours})")


def continue_paths(
    args: argparse.Namespace,
    rollout: Any,
    questions: Sequence[Question],
    stored: dict[str, StoredPath] | None,
    cuts: Sequence[Cut],
    done: Any,
) -> dict[str, Any]:
    """The parts of these questions, of ``stored`` paths or of newly sampled ones; ``done()`` is called for each of them."""
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
    """Whether one of the complete lines of a testbed answer's beginning is wrong."""
    lines = prefix.split("\\boxed")[0].count("\n")
    return any(step < lines for step in wrong_steps(question, prefix))


def sample_paths(args: argparse.Namespace, rollout: Any, questions: Sequence[Question]) -> dict[str, StoredPath]:
    """One path a question from the bare question, right or wrong, as the paper's figure 1 has it."""
    groups = rollout.sample_bare(questions, sampling.sampling_of(args, rollout, 1), _PATHS)
    return {
        g.question.question_id: StoredPath(g.samples[0].response_ids, not g.samples[0].truncated, g.samples[0].score)
        for g in groups
    }


def prefixes_of(path: StoredPath, cuts: Sequence[Cut], samples: int) -> tuple[Prefix, ...]:
    """``samples`` prefixes for the first cut, then as many for the next one, and so on."""
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
