"""Time and tokens of the initial cache (the paper's appendix, "Time Overhead for Cache Pool Initialization").

One path per question is sampled from the model, as by ``--rpo.init.mode bulk``, once for each number of engines. The start
of the engines is measured separately. Times for other numbers of questions are scaled linearly, which the paper's table (7k
and 70k questions) nearly confirms.
"""

import argparse
import time
from typing import Any

from lab.plot import save_plot
from lab.studies import sampling
from lab.training_plot import BLUE, ORANGE

PAPER_MINUTES = {"1.5B, 7k questions, A100": {"1": 32.11, "4": 21.45, "8": 13.98}}
"""Minutes by number of GPUs (the paper's table of cache pool initialization)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this study."""
    sampling.add_arguments(parser, questions=128)
    parser.add_argument(
        "--engines",
        type=sampling.positive,
        nargs="+",
        default=[1, 2],
        metavar="N",
        help="numbers of vLLM engines to measure, each started anew (default: 1 2)",
    )


def run(args: argparse.Namespace) -> int:
    """Measure the missing numbers of engines, then summarize."""
    result = sampling.open_result(args, "init-time", sampling.settings(args))
    names = [str(n) for n in dict.fromkeys(args.engines)]
    for name in result.missing(names):
        result.add(name, measure(args, int(name)))
    result.finish({"by_engines": {name: figures(result.parts[name]) for name in names}, "paper_minutes": PAPER_MINUTES})
    sampling.show(args, result)
    save_plot(result.file, lambda figure, axes: _draw(axes, result.figures["by_engines"]), panels=2)
    return 0


def measure(args: argparse.Namespace, engines: int) -> dict[str, float]:
    """Seconds, tokens and paths of an initial cache on ``engines`` engines, after a warm-up request each."""
    from openrlhf_rpo.rollout.rollout import EVAL_STEP

    with sampling.opened(args, engines) as session:
        rollout, questions = session.rollout, session.questions
        one = sampling.sampling_of(args, rollout, 1)
        rollout.sample_bare(questions[:engines], one, EVAL_STEP - 2)
        started = time.perf_counter()
        with sampling.progress(len(questions), f"Initial cache, {engines} engine(s)") as bar:
            groups = rollout.sample_bare(questions, one, EVAL_STEP - 1, lambda group: bar.update())
        seconds = time.perf_counter() - started
    samples = [group.samples[0] for group in groups]
    return {
        "start_seconds": round(session.start_seconds, 2),
        "seconds": round(seconds, 3),
        "questions": len(groups),
        "tokens": sum(len(sample.response_ids) for sample in samples),
        "rewarded": sum(sample.score > 0 for sample in samples),
        "truncated": sum(sample.truncated for sample in samples),
    }


def figures(part: dict[str, Any]) -> dict[str, float]:
    """The figures of a measurement, with the time scaled to the paper's 7,000 questions."""
    return {
        **part,
        "tokens_per_second": round(part["tokens"] / part["seconds"], 1),
        "tokens_per_path": round(part["tokens"] / part["questions"], 1),
        "minutes_for_7000_questions": round(part["seconds"] / part["questions"] * 7000 / 60, 2),
    }


def _draw(axes: Any, by_engines: dict[str, dict[str, float]]) -> None:
    names = list(by_engines)
    axes[0].bar(names, [by_engines[n]["seconds"] for n in names], color=BLUE, label="sampling")
    starts = [by_engines[n]["start_seconds"] for n in names]
    axes[0].bar(names, starts, bottom=[by_engines[n]["seconds"] for n in names], color=ORANGE, label="start of the engines")
    axes[0].set(title="Initial cache", xlabel="vLLM engines", ylabel="seconds")
    axes[1].bar(names, [by_engines[n]["tokens_per_second"] for n in names], color=BLUE)
    axes[1].set(title="Throughput", xlabel="vLLM engines", ylabel="tokens per second")
