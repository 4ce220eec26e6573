"""Exploration: pass@N on held-out questions after few and many epochs, RPO against the full path.

The paper's two figures: by length limit, and by training epochs. Each method is trained for each number of epochs, and the
trained model samples N answers to every held-out question (--eval.dataset) at --eval.temperature. A length limit counts
longer answers as wrong, because truncation would have made them so; thus the same samples serve every limit and every N.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from lab.plot import save_plot
from lab.runs import StudyError, Variant, runs_of, without_options
from lab.training import (
    add_training_arguments,
    check_command,
    command_of,
    folder_of,
    remarks,
    show,
    train_all,
    with_plain,
)
from lab.training_plot import BLUE, GREY
from openrlhf_rpo.evaluation.figures import powers_of_two
from openrlhf_rpo.evaluation.pass_at_k import pass_at_k
from openrlhf_rpo.evaluation.session import prepare, session, training_args

Answers = Sequence[Sequence[tuple[float, int]]]
"""The answers to each question, each as (score, tokens)."""

_NOT_SAMPLING = (
    "actor.model_name_or_path",
    "data.prompt_dataset",
    "eval.dataset",
    "eval.split",
    "critic.model_name_or_path",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training_arguments(parser, steps=8)
    parser.add_argument(
        "--epochs", nargs="+", type=int, default=[1, 4], metavar="N", help="--train.num_episodes (default: 1 4)"
    )
    parser.add_argument("--samples", type=int, default=32, metavar="N", help="answers per question (default: %(default)s)")
    words = "length limits in tokens (default: the command's, and half of it)"
    parser.add_argument("--limits", nargs="+", type=int, metavar="TOKENS", help=words)


def run(args: argparse.Namespace) -> int:
    command = command_of(args)
    options = check_command(command)
    longest = options.rollout.max_new_tokens or options.data.max_len
    limits = sorted(set(args.limits or (longest // 2, longest)))
    if min(args.samples, *args.epochs, *limits) < 1:
        raise StudyError("--samples, --epochs and --limits are whole numbers of 1 or more")
    result, found = train_all(args, "pass-at-n", command, variants(args.epochs))
    figures: dict[str, Any] = {"variants": {}, "remarks": remarks(found, evaluated=False)}
    for variant in (v for v in variants(args.epochs) if v.name in found):
        by_seed = []
        for one in (r for r in runs_of([variant], args.seeds, folder_of(args)) if r.name in result.parts):
            part = f"{one.name}, {args.samples} samples"
            if result.missing([part]):
                result.add(part, sample(one.folder / "model", command, options, args.samples))
            by_seed.append(result.parts[part])
        figures["variants"][variant.name] = table(by_seed, limits)
    result.finish(figures)
    panels = len(limits)
    save_plot(args.out, lambda figure, axes: draw([axes] if panels == 1 else axes, figures["variants"], limits), panels)
    sizes = [str(n) for n in powers_of_two(args.samples)]
    rows: list[Sequence[Any]] = [("", "limit", *(f"pass@{n}" for n in sizes))]
    for name, by_limit in figures["variants"].items():
        rows += [(name, limit, *(f"{passes[n]:.3f}" for n in sizes)) for limit, passes in by_limit.items()]
    show(args, figures, rows)
    return 0


def variants(epochs: Sequence[int]) -> list[Variant]:
    """RPO and the full path for each number of epochs."""
    named = {f"{n} epoch{'s' if n > 1 else ''}": {"train.num_episodes": n} for n in epochs}
    return with_plain(named)


def sample(model: Path, command: Sequence[str], options: SimpleNamespace, n: int) -> list[list[tuple[float, int]]]:
    """``n`` answers of the model to each held-out question, prompted as in training. Raises UsageError."""
    from openrlhf_rpo.rollout.rollout import EVAL_STEP  # imports OpenRLHF, which is slow

    words = [*without_options(command, _NOT_SAMPLING), "--train.seed", "0"]
    print(f"Sampling {n} answers to each held-out question from {model}", file=sys.stderr, flush=True)
    subject = prepare(training_args(str(model), options.eval.dataset, words, split=options.eval.split))
    with session(subject) as asked:  # sampling has its own progress bar
        sampling = replace(asked.rollout.sampling, n_samples=n, temperature=options.eval.temperature)
        groups = asked.rollout.sample_bare(asked.questions, sampling, EVAL_STEP)
    return [[(s.score, len(s.response_ids)) for s in group.samples] for group in groups]


def table(by_seed: Sequence[Answers], limits: Sequence[int]) -> dict[str, dict[str, float]]:
    """length limit -> N -> pass@N for N = 1, 2, 4...; means over questions, then over seeds."""
    sizes = powers_of_two(len(by_seed[0][0]))
    return {
        str(limit): {str(n): fmean(fmean(passes(q, limit, n) for q in answers) for answers in by_seed) for n in sizes}
        for limit in limits
    }


def passes(answers: Sequence[tuple[float, int]], limit: int, n: int) -> float:
    """pass@``n`` of one question: an answer counts if it is rewarded and has at most ``limit`` tokens."""
    return pass_at_k(len(answers), sum(score > 0 and tokens <= limit for score, tokens in answers), n)


def draw(axes: Sequence[Any], by_variant: Mapping[str, Any], limits: Sequence[int]) -> None:
    for axis, limit in zip(axes, limits, strict=True):
        for name, by_limit in by_variant.items():
            sizes, values = zip(*by_limit[str(limit)].items(), strict=True)
            style = {"color": BLUE if name.startswith("RPO") else GREY, "ls": "--" if "1 epoch" in name else "-"}
            axis.plot([int(n) for n in sizes], values, marker=".", label=name, **style)
        axis.set(title=f"pass@N, answers of at most {limit} tokens", xlabel="N", ylim=(0, 1.02))
        axis.set_xscale("log", base=2)
