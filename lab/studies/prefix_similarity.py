"""Similarity of the beginnings of answers, and of new endings to old ones (the paper's figure 1, bottom).

Beginnings: ``--samples`` answers per question are sampled from the bare question. Those at least as long as the longest of
``--lengths`` are cut to equal lengths and embedded; the figure is their mean pairwise cosine (the paper's sim, over answers
of more than 2048 tokens). Endings: the first answer is cut at several places and continued, and the new endings are compared
with the old one. The same figure for texts of different questions serves as a baseline. Embeddings: mean-pooled hidden
states of the model under study, or of ``--embedder``. Intervals are 95 % bootstrap intervals over questions.
"""

import argparse
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from lab.plot import save_plot
from lab.studies import continuations, sampling
from lab.studies.cuts import parse_cut
from lab.studies.embeddings import Embedder, mean_cosine, mean_cosine_between
from lab.training_plot import BLUE, GREY
from openrlhf_rpo.evaluation.result import StudyResult
from openrlhf_rpo.run.files import weights_fingerprint
from openrlhf_rpo.types import Group, Prefix

LENGTHS = (8, 16, 32, 64, 128)
CUTS = ("10%", "25%", "50%", "75%", "90%")
_STEP, _ENDINGS = -103, -104  # "steps" for the seeds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this study."""
    sampling.add_arguments(parser, questions=64)
    add = parser.add_argument
    add("--samples", type=sampling.positive, default=8, metavar="N", help="answers per question (default: %(default)s)")
    add(
        "--lengths",
        type=sampling.positive,
        nargs="+",
        default=list(LENGTHS),
        metavar="TOKENS",
        help=f"lengths of beginnings (default: {' '.join(map(str, LENGTHS))}); answers below the longest are left out",
    )
    add(
        "--cuts",
        type=parse_cut,
        nargs="+",
        default=[parse_cut(cut) for cut in CUTS],
        metavar="CUT",
        help="cuts from the end of the first answer: a share (50%%) or tokens (300); default: from 10%% to 90%%",
    )
    add("--embedder", metavar="MODEL", help="folder or hub name of an encoder (default: the model under study)")


def run(args: argparse.Namespace) -> int:
    """Measure the questions that are missing, then summarize."""
    args.samples = max(2, args.samples)  # a pair
    cuts = [cut.name for cut in args.cuts]
    settings = sampling.settings(args, "samples", "lengths", "embedder") | {"cuts": cuts}
    if args.embedder is not None:
        settings["embedder_weights"] = weights_fingerprint(args.embedder)
    result = sampling.open_result(args, "prefix-similarity", settings)
    if result.figures is None:
        _measure(args, result)
    result.finish(summarize(list(result.parts.values())))
    sampling.show(args, result)
    save_plot(result.file, lambda figure, axes: _draw(axes, result.figures), panels=2)
    return 0


def _measure(args: argparse.Namespace, result: StudyResult) -> None:
    with sampling.opened(args) as session:
        embedder = Embedder(args.embedder or session.model)
        usual = sampling.sampling_of(args, session.rollout, args.samples)
        for chunk, done in sampling.unfinished(result, session.questions, "Sampling and embedding answers"):
            answers = session.rollout.sample_bare(chunk, usual, _STEP)
            prefixes = [_prefixes(args, group) for group in answers]
            endings = session.rollout.sample_from(chunk, prefixes, usual, _ENDINGS, lambda group, done=done: done())
            found = _heads(args, session.tokenizer, embedder, answers)
            for question_id, part in _endings(args, session.tokenizer, embedder, answers, endings).items():
                found[question_id] |= part
            result.add_all(found)


