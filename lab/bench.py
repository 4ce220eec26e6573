"""Run a benchmark: ``make bench NAME=frontier QUICK=1``, or ``python -m lab.bench NAME --help``.

A benchmark is a module with ``add_arguments(parser)`` and ``run(args)``, which returns its figures as a dictionary. They are
printed as one JSON object in the last line; ``--report FILE`` also writes FILE.json and a readable FILE.md. The exit status
is 1 if the figures have ``"ok": false``.
"""

import argparse
import datetime
import importlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lab.runs import digest_of_code
from openrlhf_rpo.errors import UsageError, guarded
from openrlhf_rpo.evaluation.result import hardware, versions

BENCHMARKS = {  # name -> module below lab, what it measures
    "frontier": ("frontier", "accuracy against generated tokens and seconds, method by method"),
    "evidence": ("evidence", "full answers and reused ones, every arm tuned alike: accuracy, tokens, intervals"),
    "real": ("real.bench", "the same with SmolLM2-135M on tasks of reasoning-gym"),
    "ceiling": ("ceiling", "the mistakes that a trained policy still makes"),
    "kill-resume": ("kill_resume", "runs killed at random moments, resumed, and compared bit for bit"),
    "soak": ("soak", "a long run under random faults, compared with an undisturbed one"),
    "residual": ("residual", "what verified reuse loses by guessing the residual, and what the exact one costs"),
    "uses": ("uses", "GRPO and RAFT with drafts and a stopped tail: accuracy, tokens, seconds"),
    "async": ("asynchronous", "asynchronous against synchronous training: seconds and accuracy"),
    "drafts": ("drafts", "rollouts with stored paths as drafts: seconds, and whether the samples are the same"),
    "cache-scale": ("scale.cache_scale", "the path cache from 1,000 to 100,000 questions"),
    "cache-step": ("scale.cache_step", "what a step with 4,096 paths of 16k tokens costs in the path cache"),
    "report-scale": ("scale.report_scale", "the report's page at 10 to 10,000 questions, in a browser"),
    "balance": ("scale.balance", "how long ranks wait for each other in training, at 4,096 samples of up to 16k tokens"),
    "plan": ("scale.plan", "a model of the seconds of a step: on 8 and 64 H100, and held against runs on this machine"),
    "driver": ("scale.driver", "what the driver does with a step's tokens, at 4,096 samples of 16k tokens"),
    "shared-prefix": ("scale.shared_prefix", "forward and backward of a group with its prefix run once"),
    "shared-prefix-steps": ("scale.shared_prefix_steps", "whole training steps with and without shared prefixes"),
}


def main(words: Sequence[str]) -> int:
    """Run the benchmark that ``words`` name; its exit status. Raises UserError."""
    args = build_parser(words).parse_args(words)
    if args.report is not None:
        if args.report.suffix:
            raise UsageError(f"--report {args.report}: a name without a dot, to which .json, .md and .png are added")
        args.report.parent.mkdir(parents=True, exist_ok=True)
    figures = args.run(args)
    print(json.dumps(figures))
    return int(figures.get("ok") is False)


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the benchmarks, with the arguments of the one that ``words`` name."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench", description=(__doc__ or "").split("\n\n")[0])
    subs = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, (module, text) in BENCHMARKS.items():
        sub = subs.add_parser(name, help=text, allow_abbrev=False)
        if words[:1] == [name]:
            benchmark = importlib.import_module(f"lab.{module}")
            sub.description, sub.formatter_class = benchmark.__doc__, argparse.RawDescriptionHelpFormatter
            sub.add_argument("--quick", action="store_true", help="a small version, to see that it works")
            sub.add_argument("--report", type=Path, metavar="FILE", help="write FILE.json, FILE.md and plots")
            benchmark.add_arguments(sub)
            sub.set_defaults(run=benchmark.run)
    return parser


def about() -> dict[str, Any]:
    """Date, command, hardware and versions, for every report."""
    command = ["python -m lab.bench", *sys.argv[1:]]
    return {
        "date": datetime.date.today().isoformat(),
        "command": " ".join(command),
        "hardware": hardware(),
        "versions": versions(),
    }


def header(title: str, known: dict[str, Any]) -> list[str]:
    """The first lines of a Markdown report; ``known`` is from ``about``."""
    machine = known["hardware"]
    gpus = ", ".join(machine["gpus"]) or "no GPU"
    return [
        f"# {title} ({known['date']})",
        "",
        f"{machine['cores']} cores ({machine['machine']}), {machine['memory_gib']:g} GiB, {gpus}. "
        + ", ".join(f"{name} {number}" for name, number in known["versions"].items())
        + ".",
        "",
        f"    {known['command']}",
        "",
        *_versions_of(known.get("code", [])),
    ]


def _versions_of(code: Sequence[str]) -> list[str]:
    """A line of Markdown about the package versions that made the runs, unless it is this one alone."""
    if len(code) > 1:
        return [f"The runs are of {len(code)} versions of the package.", ""]
    if code and code != [digest_of_code()]:
        return ["The runs are of another version of the package than this report.", ""]
    return []


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]


def write_report(file: Path | None, figures: dict[str, Any], lines: Sequence[str]) -> None:
    """Write FILE.json and FILE.md, unless ``file`` is None."""
    if file is not None:
        file.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")
        file.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
