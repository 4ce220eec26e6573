"""Held-out accuracy against cumulated generated tokens and against seconds: RPO, the paper's rules, and GRPO.

Every run goes through the real command (Ray, DeepSpeed, vLLM) on the testbed's base models. Accuracy is from the bare
question at temperature 1: along the way (--eval.steps), and with 8 samples a question by the trained model
(`openrlhf-rpo eval`), which also gives pass@8. Generated tokens count everything that
was sampled for training, the initial cache included, evaluation excluded. Seconds are those of training steps
(rollout, rewards, forward passes, optimizer, weight sync, cache), start-up and evaluation excluded.

    python benchmarks/frontier.py --quick                       one seed, one level, a few steps
    python benchmarks/frontier.py --seeds 0 1 2 --out DIR       the report's runs; finished runs are not run again
    python benchmarks/frontier.py --arms grpo rpo verify tree    the rules beyond the paper
    python benchmarks/frontier.py --tune --seeds 100 --arms rpo  learning rates and batch shapes, on a seed of its own

The last line is one JSON object: level -> arm -> accuracy, accuracy_sd, pass_at_8, tokens_per_sample, generated_tokens,
seconds, and the curve.
"""

import argparse
import datetime
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, stdev

from tqdm import tqdm

from openrlhf_rpo.studies.figures import read_run
from openrlhf_rpo.testbed import model_dir, write_dataset
from openrlhf_rpo.testbed.task import CAREFUL, demonstrate

N_TRAIN, N_HELDOUT, EVAL_SAMPLES, END_SAMPLES = 128, 128, 1, 8
TASK = {
    "data.input_key": "question",
    "data.label_key": "answer",
    "data.max_len": 768,
    "rpo.reward.functions": "math",
    "vllm.num_engines": 1,
}
BASE = {
    **TASK,
    "eval.temperature": 1.0,
    "eval.n_samples_per_prompt": EVAL_SAMPLES,
    "algo.advantage.estimator": "group_norm",
    "algo.kl.init_coef": 0,
    "actor.lr_scheduler": "constant",
    "actor.num_gpus_per_node": 1,
    "rollout.micro_batch_size": 16,
    "train.micro_batch_size": 16,
    "ckpt.best_metric_key": "none",
}


@dataclass(frozen=True)
class Arm:
    """One way to train: its options, its batch shape (questions x samples), and the steps that use its budget."""

    name: str
    steps: int
    lr: float
    questions: int = 8
    samples: int = 4
    options: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class Run:
    arm: Arm
    level: str
    seed: int

    @property
    def folder(self) -> str:
        a = self.arm
        return f"{self.level}/{a.name}-{a.questions}x{a.samples}-lr{a.lr:g}/seed{self.seed}"


PLAIN = (("rpo.enable", "false"),)
UNCERTAIN = (("rpo.cut.rule", "uncertain"), ("rpo.cut.max", "ratio:1"))
ADAPTIVE = (("rpo.cut.rule", "adaptive"), ("rpo.cut.max", "ratio:1"))


