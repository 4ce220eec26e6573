"""``openrlhf-rpo demo``: train the testbed's base model with the real training command, and print a short table."""

import argparse
import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from tqdm import tqdm

from lab.command import TRAINING, train_command
from lab.testbed import model_dir, write_dataset
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.errors import Failed, UsageError

_STEP = re.compile(r"step (\d+)/(\d+)  (score .*)")
_PREFIX = re.compile(r"^(\x1b\[\d+m)?\(\w+ pid=\d+(, [^)]*)?\)(\x1b\[0m)? ?")


def training_command(level: str, out: Path, steps: int) -> list[str]:
    """The demo's training command: 16 questions x 4 samples per step on one engine and one actor process."""
    episodes = 2 if steps % 2 == 0 else 1
    n_train = 16 * steps // episodes
    train, held_out = write_dataset(level, out / "data", n_train, 64, seed=0)
    options = {
        **TRAINING,
        "actor.model_name_or_path": model_dir(level),
        "data.prompt_dataset": train,
        "eval.dataset": held_out,
        "eval.steps": max(1, steps // 2),
        "eval.temperature": 1.0,
        "eval.n_samples_per_prompt": 2,
        "rollout.batch_size": 16,
        "rollout.n_samples_per_prompt": 4,
        "rollout.micro_batch_size": 16,
        "train.batch_size": 64,
        "train.micro_batch_size": 16,
        "train.num_episodes": episodes,
        "actor.adam.lr": 3e-4,
        "actor.lr_scheduler": "constant",
        "ckpt.path": out / "checkpoints",
        "ckpt.output_dir": out / "model",
        "ckpt.save_steps": steps,
        "ckpt.best_metric_key": "none",
        "logger.tensorboard_dir": out / "tensorboard",
    }
    return train_command(options)


def main(words: Sequence[str]) -> int:
    """Train, print the table and write the plot. Raises UserError."""
    parser = argparse.ArgumentParser(prog="openrlhf-rpo demo", description=(__doc__ or "").split(": ", 1)[1])
    parser.add_argument("--out", default="runs/demo", help="folder of the run (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=16, help="training steps (default: %(default)s)")
    parser.add_argument("--level", default="main", choices=["main", "hard"], help="difficulty (default: %(default)s)")
    args = parser.parse_args(words)
    if args.steps < 1:
        raise UsageError(f"--steps {args.steps}: at least 1")
    folder = Path(args.out).resolve()
    if (folder / "checkpoints").exists():
        raise UsageError(f"{folder} holds an earlier run: remove it, or choose another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    command = training_command(args.level, folder, args.steps)
    log = folder / "train.log"
    print(f"Training the testbed's {args.level} model with RPO. Its full output: {log}", flush=True)
    started = time.perf_counter()
    status = _run_with_progress(command, log, args.steps)
    if status:
        print("\n".join(log.read_text().splitlines()[-25:]), file=sys.stderr)
        raise Failed(f"training stopped with status {status}; the end of its output is above, the rest is in {log}")
    report(folder, args.level, time.perf_counter() - started)
    return 0


def _run_with_progress(command: list[str], log: Path, steps: int) -> int:
    """Run the command with its output in ``log``, its steps in a progress bar and its evaluations on the console."""
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
    """Print the table and write the plot."""
    from lab.training_plot import plot_run
    from openrlhf_rpo.reports.run import read_run

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
        ("generated tokens per sample", f"{generated:.0f}, plain GRPO {control['tokens_mean']:.0f} (recorded)"),
        ("generated tokens, reused tokens", _totals(records)),
        *((f"seconds in {phase}", f"{seconds:.1f}") for phase, seconds in _phases(records)),
        ("seconds in total, including start-up and evaluations", f"{seconds:.0f}"),
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
    for record in records:  # not every step has every phase: the first has nothing to verify
        for name, seconds in record.metrics.items():
            if name.startswith("timing/") and name != "timing/step_total":
                sums[name.removeprefix("timing/")] += seconds
    return sorted((pair for pair in sums.items() if pair[1] >= 0.05), key=lambda pair: -pair[1])
