"""What a policy that levels off still gets wrong: its held-out mistakes, by the kind of state that they are made in.

The testbed's base model has two kinds of mistakes that training shall mend, because it writes tersely where it should not
(hasty states and traps), and one that training can only add: slips in steps that are written out in full. Every model
answers the held-out questions once from the bare question at temperature 1.

    python benchmarks/ceiling.py --quick                    the base model alone
    python benchmarks/frontier.py --keep-models --arms grpo history --seeds 0 1 --out DIR
    python benchmarks/ceiling.py --arms grpo history --seeds 0 1 --runs DIR

The last line is one JSON object: arm -> seed -> accuracy, and for each kind of step the share that is terse, the share that
is wrong, and the share of wrong ones among those written out.
"""

import argparse
import datetime
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import frontier
import torch
from tqdm import tqdm

from openrlhf_rpo.testbed import LEVELS, model_dir
from openrlhf_rpo.testbed.measure import Sample, load, sample
from openrlhf_rpo.testbed.task import draw_split, written_steps

KINDS = ("ordinary", "hasty", "trap")
N_QUESTIONS = 256


def by_kind(samples: Sequence[Sample], level: str) -> dict:
    """Accuracy, and the shares of steps that are terse and wrong, by kind of state."""
    steps = [step for s in samples for step in written_steps(s.text, LEVELS[level].habits)]
    figures: dict = {"accuracy": share([s.right for s in samples])}
    for kind in KINDS:
        of_kind = [step for step in steps if step.kind == kind]
        figures[kind] = {
            "steps": len(of_kind),
            "terse": share([step.terse for step in of_kind]),
            "wrong": share([not step.right for step in of_kind]),
            "wrong_in_full": share([not step.right for step in of_kind if not step.terse]),
        }
    return figures


def share(values: Sequence[bool]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None


def measure(model: Path, level: str) -> dict:
    torch.set_num_threads(frontier.cpus())
    loaded, tokenizer = load(model)
    return by_kind(sample(loaded, tokenizer, draw_split(level, N_QUESTIONS, 0, heldout=True), 1.0, 0), level)


def trained(run: frontier.Run, folder: Path) -> dict:
    """The figures of a run's last policy, which it kept."""
    model = folder / run.folder / "model"
    if not model.exists():
        raise SystemExit(f"{model} is not there: train it with benchmarks/frontier.py --keep-models --out {folder}")
    return measure(model, run.level)


def table(report: dict) -> str:
    lines = [f"# What is still wrong at the end ({report['date']})", "", f"{report['machine']}. {report['about']}.", ""]
    lines += [f"    {report['command']}", ""]
    lines += ["| arm, seed | accuracy | " + " | ".join(f"{k}: terse, wrong, wrong in full" for k in KINDS) + " |"]
    lines += ["|" + "---|" * (2 + len(KINDS))]
    for arm, by_seed in report["arms"].items():
        for seed, f in by_seed.items():
            cells = [", ".join(shown(f[k][x]) for x in ("terse", "wrong", "wrong_in_full")) for k in KINDS]
            lines += [f"| {arm}, {seed} | {f['accuracy']:.3f} | " + " | ".join(cells) + " |"]
    return "\n".join([*lines, ""])


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", default="main", choices=sorted(LEVELS))
    parser.add_argument("--arms", nargs="+", default=["grpo", "history", "history_close"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--runs", type=Path, default=Path("runs/frontier"), help="where frontier.py --keep-models left them")
    parser.add_argument("--report", type=Path, help="write FILE.json and FILE.md")
    parser.add_argument("--quick", action="store_true", help="the base model alone")
    args = parser.parse_args()
    if args.report:
        args.report.parent.mkdir(parents=True, exist_ok=True)
    known = {arm.name: arm for arm in frontier.ARMS[args.level]}
    if unknown := set(args.arms) - known.keys():
        raise SystemExit(f"--arms {' '.join(sorted(unknown))}: the frontier has {', '.join(known)}")
    runs = [] if args.quick else [frontier.Run(known[name], args.level, seed) for name in args.arms for seed in args.seeds]
    arms: dict = {"base": {"-": measure(model_dir(args.level), args.level)}}
    for run in tqdm(runs, unit="model"):
        arms.setdefault(run.arm.name, {})[str(run.seed)] = trained(run, args.runs)
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {frontier.cpus()} cores, no GPU",
        "about": f"Level {args.level}, {N_QUESTIONS} held-out questions, one sample each at temperature 1",
        "command": " ".join(["python", *sys.argv]),
        "arms": arms,
    }
    if args.report:
        args.report.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
        args.report.with_suffix(".md").write_text(table(report))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
