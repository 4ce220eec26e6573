"""Kill and resume a training run at random moments, and compare it with an uninterrupted run.

Every run is the real command (Ray, DeepSpeed, vLLM) on the testbed with full determinism. A kill is SIGKILL to all of
the run's processes. A chain starts a run, kills it several times, lets the last attempt finish, and compares database, final
weights and the optimizer of the last checkpoint with those of the uninterrupted run, bit for bit. Where these depend on the
clock (``BY_INVARIANTS``), it checks invariants that hold whatever the clock does (``lab/invariants.py``).

    make bench NAME=kill-resume QUICK=1                            three kills
    python -m lab.bench kill-resume --kills 100 --parallel 2 --report lab/results/DATE-kill-resume

The figures: kills, differences, and where the kills hit; "ok" if nothing differs and nothing failed.
"""

import argparse
import itertools
import json
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lab.attempt import Attempt
from lab.bench import about, header, table, write_report
from lab.command import TRAINING, train_command
from lab.compare import differences
from lab.invariants import violations
from lab.moments import Plan, draw_plan, phase, wait_for
from lab.runs import digest_of_code
from lab.testbed import model_dir, write_dataset

CHECKS = ("kill_resume", "compare", "invariants", "attempt", "moments")
"""The modules that kill, resume and compare."""
QUESTIONS = 16
FAILED = 3  # chains after which no more are begun
AHEAD = {"train.async_enable": True, "rpo.replay.share": 0.5}
BASE = {
    **TRAINING,
    "data.max_len": 640,
    "eval.steps": 3,
    "eval.temperature": 1.0,
    "eval.n_samples_per_prompt": 2,
    "rollout.batch_size": 4,
    "rollout.n_samples_per_prompt": 4,
    "rollout.micro_batch_size": 8,
    "train.batch_size": 16,
    "train.micro_batch_size": 8,
    "train.num_episodes": 2,
    "train.full_determinism_enable": True,
    "actor.adam.lr": 1e-4,
    "ckpt.save_steps": 2,
    "ckpt.max_num": 2,
}
CONFIGURATIONS = {
    # The paper's data order: 8 steps of 4 are two episodes of 16 questions.
    "bulk": {"rpo.init.mode": "bulk", "rpo.replay.share": 0},
    # Groups without signal are replaced, so steps take different numbers of questions, even across the end of an episode.
    "dynamic": {
        "algo.dynamic_filtering_enable": True,
        "rpo.shaping.alpha": 0.01,
        "rpo.replay.share": 0.5,
        "rpo.tail": 0.7,
    },
    # Several paths per question, each scored by the engine before it is cut.
    "verify": {"rpo.method": "verify", "rpo.replay.share": 0.5},
    # Two optimizer steps per batch, in an order drawn from the seed, with their own old log-probs.
    "updates": {"rpo.method": "verify", "train.batch_size": 8, "train.micro_batch_size": 4, "rpo.replay.share": 0.5},
    # State that OpenRLHF's checkpoints omit or store separately: moving average, critic, adaptive KL coefficient.
    "critic": {
        "algo.advantage.estimator": "gae",
        "critic.model_name_or_path": model_dir("main"),
        "critic.num_gpus_per_node": 1,
        "ref.num_gpus_per_node": 1,
        "algo.kl.init_coef": 0.01,
        "algo.kl.target": 0.1,
        "train.enable_ema": True,
    },
    # A batch is in flight at every checkpoint.
    "async": {"rpo.method": "rpo", **AHEAD},
    "async-verify": {"rpo.method": "verify", **AHEAD},
    # In so little data a batch waits for questions in flight, too, half made.
    "async-dynamic": {"rpo.method": "rpo", "algo.dynamic_filtering_enable": True, **AHEAD},
    # Samples are stopped at every weight sync. In data order, so that every question has its turn in both episodes.
    "partial": {
        "rpo.method": "verify",
        **AHEAD,
        "rpo.replay.share": 0,
        "train.async_queue_size": 2,
        "train.partial_rollout_enable": True,
    },
}
BY_INVARIANTS = {"partial"}


@dataclass
class Kill:
    """A kill: its plan, the phase and step it hit, and seconds since the start."""

    plan: str
    phase: str
    step: int
    seconds: float