def _heads(args: argparse.Namespace, tokenizer: Any, embedder: Embedder, groups: Sequence[Group]) -> dict[str, Any]:
    """question id -> {"heads": {length: {"same", "other"}}}; "same" is None if fewer than two answers are long enough."""
    longest = max(args.lengths)
    ids = [[s.response_ids for s in group.samples if len(s.response_ids) >= longest] for group in groups]
    parts: dict[str, Any] = {
        g.question.question_id: {"long_enough": len(i), "heads": {}} for g, i in zip(groups, ids, strict=True)
    }
    for length in sorted(set(args.lengths)):
        vectors = _embed(tokenizer, embedder, [[answer[:length] for answer in answers] for answers in ids])
        for place, group in enumerate(groups):
            ours, others = vectors[place], [v for i, v in enumerate(vectors) if i != place and len(v)]
            parts[group.question.question_id]["heads"][str(length)] = {
                "same": mean_cosine(ours) if len(ours) > 1 else None,
                "other": mean_cosine_between(ours, np.concatenate(others)) if len(ours) > 1 and others else None,
            }
    return parts


def _prefixes(args: argparse.Namespace, group: Group) -> tuple[Prefix, ...]:
    first = group.samples[0]
    length = len(first.response_ids)
    lost = [cut.tokens(length, not first.truncated) for cut in args.cuts]
    return tuple(Prefix(first.response_ids[: length - m], None, m) for m in lost for _ in range(args.samples))


def _endings(
    args: argparse.Namespace, tokenizer: Any, embedder: Embedder, answers: Sequence[Group], groups: Sequence[Group]
) -> dict[str, Any]:
    """question id -> {"endings": {cut: {"same", "other"}}}: new endings against the old one, and other questions'."""
    parts: dict[str, Any] = {group.question.question_id: {"endings": {}} for group in groups}
    for place, cut in enumerate(args.cuts):
        members = [g.samples[place * args.samples : (place + 1) * args.samples] for g in groups]
        old = [[a.samples[0].response_ids[len(m[0].prefix) :]] for a, m in zip(answers, members, strict=True)]
        new = [[sample.response_ids for sample in m] for m in members]
        old_vectors, new_vectors = _embed(tokenizer, embedder, old), _embed(tokenizer, embedder, new)
        for i, group in enumerate(groups):
            others = [v for j, v in enumerate(old_vectors) if j != i]
            parts[group.question.question_id]["endings"][cut.name] = {
                "same": mean_cosine_between(new_vectors[i], old_vectors[i]),
                "other": mean_cosine_between(new_vectors[i], np.concatenate(others)) if others else None,
            }
    return parts


def _embed(tokenizer: Any, embedder: Embedder, ids: Sequence[Sequence[Sequence[int]]]) -> list[np.ndarray]:
    """An array of vectors per list of token sequences, embedded in one batch."""
    texts = tokenizer.batch_decode([list(sequence) for sequence in chain(*ids)], skip_special_tokens=False)
    vectors, found = embedder.embed(texts) if texts else np.empty((0, 1)), []
    for sequences in ids:
        found.append(vectors[: len(sequences)])
        vectors = vectors[len(sequences) :]
    return found


def summarize(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By length and by cut: mean cosine within a question with its interval, and between questions."""
    figures: dict[str, Any] = {"questions": len(parts), "answers_long_enough": sum(part["long_enough"] for part in parts)}
    for kind in ("heads", "endings"):
        rows = {}
        for name in parts[0][kind] if parts else ():
            same = [part[kind][name]["same"] for part in parts if part[kind][name]["same"] is not None]
            other = [part[kind][name]["other"] for part in parts if part[kind][name]["other"] is not None]
            if same:
                different = round(sum(other) / len(other), 4) if other else None
                rows[name] = continuations.intervals(same) | {"other_questions": different}
        if rows:
            figures[kind] = rows
    return figures


def _draw(axes: Any, figures: dict[str, Any]) -> None:
    for axis, kind, label in ((axes[0], "heads", "tokens of the beginning"), (axes[1], "endings", "cut from the end")):
        if kind not in figures:
            continue
        rows, x = list(figures[kind].values()), list(figures[kind])
        axis.plot(x, [row["mean"] for row in rows], color=BLUE, marker="o", label="same question")
        axis.fill_between(x, [row["low"] for row in rows], [row["high"] for row in rows], color=BLUE, alpha=0.12)
        if all(row["other_questions"] is not None for row in rows):
            axis.plot(x, [row["other_questions"] for row in rows], color=GREY, marker="o", label="different questions")
        axis.set(xlabel=label, ylabel="mean cosine")
    axes[0].set_title("Beginnings of answers")
    axes[1].set_title("New endings against the old one")