# The best learning rates and shapes of those that were tried, one seed each (the report lists them).
GRPO = Arm("grpo", 32, 3e-4, options=PLAIN)
CAPPED = Arm("grpo_capped", 16, 3e-4, options=(*PLAIN, ("rollout.max_new_tokens", 112)))
PAPER = Arm("paper", 32, 3e-5, options=(("rpo.preset", "paper"),))
CUT = (("rpo.cut.rule", "uniform"),)  # the paper's rule; of an option that an arm has twice the later counts
RPO = Arm("rpo", 24, 3e-4, questions=16, options=CUT)
# The other rules, in RPO's shape and at its learning rate, but for verified reuse, which trains on whole paths like GRPO.
VERIFY = (("rpo.cut.rule", "verify"),)
TREE = (("rpo.cut.rule", "tree"), ("rpo.cut.max", "ratio:1"), ("rpo.advantage.baseline", "depth"))
BARE = (("rpo.cut.after_all_right", "bare"),)
BY_STEP = (("rpo.replay.by", "step"),)
WRONG_KEPT = ("rpo.update.rule", "right_and_wrong")
FAILURE = (("rpo.cut.after_all_right", "failure"), WRONG_KEPT)
PIVOT = (("rpo.cut.after_all_right", "pivot"), WRONG_KEPT)
# Worked solutions without mistakes, which nobody sampled: outside help, as the other arms have none.
SOLUTIONS = (("rpo.init.mode", "import"), ("rpo.init.source", "{data}/solutions.jsonl:solution"))
EXPERT = (*SOLUTIONS, ("rpo.cut.after_all_wrong", "expert"), ("rpo.update.on_all_wrong", "keep"))
REINFORCE = ("algo.advantage.estimator", "reinforce")
HISTORY = (REINFORCE, ("rpo.advantage.baseline", "history"))
SEGMENT = (REINFORCE, ("rpo.prefix_loss.mode", "segment"))
# Nine in ten questions replayed, cut within the last quarter, a learning rate that falls: what a small budget affords.
CLOSE = (("rpo.replay.share", 0.9), ("rpo.cut.max", "ratio:0.25"))
FALLING = (("actor.lr_scheduler", "cosine_with_min_lr"), ("actor.lr_warmup_ratio", 0))
# The moving average of the weights, over about five steps, is what is saved and measured at the end.
AVERAGED = (("train.enable_ema", ""), ("train.ema_beta", 0.8))
BRIEFLY = (AVERAGED[0], ("train.ema_beta", 0.7))  # over about three steps
STORED = (("rpo.replay.share", 0.92), ("rpo.cut.max_reuses", 12))  # one bare question in a batch of 16
RAFT = (REINFORCE, ("rpo.advantage.baseline", "zero"))
FULL = (("rpo.cut.fresh_share", 1), ("rpo.replay.share", 0))  # plain sampling, in our trainer
FRESHER = (("rpo.replay.share", 0.75), ("rpo.cut.max_reuses", 3))  # what verified reuse had before


def like_rpo(name: str, *options: tuple[str, object], steps: int = RPO.steps) -> Arm:
    """RPO's arm with further options."""
    return replace(RPO, name=name, steps=steps, options=(*RPO.options, *options))


