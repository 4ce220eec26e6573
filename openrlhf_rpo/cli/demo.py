"""``openrlhf-rpo demo``: the testbed's base model through the same command that a cluster runs, then a short table."""

import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from tqdm import tqdm

from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.testbed import model_dir, write_dataset

_STEP = re.compile(r"step (\d+)/(\d+)  (score .*)")
_PREFIX = re.compile(r"^(\x1b\[\d+m)?\(\w+ pid=\d+(, [^)]*)?\)(\x1b\[0m)? ?")


def training_command(level: str, out: Path, steps: int) -> list[str]:
    """The demo's training command: 16 questions x 4 samples a step on one engine and one actor process."""
    episodes = 2 if steps % 2 == 0 else 1
    n_train = 16 * steps // episodes
    train, held_out = write_dataset(level, out / "data", n_train, 64, seed=0)
    options = {
        "actor.model_name_or_path": model_dir(level),
        "data.prompt_dataset": train,
        "data.input_key": "question",
        "data.label_key": "answer",
        "data.max_len": 768,
        "eval.dataset": held_out,
        "eval.steps": max(1, steps // 3),
        "eval.temperature": 1.0,
        "eval.n_samples_per_prompt": 2,
        "rpo.reward.functions": "math",
        "algo.advantage.estimator": "group_norm",
        "algo.kl.init_coef": 0,
        "rollout.batch_size": 16,
        "rollout.n_samples_per_prompt": 4,
        "rollout.micro_batch_size": 16,
        "train.batch_size": 64,
        "train.micro_batch_size": 16,
        "train.num_episodes": episodes,
        "actor.adam.lr": 3e-4,
        "actor.lr_scheduler": "constant",
        "actor.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "ckpt.path": out / "checkpoints",
        "ckpt.output_dir": out / "model",
        "ckpt.save_steps": steps,
        "ckpt.best_metric_key": "none",
        "logger.tensorboard_dir": out / "tensorboard",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "openrlhf_rpo.cli.train_rpo_ray", *words]


def run_demo(out: str, steps: int, level: str) -> int:
    """Train, then print the table and write the plot. Exit status of the training command."""
    folder = Path(out).resolve()
    if (folder / "checkpoints").exists():
        print(f"error: {folder} holds an earlier run: remove it, or choose another folder with --out", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    command = training_command(level, folder, steps)
    log = folder / "train.log"
    print(f"Training the testbed's {level} model with RPO. Its full output: {log}", flush=True)
    started = time.perf_counter()
    status = _run_with_progress(command, log, steps)
    if status:
        print(f"error: training stopped with status {status}; the end of {log}:", file=sys.stderr)
        print("\n".join(log.read_text().splitlines()[-25:]), file=sys.stderr)
        return status
    report(folder, level, time.perf_counter() - started)
    return 0


def _run_with_progress(command: list[str], log: Path, steps: int) -> int:
    """Run the command; its output goes to ``log``, its steps to a progress bar, its evaluations to the console."""
    bar = tqdm(total=steps, desc="Starting Ray, vLLM and DeepSpeed", unit="step", dynamic_ncols=True)
    with (
        log.open("w") as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            text = _PREFIX.sub("", line).strip()
            if match := _STEP.match(text):
                bar.set_description("Training")
                bar.update(int(match[1]) - bar.n)
                bar.set_postfix_str(match[3].split("  no variance")[0])
            elif text.startswith("evaluation at step"):
                bar.write(text)
    bar.close()
    return process.returncode


def report(folder: Path, level: str, seconds: float) -> None:
    """The table that the demo ends with, and the plot."""
    from openrlhf_rpo.reports.run import read_run
    from openrlhf_rpo.reports.training_plot import plot_run

    database = folder / "checkpoints" / "rpo_cache.db"
    with PathCache.open(f"sqlite:///{database}") as cache:
        run = read_run(cache, folder.name, str(database), len(cache.questions()))
    plot = folder / "training.png"
    plot_run(run, plot)

    records, accuracy = run.records, [value for _, value in run.accuracy()]
    generated = fmean(r.metrics["rpo/generated_tokens"] for r in records)
    control = json.loads((model_dir(level) / "figures.json").read_text())
    rows = [
        ("held-out accuracy, from the question alone", f"{accuracy[0]:.3f} before, {accuracy[-1]:.3f} after"),
        ("generated tokens a sample", f"{generated:.0f}, plain GRPO {control['tokens_mean']:.0f} (recorded)"),
        ("generated tokens, reused tokens", _totals(records)),
        *((f"seconds in {phase}", f"{seconds:.1f}") for phase, seconds in _phases(records)),
        ("seconds in all, start and evaluations included", f"{seconds:.0f}"),
        ("path cache", str(database)),
        ("checkpoint", str(folder / "checkpoints" / "_actor")),
        ("trained model", str(folder / "model")),
        ("plot", str(plot)),
    ]
    width = max(len(name) for name, _ in rows)
    print()
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")


def _totals(records: list) -> str:
    last = records[-1].metrics
    return f"{last['rpo/tokens_generated_total']:,.0f}, {last['rpo/tokens_reused_total']:,.0f}"


def _phases(records: list) -> list[tuple[str, float]]:
    sums: dict[str, float] = defaultdict(float)
    for record in records:  # not every step has every phase: the first one replays nothing that could be verified
        for name, seconds in record.metrics.items():
            if name.startswith("timing/") and name != "timing/step_total":
                sums[name.removeprefix("timing/")] += seconds
    return sorted((pair for pair in sums.items() if pair[1] >= 0.05), key=lambda pair: -pair[1])
