"""Phase times of whole training steps: RPO with shared prefixes, RPO without, and plain OpenRLHF.

Each run goes through the real command (Ray, DeepSpeed, vLLM) on the testbed: G = 8, every question replayed from a bulk
cache with prefixes of 80 % of the path on average, KL as a loss, so that the reference model runs, too. Plain OpenRLHF
generates and trains whole paths; RPO without sharing trains the same lengths. The arms take turns; the first two steps
of each run warm up and are left out.

    python benchmarks/shared_prefix_steps.py --rounds 3 --out benchmarks/results/NAME
    python benchmarks/shared_prefix_steps.py --quick             one round of four steps

The last line is one JSON object: arm -> phase -> [median, least, most] in seconds; "speedup" is the time of the training
phases (log-probs and optimizer) of RPO without sharing over that with.
"""

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tqdm import tqdm

from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.testbed import model_dir, write_dataset

QUESTIONS, SAMPLES, WARM_UP = 4, 8, 2
ARMS = {
    "openrlhf": {"rpo.enable": "false"},
    "rpo, off": {"rpo.shared_prefix": "off"},
    "rpo, shared": {"rpo.shared_prefix": "on"},
}
RPO = {"rpo.init.mode": "bulk", "rpo.init.max_tries": 1, "rpo.update.admit": "any", "rpo.update.on_all_wrong": "keep"}
RPO |= {"rpo.replay.share": 0, "rpo.cut.rule": "uniform", "rpo.cut.max": "ratio:0.4"}
PHASES = {
    "openrlhf": {"log_probs": "timing/make_experience", "train": "timing/ppo_train"},
    "rpo": {"log_probs": "timing/log_probs", "train": "timing/train", "rollout": "timing/rollout"},
}


def command(arm: str, folder: Path, steps: int) -> list[str]:
    train, _ = write_dataset("main", folder / "data", QUESTIONS * steps, 1, seed=0)
    options = {
        "actor.model_name_or_path": model_dir("main"),
        "data.prompt_dataset": train,
        "data.input_key": "question",
        "data.label_key": "answer",
        "data.max_len": 640,
        "rpo.reward.functions": "math",
        "algo.advantage.estimator": "group_norm",
        "algo.kl.init_coef": 0.001,
        "algo.kl.estimator": "k3",
        "rollout.batch_size": QUESTIONS,
        "rollout.n_samples_per_prompt": SAMPLES,
        "rollout.micro_batch_size": 2 * SAMPLES,
        "train.batch_size": QUESTIONS * SAMPLES,
        "train.micro_batch_size": 2 * SAMPLES,
        "actor.num_gpus_per_node": 1,
        "ref.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "ckpt.path": folder / "checkpoints",
        "ckpt.output_dir": folder / "model",
        "logger.tensorboard_dir": folder / "tensorboard",
        "logger.wandb.run_name": "run",
        **(RPO if arm != "openrlhf" else {}),
        **ARMS[arm],
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "openrlhf_rpo.cli.train_rpo_ray", *words, "--algo.kl.use_loss"]


def run(arm: str, steps: int) -> list[dict[str, float]]:
    """Figures of each step after the warm-up."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "log.txt").open("w") as log:
            done = subprocess.run(command(arm, folder, steps), stdout=log, stderr=subprocess.STDOUT)
        if done.returncode:
            raise RuntimeError(f"{arm}: status {done.returncode}\n" + (folder / "log.txt").read_text()[-3000:])
        return (read_plain if arm == "openrlhf" else read_rpo)(folder)[WARM_UP:]


def read_rpo(folder: Path) -> list[dict[str, float]]:
    with PathCache.open(f"sqlite:///{folder}/checkpoints/rpo_cache.db") as cache:
        metrics = [record.metrics for record in cache.records()]
    return [
        {phase: m[name] for phase, name in PHASES["rpo"].items()}
        | {"prefix_share": m["rpo/prefix_tokens"] / m["rpo/path_length"], "path": m["rpo/path_length"]}
        for m in metrics
    ]


def read_plain(folder: Path) -> list[dict[str, float]]:
    events = EventAccumulator(str(folder / "tensorboard" / "run"), size_guidance={"scalars": 0})
    events.Reload()
    series = {phase: events.Scalars(f"train/{name}") for phase, name in PHASES["openrlhf"].items()}
    series["path"] = events.Scalars("train/rollout/response_length_mean")
    return [{name: e.value for name, e in zip(series, step, strict=True)} for step in zip(*series.values(), strict=True)]


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
    summary["speedup"] = summary["rpo, off"]["training"][0] / summary["rpo, shared"]["training"][0]
    return summary


def report(summary: dict, about: dict) -> str:
    lines = ["# Shared prefix: whole training steps on the testbed", "", *(f"- {k}: {v}" for k, v in about.items()), ""]
    lines += [
        f"{QUESTIONS} questions x {SAMPLES} samples a step, KL as a loss. Seconds a step: median (least to most).",
        "`log_probs`: passes before training (reference; old log-probs in OpenRLHF); `train`: forward, backward, optimizer.",
        "",
        "| | path tokens | prefix share | log_probs | train | both |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for arm in ARMS:
        figures = summary[arm]
        cells = [f"{f[0]:.2f} ({f[1]:.2f} to {f[2]:.2f})" for f in (figures[n] for n in ("log_probs", "train", "training"))]
        share = f"{figures['prefix_share'][0]:.0%}" if "prefix_share" in figures else ""
        lines.append(f"| {arm} | {figures['path'][0]:.0f} | {share} | " + " | ".join(cells) + " |")
    lines += ["", f"Training phases of RPO, without sharing over with: {summary['speedup']:.2f}."]
    return "\n".join(lines) + "\n"


def about() -> dict[str, str]:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), platform.processor())
    packages = ("openrlhf", "deepspeed", "torch", "transformers")
    return {
        "date": datetime.date.today().isoformat(),
        "hardware": f"{cpu}, {sum(line.startswith('processor') for line in info)} cores",
        "versions": ", ".join(f"{name} {version(name)}" for name in packages),
        "command": " ".join(["python", *sys.argv]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="runs of each arm")
    parser.add_argument("--steps", type=int, default=8, help="steps a run, the warm-up included")
    parser.add_argument("--quick", action="store_true", help="one round of four steps")
    parser.add_argument("--note", default="", help="a remark for the report, such as what else the machine did")
    parser.add_argument("--out", type=Path, help="write OUT.json and OUT.md")
    options = parser.parse_args()
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    rounds, number = (1, 4) if options.quick else (options.rounds, options.steps)
    steps: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for arm in tqdm([arm for _ in range(rounds) for arm in ARMS], desc="Runs"):
        steps[arm] += run(arm, number)
    summary = summarize(steps)
    described = about() | ({"note": options.note} if options.note else {})
    if options.out:
        options.out.with_suffix(".json").write_text(json.dumps({"about": described, **summary}, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(report(summary, described))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
