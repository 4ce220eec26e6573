"""A long run under random faults, compared bit for bit with an undisturbed run of the same length.

Both are the real command (Ray, DeepSpeed, vLLM) on the testbed with full determinism. Every 10 to 40 steps one fault, at a
random moment of a step: the driver, a vLLM engine or the policy is killed (SIGKILL), a reward hangs, or the disk is full.
The command is then repeated with --ckpt.load_enable until the run ends by itself.

    make bench NAME=soak QUICK=1                           12 steps, two faults
    python -m lab.bench soak --report lab/results/DATE-soak

The figures: faults by kind, steps that were run again, differences, and the time of both runs; "ok" without differences or
failures. A full disk needs the right to mount a file system, and is left out without it.
"""

import argparse
import contextlib
import itertools
import math
import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from lab.attempt import Attempt, title_of
from lab.bench import about, header, table, write_report
from lab.command import train_command
from lab.compare import differences
from lab.kill_resume import BASE, QUESTIONS
from lab.testbed import model_dir, write_dataset

STEPS_PER_EPISODE = QUESTIONS // BASE["rollout.batch_size"]
DISK = "160m"  # what the run needs, with room to spare
RESUMED = re.compile(r"Resumed at step (\d+)")
KILLED = {"engine killed": "VLLM::EngineCore", "policy killed": "ray::_RPOPolicyActor"}
# Hangs while a file named "hang" lies beside it.
REWARD = """
import pathlib, time
from openrlhf_rpo.rewards.math_file import reward_func as right

def reward_func(queries, prompts, labels, **extra):
    hang = pathlib.Path(__file__).with_name("hang")
    if hang.exists():
        hang.unlink(missing_ok=True)
        time.sleep(10_000)
    return right(queries, prompts, labels, **extra)
"""


@dataclass(frozen=True)
class Fault:
    """A fault after step ``step``; the run resumed from step ``resumed``."""

    kind: str
    step: int
    resumed: int