@dataclass
class Result:
    """A finished chain."""

    configuration: str
    number: int
    kills: list[Kill] = field(default_factory=list)
    repeated_starts: int = 0  # Ray failed to start on an overloaded machine, and the command was repeated
    differences: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def command(configuration: str, folder: Path, resume: bool) -> list[str]:
    train, held_out = write_dataset("main", folder / "data", QUESTIONS, 4, seed=0)
    options = {
        **BASE,
        **CONFIGURATIONS[configuration],
        "actor.model_name_or_path": model_dir("main"),
        "data.prompt_dataset": train,
        "eval.dataset": held_out,
        "ckpt.path": folder / "checkpoints",
        "ckpt.output_dir": folder / "model",
        **({"ckpt.load_enable": True} if resume else {}),
    }
    return train_command(options)


def run_chain(configuration: str, number: int, kills: int, out: Path, on_kill: Callable[[], object]) -> Result:
    """Kill and resume a run at most ``kills`` times, let it finish, compare. The folder is kept if something differs."""
    rng = random.Random(f"{configuration} {number}")
    folder = out / f"chain-{configuration}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result, started = Result(configuration, number), time.perf_counter()
    for n in itertools.count():
        attempt = Attempt(command(configuration, folder, resume=n > 0), folder / "log.txt")
        # After its last kill a chain runs to its end.
        plan = draw_plan(rng, folder, n == 0) if len(result.kills) < kills else Plan("none", lambda attempt: False, 0)
        try:
            reached = wait_for(attempt, plan, timeout=900)
            calls = attempt.calls()
        finally:
            attempt.kill()
        if not reached and attempt.never_started() and result.repeated_starts < 10:
            result.repeated_starts += 1
            continue
        if not reached:
            break
        name, step = phase(folder, calls, plan, BASE["eval.steps"])
        result.kills.append(Kill(plan.name, name, step, round(time.perf_counter() - attempt.started, 1)))
        on_kill()
    if attempt.root.returncode:
        tail = "\n".join(attempt.output().splitlines()[-15:])
        result.failures.append(f"attempt {n + 1} ended with status {attempt.root.returncode}: {tail}")
    else:
        result.differences = compare(configuration, folder, out / f"uninterrupted-{configuration}-0")
    result.seconds = round(time.perf_counter() - started, 1)
    folder.with_suffix(".json").write_text(json.dumps(asdict(result), indent=1))
    if not result.differences and not result.failures:
        shutil.rmtree(folder)
    return result


def compare(configuration: str, folder: Path, other: Path) -> list[str]:
    """A sentence per difference from the ``other`` run, or per broken invariant."""
    if configuration in BY_INVARIANTS:
        return violations(folder)
    return differences(folder / "checkpoints", folder / "model", other / "checkpoints", other / "model")


def run_uninterrupted(configuration: str, folder: Path) -> None:
    done = folder / "done"
    if done.exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    attempt = Attempt(command(configuration, folder, resume=False), folder / "log.txt")
    try:
        attempt.root.wait(timeout=900)
    finally:
        attempt.kill()
    if attempt.never_started():
        return run_uninterrupted(configuration, folder)
    if attempt.root.returncode:
        raise RuntimeError(f"the uninterrupted run ended with status {attempt.root.returncode}, see {folder}/log.txt")
    done.touch()


def read_result(file: Path) -> Result:
    data = json.loads(file.read_text())
    return Result(**data | {"kills": [Kill(**kill) for kill in data["kills"]]})


def run_all(args: argparse.Namespace, out: Path) -> tuple[list[Result], dict[str, list[str]]]:
    """Run chains up to ``--kills`` kills, and compare two uninterrupted runs of each configuration as a control.

    Finished runs and chains in ``out`` count and are not repeated.
    """
    copies = 1 if args.quick else 2
    jobs = [(c, out / f"uninterrupted-{c}-{i}") for c in args.configurations for i in range(copies)]
    with ThreadPoolExecutor(args.parallel) as pool:
        list(tqdm(pool.map(lambda job: run_uninterrupted(*job), jobs), total=len(jobs), unit="run", desc="Uninterrupted"))
    pairs = {c: [folder for name, folder in jobs if name == c] for c in args.configurations}
    control = {c: compare(c, folders[1], folders[0]) for c, folders in pairs.items() if copies == 2}
    numbers, lock, results = itertools.count(), threading.Lock(), []
    bar = tqdm(total=args.kills, unit="kill", desc="Kills")

    def work(_worker: int) -> None:
        while True:
            with lock:
                done = sum(len(r.kills) for r in results)
                number = next(numbers)
            if done >= args.kills or sum(bool(r.failures) for r in results) >= FAILED:
                return
            configuration = args.configurations[number % len(args.configurations)]
            file = out / f"chain-{configuration}-{number}.json"
            kills = 3 if args.quick else random.Random(f"kills {number}").randint(8, 14)
            if file.exists():
                result = read_result(file)
                bar.update(len(result.kills))
            else:
                result = run_chain(configuration, number, min(kills, args.kills - done), out, bar.update)
            with lock:
                results.append(result)
            bar.set_postfix_str(f"{sum(bool(r.differences or r.failures) for r in results)} chains differ or failed")

    with bar, ThreadPoolExecutor(args.parallel) as pool:
        list(pool.map(work, range(args.parallel)))
    return results, control