SHORT = [
    like_rpo("history", *HISTORY, steps=16),
    like_rpo("history_averaged", *HISTORY, *AVERAGED, steps=16),
    like_rpo("history_close", *HISTORY, *CLOSE, *FALLING, UNCERTAIN[0], steps=16),
    like_rpo("close_averaged", *HISTORY, *CLOSE, UNCERTAIN[0], *AVERAGED),
    like_rpo("rpo_averaged", *AVERAGED),
]
VERIFIED = Arm("verify", 48, 1e-4, options=(*VERIFY, *FRESHER))
VERIFIED_RAFT = Arm("verify_raft_32", 32, 3e-4, options=(*VERIFY, *RAFT, *AVERAGED))
VERIFIED_BARE = Arm("verify_bare", 40, 3e-4, options=(*VERIFY, *FRESHER, *BARE))
RULES = [
    like_rpo("by_step", *BY_STEP),
    like_rpo("rpo_full", ("rpo.cut.max", "ratio:1")),
    like_rpo("uncertain", *UNCERTAIN),
    like_rpo("adaptive", *ADAPTIVE),
    like_rpo("tree", *TREE),
    like_rpo("tree_segment", *TREE, *SEGMENT),
    like_rpo("failure", *FAILURE),
    like_rpo("pivot", *PIVOT),
    like_rpo("expert", *EXPERT),
    like_rpo("bare", *BARE),
    VERIFIED,
    Arm("verify_averaged", 32, 3e-4, options=(*VERIFY, *AVERAGED)),
    Arm("verify_short", 16, 3e-4, options=(*VERIFY, *BRIEFLY)),
    Arm("verify_raft", 10, 5e-4, questions=16, options=(*VERIFY, *RAFT, *STORED, AVERAGED[0], ("train.ema_beta", 0.6))),
    VERIFIED_RAFT,
    like_rpo("rpo_raft", *RAFT, *AVERAGED),
    VERIFIED_BARE,
]
PLAIN_ARMS = {"main": replace(GRPO, questions=16, steps=16), "hard": GRPO}
SHORT_RAFT = Arm("verify_raft_8", 16, 3e-4, options=(*VERIFY, *RAFT, *BRIEFLY))
SHORT_RAFTS = {"main": SHORT_RAFT, "hard": replace(SHORT_RAFT, steps=15, lr=5e-4)}  # 5e-4 breaks down now and then on main
ARMS = {
    level: [
        plain,
        replace(plain, name="grpo_averaged", options=(*PLAIN, *AVERAGED)),
        replace(plain, name="raft", options=(*FULL, *RAFT, *AVERAGED)),
        *(CAPPED, PAPER, RPO, *SHORT, *RULES, SHORT_RAFTS[level]),
        # Whether what was learned stays.
        *(replace(arm, name=f"{arm.name}_long", steps=64) for arm in (plain, RPO, SHORT[1], VERIFIED_RAFT)),
    ]
    for level, plain in PLAIN_ARMS.items()
}
BASELINES = {
    "depth_baseline": (REINFORCE, ("rpo.advantage.baseline", "depth")),
    "history_baseline": HISTORY,
}
HALF = like_rpo("half_bare", ("rpo.replay.share", 0.5))
COSINE = (("actor.lr_scheduler", "cosine_with_min_lr"),)
# Learning rates and batch shapes around them.
TRIED = [
    *(replace(GRPO, lr=lr) for lr in (1e-4, 2e-4, 3e-4)),
    replace(GRPO, questions=16, steps=16),
    *(replace(CAPPED, lr=lr) for lr in (1e-4, 3e-4)),
    *(replace(PAPER, lr=lr, questions=n, steps=256 // n) for lr in (3e-5, 1e-4) for n in (8, 16)),
    *(replace(RPO, lr=lr) for lr in (1e-4, 2e-4, 3e-4)),
    *(replace(RPO, lr=lr, questions=8, samples=8, steps=32) for lr in (2e-4, 3e-4)),
    *(replace(rule, lr=lr) for rule in (HALF, *RULES[:5]) for lr in (2e-4, 3e-4)),
    *(replace(VERIFIED, lr=lr) for lr in (1e-4, 2e-4, 3e-4)),
    *(replace(like_rpo(n, *o), lr=lr) for n, o in BASELINES.items() for lr in (1e-4, 2e-4, 3e-4)),
    replace(VERIFIED_BARE, lr=1e-4),
    *(
        replace(arm, name=f"{arm.name}_cosine", lr=lr, options=(*arm.options, *COSINE))
        for arm in (replace(GRPO, questions=16, steps=16), RPO, RULES[2])
        for lr in (3e-4, 5e-4)
    ),
]


def command(run: Run, folder: Path, evaluations: int) -> list[str]:
    arm = run.arm
    episodes = -(-arm.steps * arm.questions // N_TRAIN)
    train, held_out = write_dataset(run.level, folder / "data", N_TRAIN, N_HELDOUT, seed=0)
    questions = train.read_text().splitlines(keepends=True)[: arm.steps * arm.questions // episodes]
    train.write_text("".join(questions))  # as many as fit the steps
    write_solutions(train)
    options = {
        **BASE,
        "actor.model_name_or_path": model_dir(run.level),
        "data.prompt_dataset": train,
        "eval.dataset": held_out,
        "eval.steps": max(1, arm.steps // evaluations),
        "rollout.batch_size": arm.questions,
        "rollout.n_samples_per_prompt": arm.samples,
        "train.batch_size": arm.questions * arm.samples,
        "train.num_episodes": episodes,
        "actor.adam.lr": arm.lr,
        "train.seed": run.seed,
        "ckpt.path": folder / "checkpoints",
        "ckpt.output_dir": folder / "model",
        "logger.tensorboard_dir": folder / "tensorboard",
        "logger.wandb.run_name": "run",
        **{name: str(value).format(data=folder / "data") for name, value in arm.options},
    }
    return [sys.executable, "-m", "openrlhf_rpo.cli.train_rpo_ray", *words(options)]


def write_solutions(train: Path) -> None:
    """``solutions.jsonl`` beside the questions, as a writer without mistakes would solve them."""
    records = [json.loads(line) for line in train.read_text().splitlines()]
    for record in records:
        record["solution"] = demonstrate(record["question"], CAREFUL, random.Random(record["question"]))
    train.with_name("solutions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def words(options: dict[str, object]) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", *str(value).split())]


def train(run: Run, out: Path, evaluations: int, keep_model: bool = False) -> dict:
    """Run the command unless its result is there already; the result also lies in result.json."""
    folder = out / run.folder
    result = folder / "result.json"
    if result.exists():
        return json.loads(result.read_text())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    training = command(run, folder, evaluations)
    started = time.perf_counter()
    call(training, folder / "log.txt")
    seconds = time.perf_counter() - started
    data = read(folder, seconds) | {"command": training, "whole_seconds": seconds, "arm": asdict(run.arm)}
    data |= {"level": run.level, "seed": run.seed, "end": end_figures(folder)}
    result.write_text(json.dumps(data))
    if not keep_model:
        shutil.rmtree(folder / "model")
    return data


def read(folder: Path, seconds: float) -> dict:
    """The curve (generated tokens, seconds of steps, accuracy) and the means over the steps, of either trainer."""
    host = {"load_average": os.getloadavg()[0], "cores": cpus()}
    figures = read_run(folder, {"earlier_attempts": 0, "seconds": seconds, **host})
    tokens, clock = {0: figures.initial_tokens}, {0: 0.0}
    for step in figures.steps:
        tokens[step.step] = tokens[step.step - 1] + step.tokens
        clock[step.step] = clock[step.step - 1] + step.seconds["step_total"]
    without = [step.no_variance for step in figures.steps if step.no_variance is not None]
    return {
        "curve": [(tokens[step], clock[step], accuracy) for step, accuracy, _ in figures.evaluations],
        "generated_tokens": tokens[figures.steps[-1].step],  # plain OpenRLHF may have evaluated before its last step
        "seconds": clock[figures.steps[-1].step],
        "tokens_per_sample": figures.generated,
        "truncated": figures.truncated,
        "no_variance": fmean(without) if without else None,
        "phases": {phase: total / len(figures.steps) for phase, total in figures.seconds().items()},
    }


def call(words: Sequence[str], log: Path) -> None:
    """Run a command, its output in ``log``. Raises RuntimeError when it fails."""
    with log.open("w") as output:
        status = subprocess.run(words, stdout=output, stderr=subprocess.STDOUT).returncode
    if status:
        raise RuntimeError(f"{' '.join(words[:4])} ... ended with status {status}, see {log}")


def end_figures(folder: Path) -> dict:
    """The trained model on the held-out questions: accuracy over END_SAMPLES samples a question, and pass@k."""
    held_out = folder / "data" / "heldout.jsonl"
    asked = ["--data", held_out, "--samples", END_SAMPLES, "--temperature", 1, "--out", folder / "end"]
    evaluation = [sys.executable, "-m", "openrlhf_rpo.cli.main", "eval", folder / "model", *asked, *words(TASK)]
    call([str(word) for word in evaluation], folder / "end.txt")
    [result] = (folder / "end").glob("*.json")
    return json.loads(result.read_text())["figures"]


def summarize(results: Sequence[dict], base: float, budgets: Sequence[int]) -> dict:
    """Mean and spread over seeds: final figures, and accuracy at each budget of generated tokens."""
    finals = [r["end"]["accuracy"] for r in results]
    pass_at_8 = [r["end"]["pass_at_k"]["8"] for r in results]
    at_budget = {}
    for budget in budgets:
        values = [v for v in (at_tokens(r["curve"], base, budget) for r in results) if v is not None]
        if values:
            at_budget[str(budget)] = [round(fmean(values), 4), round(spread(values), 4), len(values)]
    return {
        "accuracy": round(fmean(finals), 4),
        "accuracy_sd": round(spread(finals), 4),
        "pass_at_8": round(fmean(pass_at_8), 4),
        "pass_at_8_sd": round(spread(pass_at_8), 4),
        "tokens_per_sample": round(fmean(r["tokens_per_sample"] for r in results), 1),
        "generated_tokens": round(fmean(r["generated_tokens"] for r in results)),
        "seconds": round(fmean(r["seconds"] for r in results), 1),
        "truncated_rate": round(fmean(r["truncated"] for r in results), 4),
        "groups_without_variance": None
        if results[0].get("no_variance") is None
        else round(fmean(r["no_variance"] for r in results), 4),
        "phases": {k: round(fmean(r["phases"].get(k, 0.0) for r in results), 3) for k in results[0]["phases"]},
        "at_tokens": at_budget,
        "seeds": [r["seed"] for r in results],
        "lr": results[0]["arm"]["lr"],
        "shape": f"{results[0]['arm']['questions']}x{results[0]['arm']['samples']}",
        "curves": [[[round(t), round(s, 1), round(a, 4)] for t, s, a in r["curve"]] for r in results],
    }


def at_tokens(curve: Sequence[Sequence[float]], base: float, budget: float) -> float | None:
    """Accuracy at ``budget`` generated tokens by linear interpolation; None past the end of the run."""
    points = [(0.0, base), *((p[0], p[2]) for p in curve if p[0] > 0)]
    for (t0, a0), (t1, a1) in zip(points, points[1:], strict=False):
        if t0 <= budget <= t1:
            return a0 + (a1 - a0) * (budget - t0) / (t1 - t0)
    return None


def spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def plot(summary: dict, path: Path) -> None:
    """Accuracy against tokens and against seconds, a row a level: a line a seed, of more than five arms the means of theirs;
    points are evaluations.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"grpo": "#6b7280", "grpo_capped": "#c4b5fd", "paper": "#ea580c", "rpo": "#2563eb"}
    others = sorted({arm for by_arm in summary.values() for arm in by_arm} - colours.keys())
    palette = ("C1", "C2", "C3", "C4", "C5", "C6", "C8", "C9")
    dashed = set(others[len(palette) :])
    colours |= {arm: palette[i % len(palette)] for i, arm in enumerate(others)}
    figure, axes = plt.subplots(len(summary), 2, figsize=(11, 4 * len(summary)), squeeze=False, constrained_layout=True)
    for row, (level, by_arm) in zip(axes, summary.items(), strict=True):
        for arm, s in by_arm.items():
            curves = s["curves"] if len(by_arm) <= 5 else [mean_curve(s["curves"])]
            style = {"color": colours[arm], "ls": "--" if arm in dashed else "-", "alpha": 0.75, "lw": 1.2, "marker": "."}
            for column, axis in enumerate(row):
                for i, curve in enumerate(curves):
                    xs, ys = [p[column] for p in curve], [p[2] for p in curve]
                    axis.plot(xs, ys, label=None if i else arm, **style)
        for axis, name in zip(row, ("generated tokens, initial cache included", "seconds of training steps"), strict=True):
            axis.set(xlabel=name, ylabel="held-out accuracy at temperature 1", ylim=(0, 1), title=f"level {level}")
            axis.grid(alpha=0.25)
            axis.legend(fontsize=7, ncols=1 + len(by_arm) // 6)
    figure.savefig(path, dpi=120)


def mean_curve(curves: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Point by point; the runs of an arm evaluate at the same steps."""
    return [[fmean(values) for values in zip(*points, strict=True)] for points in zip(*curves, strict=True)]


def tables(report: dict, name: str, budgets: Sequence[int]) -> str:
    """The report as Markdown: what ran on what, and two tables a level. What it says is for a person to add."""
    versions = ", ".join(f"{package} {v}" for package, v in report["versions"].items())
    lines = [f"# Accuracy against generated tokens ({report['date']})", "", f"{report['machine']}; {versions}."]
    lines += [f"{report['parallel_runs']} runs at a time. {report['evaluation']}.", "", f"    {report['command']}", ""]
    lines += [f"![curves]({name}.png)", ""]
    for level, by_arm in report["levels"].items():
        arms = {arm: s for arm, s in by_arm.items() if arm != "base"}
        lines += [f"## Level {level} (base accuracy {by_arm['base']:.3f})", ""]
        lines += [
            "| arm | shape, lr | accuracy at the end | pass@8 | tokens a sample | generated tokens | seconds of steps | "
        ]
        lines[-1] += "truncated | groups without variance |"
        lines += ["|" + "---|" * 9]
        for arm, s in arms.items():
            without = "-" if s["groups_without_variance"] is None else f"{s['groups_without_variance']:.0%}"
            lines += [
                f"| {arm} | {s['shape']}, {s['lr']:g} | {s['accuracy']:.3f} ± {s['accuracy_sd']:.3f} ({len(s['seeds'])}) "
                f"| {s['pass_at_8']:.3f} ± {s['pass_at_8_sd']:.3f} | {s['tokens_per_sample']:.0f} "
                f"| {s['generated_tokens']:,} | {s['seconds']:.0f} | {s['truncated_rate']:.1%} | {without} |"
            ]
        lines += [
            "",
            "Accuracy at a budget of generated tokens (linear interpolation; mean ± standard deviation over seeds):",
            "",
        ]
        lines += ["| arm | " + " | ".join(f"{b // 1000}k" for b in budgets) + " |", "|" + "---|" * (len(budgets) + 1)]
        for arm, s in arms.items():
            cells = [s["at_tokens"].get(str(b)) for b in budgets]
            lines += [f"| {arm} | " + " | ".join(f"{c[0]:.2f} ± {c[1]:.2f} ({c[2]})" if c else "" for c in cells) + " |"]
        lines += ["", "Seconds a step by phase (mean):", ""]
        for arm, s in arms.items():
            phases = sorted(s["phases"].items(), key=lambda item: -item[1])
            lines += [f"- {arm}: " + ", ".join(f"{k} {v:.2f}" for k, v in phases)]
        lines += [""]
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", nargs="+", default=["main", "hard"])
    known = sorted({arm.name for arm in (*ARMS["main"], *TRIED)})
    parser.add_argument("--arms", nargs="+", default=["grpo", "grpo_capped", "paper", "rpo"], choices=known)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/frontier"), help="runs are kept here and reused")
    parser.add_argument("--report", type=Path, help="write FILE.json, FILE.png and FILE.md")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time; with 2, seconds are under contention")
    parser.add_argument("--evaluations", type=int, default=8, help="evaluations in a run")
    parser.add_argument("--finished", action="store_true", help="report the runs that are there, and start none")
    parser.add_argument("--keep-models", action="store_true", help="leave the trained models, for ceiling.py")
    parser.add_argument("--tune", action="store_true", help="try learning rates and shapes instead")
    parser.add_argument("--quick", action="store_true", help="16 steps of grpo and rpo, one seed, level main")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    if args.report:
        args.report.parent.mkdir(parents=True, exist_ok=True)
    if args.quick:
        args.levels, args.seeds, args.arms, args.evaluations = ["main"], [0], ["rpo"], 1
        args.out = args.out / "quick"
    chosen = {level: [a for a in (TRIED if args.tune else ARMS[level]) if a.name in args.arms] for level in args.levels}
    if args.quick:
        chosen = {level: [replace(a, steps=16) for a in some] for level, some in chosen.items()}
    # Seed by seed, arms alternating, so that a drift of the machine falls on all arms alike.
    runs = [Run(arm, level, seed) for seed in args.seeds for level, some in chosen.items() for arm in some]
    if args.finished:
        runs = [run for run in runs if (args.out / run.folder / "result.json").exists()]
    results = {}
    with ThreadPoolExecutor(args.parallel) as pool, tqdm(total=len(runs), unit="run") as bar:
        futures = {run: pool.submit(train, run, args.out, args.evaluations, args.keep_models) for run in runs}
        for run, future in futures.items():
            results[run] = future.result()
            bar.set_postfix_str(f"{run.folder}: {results[run]['curve'][-1][2]:.3f}")
            bar.update()
    budgets = [20_000, 30_000, 50_000, 75_000, 100_000, 150_000, 200_000]
    summary: dict = {}
    for level, some in chosen.items():
        base = json.loads((model_dir(level) / "figures.json").read_text())["pass@1"]
        summary[level] = {"base": base}
        for arm in some:
            name = f"{arm.name} {arm.questions}x{arm.samples} lr {arm.lr:g}" if args.tune else arm.name
            if of_arm := [result for run, result in results.items() if (run.arm, run.level) == (arm, level)]:
                summary[level][name] = summarize(of_arm, base, budgets)
    report = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {cpus()} cores, no GPU",
        "versions": {p: version(p) for p in ("openrlhf", "ray", "deepspeed", "torch", "transformers")},
        "command": " ".join(["python", *sys.argv]),
        "parallel_runs": args.parallel,
        "evaluation": f"{N_HELDOUT} held-out questions at temperature 1, {EVAL_SAMPLES} sample(s) each along the way, "
        f"{END_SAMPLES} at the end",
        "levels": summary,
    }
    if args.report:
        args.report.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
        arms_only = {level: {k: v for k, v in s.items() if k != "base"} for level, s in summary.items()}
        plot(arms_only, args.report.with_suffix(".png"))
        args.report.with_suffix(".md").write_text(tables(report, args.report.stem, budgets))
    print(json.dumps(report))


def cpus() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    main()
