"""Phase times of whole training steps: RPO with and without shared prefixes, and plain OpenRLHF.

Each run is the real command (Ray, DeepSpeed, vLLM) on the testbed: G = 8, every question replayed from a bulk cache with
prefixes of 80 % of the path on average, and a KL loss, which needs the reference model. Plain OpenRLHF generates and trains
whole paths; RPO without sharing trains the same lengths. The arms take turns; the first two steps of each run (warm-up)
are left out.

    make bench NAME=shared-prefix-steps QUICK=1             one round of four steps
    python -m lab.bench shared-prefix-steps --rounds 3 --report lab/results/NAME

The figures: arm -> phase -> [median, min, max] in seconds; "speedup" is the time of RPO's training phases (log-probs and
optimizer) without sharing over that with sharing.
"""

import argparse
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lab.bench import about, header, table, write_report
from lab.command import TRAINING, train_command
from lab.testbed import model_dir, write_dataset
from openrlhf_rpo.reports.event_files import read_event_files

QUESTIONS, SAMPLES, WARM_UP = 4, 8, 2
ARMS = {
    "openrlhf": {"rpo.enable": "false"},
    "rpo, off": {"rpo.shared_prefix": "off"},
    "rpo, shared": {"rpo.shared_prefix": "on"},
}
RPO = {"rpo.init.mode": "bulk", "rpo.update.admit": "any", "rpo.update.on_all_wrong": "keep"}
RPO |= {"rpo.replay.share": 0, "rpo.method": "rpo", "rpo.cut.max": "ratio:0.4"}


def command(arm: str, folder: Path, steps: int) -> list[str]:
    train, _ = write_dataset("main", folder / "data", QUESTIONS * steps, 1, seed=0)
    options = {
        **TRAINING,
        "actor.model_name_or_path": model_dir("main"),
        "data.prompt_dataset": train,
        "data.max_len": 640,
        "algo.kl.init_coef": 0.001,
        "algo.kl.use_loss": True,
        "algo.kl.estimator": "k3",
        "rollout.batch_size": QUESTIONS,
        "rollout.n_samples_per_prompt": SAMPLES,
        "rollout.micro_batch_size": 2 * SAMPLES,
        "train.batch_size": QUESTIONS * SAMPLES,
        "train.micro_batch_size": 2 * SAMPLES,
        "ref.num_gpus_per_node": 1,
        "ckpt.path": folder / "checkpoints",
        "ckpt.output_dir": folder / "model",
        "logger.tensorboard_dir": folder / "tensorboard",
        "logger.wandb.run_name": "run",
        **(RPO if arm != "openrlhf" else {}),
        **ARMS[arm],
    }
    return train_command(options)


def steps_of(arm: str, steps: int) -> list[dict[str, float]]:
    """Figures of each step after the warm-up."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "log.txt").open("w") as log:
            done = subprocess.run(command(arm, folder, steps), stdout=log, stderr=subprocess.STDOUT)
        if done.returncode:
            raise RuntimeError(f"{arm}: status {done.returncode}\n" + (folder / "log.txt").read_text()[-3000:])
        records = read_event_files(folder / "tensorboard" / "run", arm).records
    return [figures_of(record.metrics) for record in records[WARM_UP:]]


def figures_of(metrics: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the training phases, tokens of a path, and the share of its prefix."""
    phases = {phase: metrics[f"timing/{phase}"] for phase in ("log_probs", "train")}
    path = metrics["rpo/path_length"]
    return phases | {"path": path, "prefix_share": metrics["rpo/prefix_tokens"] / path}


def summarize(steps: dict[str, list[dict[str, float]]]) -> dict:
    summary: dict = {}
    for arm, rows in steps.items():
        for row in rows:
            row["training"] = row["log_probs"] + row["train"]
        summary[arm] = {
            name: [statistics.median(values), min(values), max(values)]
            for name in rows[0]
            for values in [[row[name] for row in rows]]
        }
    return summary


def page(figures: dict[str, Any]) -> list[str]:
    """The report as Markdown."""
    summary = figures["arms"]
    lines = [
        *header("Shared prefix: whole training steps on the testbed", figures),
        f"{QUESTIONS} questions x {SAMPLES} samples per step, KL loss. Seconds per step: median (min to max).",
        "`log_probs`: passes before training (reference; old log-probs in OpenRLHF); `train`: forward, backward, optimizer.",
        "",
    ]
    rows = []
    for arm in ARMS:
        row = summary[arm]
        cells = [f"{f[0]:.2f} ({f[1]:.2f} to {f[2]:.2f})" for f in (row[n] for n in ("log_probs", "train", "training"))]
        rows.append([arm, f"{row['path'][0]:.0f}", f"{row['prefix_share'][0]:.0%}", *cells])
    lines += table(["", "path tokens", "prefix share", "log_probs", "train", "both"], rows)
    return [*lines, "", f"Speedup of RPO's training phases by sharing: {figures['speedup']:.2f}."]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="runs of each arm")
    parser.add_argument("--steps", type=int, default=8, help="steps per run, including the warm-up")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run the arms in turn."""
    rounds, number = (1, 4) if args.quick else (args.rounds, args.steps)
    steps: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for arm in tqdm([arm for _ in range(rounds) for arm in ARMS], desc="Runs"):
        steps[arm] += steps_of(arm, number)
    summary = summarize(steps)
    speedup = summary["rpo, off"]["training"][0] / summary["rpo, shared"]["training"][0]
    figures = about() | {"arms": summary, "speedup": speedup}
    write_report(args.report, figures, page(figures))
    return figures