def page(figures: dict[str, Any], results: list[Result]) -> list[str]:
    """The report as Markdown: the result, where the kills hit, and a table of chains."""
    kills = [kill for result in results for kill in result.kills]
    steps = {name: [k.step for k in kills if k.phase == name] for name in figures["phases"]}
    control = ", ".join(f"{c}: {n}" for c, n in figures["control_differences"].items()) or "not looked at"
    return [
        *header("Runs killed and resumed", figures),
        f"**{figures['kills']} kills in {figures['chains']} chains: {figures['differences']} differences, "
        f"{figures['failed_resumes']} failed resumes.**",
        "",
        "Every run is the real command on the testbed (Ray, DeepSpeed, vLLM) with full determinism: 4 of 16 questions per",
        "step, 4 samples each, two episodes, a checkpoint every 2 steps, an evaluation every 3. `bulk` samples the initial",
        "cache before training and follows the paper's data order across the end of the episode; `dynamic` replaces groups",
        "without signal, so its data end at an unplanned step; `async` generates a batch while the step before trains;",
        "`partial` also stops samples at every weight sync. A kill is SIGKILL to all processes of the run. The last attempt",
        "of a chain runs to its end.",
        *how_compared(figures["configurations"]),
        f"Of two uninterrupted runs the same comparison finds: {control}. Ray failed to start",
        f"{figures['repeated_starts']} times on the loaded machine; those starts were repeated and do not count.",
        "",
        *table(
            ["the run was in", "kills", "after steps"],
            [(name, str(n), f"{min(steps[name])} to {max(steps[name])}") for name, n in figures["phases"].items()],
        ),
        "",
        *table(
            ["chain", "configuration", "kills", "differences", "failed resumes"],
            [
                (str(r.number), r.configuration, *(str(len(x)) for x in (r.kills, r.differences, r.failures)))
                for r in sorted(results, key=lambda r: r.number)
            ],
        ),
    ]


def how_compared(configurations: Iterable[str]) -> list[str]:
    """What a chain's last attempt is compared with."""
    exact, clock = ([c for c in configurations if (c in BY_INVARIANTS) is by] for by in (False, True))
    lines = [
        f"Bit for bit ({', '.join(exact)}): every row of the database (except times), every tensor of the final model, and",
        "weights, optimizer and states of the last checkpoint are compared with those of the uninterrupted run.",
    ] * bool(exact)
    lines += [
        f"By invariants ({', '.join(clock)}), because the clock decides which policy samples what: steps, turns of the",
        "questions, tokens, parents, and who sampled what (`lab/invariants.py`). One that is broken counts as a difference.",
    ] * bool(clock)
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--configurations", nargs="+", default=["bulk", "dynamic"], choices=list(CONFIGURATIONS))
    parser.add_argument("--parallel", type=int, default=1, help="chains at a time; a run takes about 5 GB of memory")
    words = "finished runs and chains are kept here, by code"
    parser.add_argument("--out", type=Path, default=Path("runs/kill_resume"), help=words)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Run the chains and report."""
    if args.quick:
        args.kills, args.configurations = min(args.kills, 3), args.configurations[:1]
    started = time.perf_counter()
    checks = [Path(__file__).with_name(f"{name}.py") for name in CHECKS]  # runs of other code prove nothing about this
    results, control = run_all(args, args.out.resolve() / digest_of_code(*checks))
    kills = [kill for result in results for kill in result.kills]
    differing, failed = sum(len(r.differences) for r in results), sum(len(r.failures) for r in results)
    figures = about() | {
        "ok": not differing and not failed and not any(control.values()),
        "kills": len(kills),
        "differences": differing,
        "failed_resumes": failed,
        "phases": dict(Counter(kill.phase for kill in kills).most_common()),
        "chains": len(results),
        "repeated_starts": sum(r.repeated_starts for r in results),
        "control_differences": {c: len(found) for c, found in control.items()},
        "seconds": round(time.perf_counter() - started),
        "configurations": {c: {k: str(v) for k, v in (BASE | CONFIGURATIONS[c]).items()} for c in args.configurations},
    }
    write_report(args.report, figures | {"runs": [asdict(r) for r in results]}, page(figures, results))
    return figures