def command(folder: Path, steps: int, resume: bool) -> list[str]:
    train, held_out = write_dataset("main", folder / "data", QUESTIONS, 4, seed=0)
    (folder / "reward.py").write_text(REWARD)
    options = {
        **BASE,
        "actor.model_name_or_path": model_dir("main"),
        "data.prompt_dataset": train,
        "eval.dataset": held_out,
        "rollout.n_samples_per_prompt": 2,
        "train.batch_size": 2 * BASE["rollout.batch_size"],
        "eval.steps": 50,
        "ckpt.path": folder / "checkpoints",
        "ckpt.output_dir": folder / "model",
        "ckpt.save_steps": 5,
        "train.num_episodes": steps // STEPS_PER_EPISODE,
        "reward.remote_url": folder / "reward.py",
        "rpo.reward.timeout": 5,
        "rpo.reward.max_failure_share": 0,  # a sample that cannot be scored ends the run, so nothing is learned from it
    }
    del options["rpo.reward.functions"]
    return train_command(options | ({"ckpt.load_enable": True} if resume else {}))


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[bool]:
    """A small file system at ``folder``; False, with an ordinary folder, if it may not be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(words, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", folder], check=True)


def cause(kind: str, attempt: Attempt, folder: Path) -> None:
    """Start a fault."""
    if kind == "reward hung":
        (folder / "hang").touch()
    elif kind == "disk full":
        with contextlib.suppress(OSError), (folder / "checkpoints" / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(2**16))
    elif kind == "driver killed":
        attempt.root.kill()
    else:
        tree = psutil.Process(attempt.root.pid).children(recursive=True)
        next(p for p in tree if KILLED[kind] in title_of(p)).kill()


def watch(attempt: Attempt, bar: Any, until: float = math.inf) -> int | None:
    """Wait for step ``until``; the last finished step, or None if the run ended first."""
    while attempt.root.poll() is None:
        time.sleep(0.2)
        step = max(attempt.steps(), default=0)
        if step > bar.n:
            bar.update(step - bar.n)
        if step >= until:
            return step
    return None


def disturb(attempt: Attempt, folder: Path, kind: str, at: int, delay: float, bar: Any) -> int | None:
    """Cause a fault after step ``at`` and wait for the end; the last step, or None if the run ended before the fault."""
    if watch(attempt, bar, at) is None:
        return None
    time.sleep(delay)
    cause(kind, attempt, folder)
    attempt.root.wait(timeout=600)
    (folder / "checkpoints" / "filler").unlink(missing_ok=True)
    (folder / "hang").unlink(missing_ok=True)
    return max(attempt.steps())


def soak(folder: Path, steps: int, gap: tuple[int, int], seed: int) -> tuple[list[Fault], str]:
    """The faults of a run to its end, and its last output if it failed without one."""
    rng, faults = random.Random(seed), list[Fault]()
    kinds = ["driver killed", "engine killed", "policy killed", "reward hung"]
    with disk(folder / "checkpoints") as small, tqdm(total=steps, unit="step", desc="Under faults") as bar:
        turns = itertools.cycle(rng.sample(kinds + ["disk full"] * small, len(kinds) + small))
        reached, hit = 0, ""
        while True:
            attempt = Attempt(command(folder, steps, resume=bool(hit)), folder / "log.txt")
            try:
                kind = next(turns)
                stopped = disturb(attempt, folder, kind, reached + rng.randint(*gap), rng.uniform(0, 1.5), bar)
            finally:
                attempt.kill()
            said = attempt.output()
            if stopped is None and attempt.never_started():
                continue
            if hit:
                found = RESUMED.search(said)
                faults.append(Fault(hit, reached, int(found.group(1)) if found else 0))
            if stopped is None or attempt.root.returncode == 0:
                break
            reached, hit = max(stopped, faults[-1].resumed if faults else 0), kind
            bar.set_postfix_str(f"{len(faults) + 1} faults")
        if small:
            shutil.copytree(folder / "checkpoints", folder / "kept")
    if small:
        shutil.rmtree(folder / "checkpoints")
        (folder / "kept").rename(folder / "checkpoints")
    return faults, "" if attempt.root.returncode == 0 else said[-2000:]


def undisturbed(folder: Path, steps: int) -> float:
    """Run without faults; the seconds it took."""
    attempt = Attempt(command(folder, steps, resume=False), folder / "log.txt")
    with tqdm(total=steps, unit="step", desc="Undisturbed", position=1) as bar:
        try:
            watch(attempt, bar)
        finally:
            attempt.kill()
    if attempt.root.returncode:
        raise RuntimeError(f"the undisturbed run ended with status {attempt.root.returncode}, see {folder}/log.txt")
    return time.perf_counter() - attempt.started


def page(figures: dict[str, Any]) -> list[str]:
    """The report as Markdown."""
    rows = figures["faults"]
    return [
        *header("A long run under random faults", figures),
        f"**{figures['steps']} steps, {len(rows)} faults: {figures['steps_lost']} steps were run again, "
        f"{len(figures['differences'])} differences from the undisturbed run.**",
        "",
        f"Undisturbed {figures['seconds_undisturbed']} s, under faults {figures['seconds']} s, both at the same time.",
        "A checkpoint every 5 steps.",
        "",
        *table(
            ["fault", "times", "steps run again"],
            [
                (kind, str(n), str(sum(f["step"] - f["resumed"] for f in rows if f["kind"] == kind)))
                for kind, n in Counter(f["kind"] for f in rows).most_common()
            ],
        ),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="draws the faults")
    parser.add_argument("--out", type=Path, default=Path("runs/soak"), help="the runs are kept here; emptied first")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Both runs, and their differences."""
    steps, gap = (12, (3, 5)) if args.quick else (args.steps // STEPS_PER_EPISODE * STEPS_PER_EPISODE, (10, 40))
    out = args.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    (out / "undisturbed").mkdir(parents=True)
    (out / "disturbed").mkdir()
    with ThreadPoolExecutor(1) as thread:  # both at the same time, on one core each
        alone = thread.submit(undisturbed, out / "undisturbed", steps)
        started = time.perf_counter()
        faults, failure = soak(out / "disturbed", steps, gap, args.seed)
        seconds = time.perf_counter() - started
        seconds_undisturbed = alone.result()
    places = [out / name / kind for name in ("disturbed", "undisturbed") for kind in ("checkpoints", "model")]
    found = [failure] if failure else differences(*places)
    figures = about() | {
        "ok": not found and len(faults) > 0,
        "steps": steps,
        "faults": [asdict(fault) for fault in faults],
        "steps_lost": sum(fault.step - fault.resumed for fault in faults),
        "differences": found[:20],
        "seconds": round(seconds),
        "seconds_undisturbed": round(seconds_undisturbed),
    }
    write_report(args.report, figures, page(figures))
    return figures
