"""What a step takes, by a model of its seconds (``openrlhf_rpo/launch/doctor/seconds.py``), and what runs say of the model.

On GPUs, by rates that others published: 8 and 64 H100, 64 samples a GPU in groups of 8, Qwen2.5's shapes of 1.5B and 7B,
answers with a long tail up to 4,096 and 16,384 tokens; every answer from its first token (GRPO), at most half of a stored
answer cut and generated again (`rpo`), verified answers (`verify`), drafts in the passes that they make faster, and both.
What is reused is assumed, not measured: the page says how. A step that NeMo RL published is beside it.

On this machine: runs of the testbed through the real command. The rates are measured in the runs of one seed on all levels
(full answers, verified ones, drafts), by least squares over their steps. Then the model says how long the steps of other
runs take, of another seed and one more way to generate, from the tokens of their samples. "ok" if all agree within a fifth.

    make bench NAME=plan QUICK=1                                  the GPUs' part alone
    python -m lab.bench plan --report lab/results/DATE-plan
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain, groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab import frontier
from lab.arms import arms
from lab.bench import about, header, table, write_report
from lab.training import in_turn, to_train
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.exchange.text import load_tokenizer
from openrlhf_rpo.launch.doctor import seconds as model
from openrlhf_rpo.launch.doctor.memory import ModelShape
from openrlhf_rpo.launch.doctor.seconds import Cluster, Drafts, Rates, Work
from openrlhf_rpo.run.checkpoints import CACHE_FILE
from openrlhf_rpo.run.samples import FOLDER, sample_files
from openrlhf_rpo.tables import read_rows
from openrlhf_rpo.training.shared_prefix.layout import shared_tokens

SHAPES = {
    "1.5B": ModelShape(1_543_714_304, 28, 1536, 2, 128, 151_936),
    "7B": ModelShape(7_615_616_512, 28, 3584, 4, 128, 152_064),
}
NEMO = ModelShape(8_030_261_248, 32, 4096, 8, 128, 128_256)
PUBLISHED = 97.7
"""Seconds of a step of GRPO: NeMo RL 0.4, performance summary. Llama 3.1 8B, 16 H100, on policy, 2,048 samples, on average
1,060 tokens, at most 4,096; log-probs of the policy and of a reference are computed beside training."""
GROUP, A_GPU, PROMPT = 8, 64, 200
DRAFTS = Drafts(4, 1.5, auto=True)
WAYS = {"full answers": "raft", "verify": "verify_raft", "drafts": "raft", "rpo": "rpo_raft"}
"""Arms of the frontier."""
MEASURED = ("full answers", "verify", "drafts")
"""Their first runs give the rates."""
PHASES = ("rollout", "train", "rest")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--levels", nargs="+", default=["main", "hard"], choices=["main", "hard"])
    parser.add_argument("--steps", type=int, default=12, help="of a run (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs/plan"), help="runs are kept here (default: %(default)s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    figures = about() | {"gpus": on_gpus(), "published": PUBLISHED, "said": sum(nemo().values())}
    if not args.quick:
        figures["runs"] = on_this_machine(args)
        ratios = [one["ratio"] for level in figures["runs"].values() for one in level.values()]
        figures["ok"] = all(abs(ratio - 1) <= 0.2 for ratio in ratios)
    write_report(args.report, figures, page(figures))
    return figures


# ── GPUs ──


def on_gpus() -> list[dict[str, Any]]:
    """Seconds of a step by phase: a row for each number of GPUs, shape, longest answer and way to generate."""
    rows = []
    for gpus, (name, shape), longest in ((g, s, n) for g in (8, 64) for s in SHAPES.items() for n in (4096, 16_384)):
        lengths = model.answers(A_GPU * gpus // GROUP, GROUP, longest, model.MEAN_SHARE * longest)
        ways = {
            "every answer anew": (model.bare(lengths, PROMPT), None),
            "rpo": (model.continued(lengths, PROMPT, 0.75, 0.5), None),
            "verify": (model.verified(lengths, PROMPT, 0.75), None),
            "drafts": (model.bare(lengths, PROMPT), DRAFTS),
            "verify and drafts": (model.verified(lengths, PROMPT, 0.75), DRAFTS),
        }
        for way, (work, drafts) in ways.items():
            taken = step_on(shape, gpus, work, drafts)
            new = float(work.new.mean())
            rows.append({"gpus": gpus, "model": name, "longest": longest, "way": way, "new": new, "seconds": taken})
    return rows


def step_on(shape: ModelShape, gpus: int, work: Work, drafts: Drafts | None, forwards: int = 0) -> dict[str, float]:
    """Seconds by phase on H100s that generate and train in turn, an engine on each."""
    length = PROMPT + float((work.prefix + work.new).mean())
    cluster = Cluster(gpus, gpus, model.sequences(shape, 0.9 * model.GPUS["H100"][2], length))
    return model.phases(work, model.of_gpus(shape, "H100", 1, length, True, gpus), cluster, forwards, drafts)


def nemo() -> dict[str, float]:
    """The model's seconds of the published step."""
    return step_on(NEMO, 16, model.bare(model.answers(2048 // 32, 32, 4096, 1060), PROMPT), None, forwards=2)


# ── Runs on this machine ──


def on_this_machine(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Measured and modelled seconds of runs, by level and way to generate."""
    asked = frontier.asked(out=args.out, questions=64, evaluations=1)
    first, others = {}, {}
    for way, level in product(WAYS, args.levels):
        arm = replace(arms(level)[WAYS[way]], steps=args.steps)
        arm = arm.named(arm.name, {"rpo.log_samples": 64})
        if way == "drafts":
            arm = arm.named("drafts", {"rpo.drafts": "on"})
        if way in MEASURED:
            first[level, way] = frontier.cell(asked, level, arm, 102).job
        others[level, way] = frontier.cell(asked, level, arm, 103).job
    jobs = [runs[at] for at in others for runs in (first, others) if at in runs]
    for _ in in_turn(to_train(jobs)):
        pass
    cluster = Cluster(engines=1, ranks=1, imbalance=1.0)
    rates = fitted([step for job in first.values() for step in steps_of(job.run.folder)], cluster)
    found: dict[str, dict[str, Any]] = {level: {} for level in args.levels}
    for (level, way), job in others.items():
        steps = steps_of(job.run.folder)
        said = [measured_phases(work, rates, cluster, drafts) for work, drafts, _ in steps]
        phases = {name: [sum(taken[name] for *_, taken in steps), sum(one[name] for one in said)] for name in PHASES}
        measured, modelled = (sum(column) for column in zip(*phases.values(), strict=True))
        found[level][way] = {"phases": phases, "measured": measured, "said": modelled, "ratio": modelled / measured}
    return found


def measured_phases(work: Work, rates: Rates, cluster: Cluster, drafts: Drafts | None = None) -> dict[str, float]:
    """``model.phases`` as a run counts them: some groups are generated while others are verified."""
    found = model.phases(work, rates, cluster, drafts=drafts)
    return {"rollout": found["verify"] + found["rollout"], "train": found["train"], "rest": found["rest"]}


Step = tuple[Work, Drafts | None, dict[str, float]]
"""What a step did, and the seconds of its phases."""


def steps_of(folder: Path) -> list[Step]:
    """The steps of a run but for the first, in which engines and kernels are still warming up."""
    checkpoints = folder / "checkpoints"
    tokenizer = load_tokenizer(str(folder / "model"), offline=True)
    with PathCache.open_to_read(f"sqlite:///{(checkpoints / CACHE_FILE).resolve()}") as cache:
        records = {record.step: record.metrics for record in cache.records()}
    return [
        of_step(records[step], list(read_rows(file)), tokenizer) for step, file in sample_files(checkpoints / FOLDER)[1:]
    ]


def of_step(metrics: Mapping[str, float], samples: Sequence[Mapping[str, Any]], tokenizer: Any) -> Step:
    groups = [list(group) for _, group in groupby(samples, key=lambda row: row["question_id"])]

    def column(of: Any) -> np.ndarray:
        return np.array([[of(row) for row in group] for group in groups], float)

    def ids(row: Mapping[str, Any]) -> torch.Tensor:
        before = tokenizer([row["prompt"], row["prefix"]], add_special_tokens=False)["input_ids"]
        return torch.tensor([*chain(*before), *row["response_ids"]])

    prefix, new = column(lambda row: row["prefix_length"]), column(lambda row: row["path_length"] - row["prefix_length"])
    scored = column(lambda row: row["prefix_length"] + row["cut"]) * ("timing/verify" in metrics)
    prompt = metrics["total_length"] - metrics["rpo/path_length"]
    common = bool((prefix == prefix[:, :1]).all())
    # Under RAFT a sample without a reward has no advantage.
    trained = sum(shared_tokens([ids(row) for row in group if row["shaped_reward"]]) for group in groups)
    taken = {"rollout": metrics.get("timing/verify", 0.0) + metrics["timing/rollout"], "train": metrics["timing/train"]}
    taken["rest"] = metrics["timing/step_total"] - sum(taken.values())
    drafts = None
    if drafted := metrics.get("rpo/drafts/tokens"):
        accepted = drafted * metrics["rpo/drafts/accepted"]
        passes = metrics["rpo/generated_tokens"] - accepted
        drafts = Drafts(drafted / passes, accepted / passes)
    return Work(prompt, scored, prefix, new, common, trained), drafts, taken


def fitted(steps: Sequence[Step], cluster: Cluster) -> Rates:
    """The rates that say the seconds of these steps best; none is negative. The model is linear in them."""
    by_phase = {
        "rollout": ("start", "a_pass", "sequence", "draft", "read"),
        "train": ("update", "train"),
        "rest": ("rest",),
    }
    found: dict[str, float] = {field.name: 0.0 for field in fields(Rates)}
    for phase, names in by_phase.items():
        one = [
            [measured_phases(w, Rates(**{name: 1.0}), cluster, drafts)[phase] for name in names] for w, drafts, _ in steps
        ]
        found |= dict(zip(names, not_negative(np.array(one), np.array([taken[phase] for *_, taken in steps])), strict=True))
    return Rates(**found)


def not_negative(matrix: np.ndarray, wanted: np.ndarray) -> list[float]:
    """Least squares without the columns that would get a negative factor, which get 0."""
    used = list(range(matrix.shape[1]))
    while used:
        factors = np.linalg.lstsq(matrix[:, used], wanted, rcond=None)[0]
        if (factors >= 0).all():
            return [float(factors[used.index(i)]) if i in used else 0.0 for i in range(matrix.shape[1])]
        used.pop(int(factors.argmin()))
    return [0.0] * matrix.shape[1]


# ── The report ──


def page(figures: Mapping[str, Any]) -> list[str]:
    """The report as Markdown."""
    lines = header("What a step takes, by a model of its seconds", dict(figures))
    lines += [
        "Nothing here was run on a GPU. H100s that generate and train in turn, an engine on each, "
        f"{A_GPU} samples a GPU in groups of {GROUP}, log-normal lengths with a mean of {model.MEAN_SHARE} of the longest. "
        f"Assumed: 0.75 of the groups go on from stored paths, `verify` keeps {model.KEPT} of a path, and of "
        f"{DRAFTS.tokens:g} drafted tokens {DRAFTS.accepted:g} are accepted. Every sample teaches.",
        "",
    ]
    head = ["GPUs", "model", "longest", "way", "new tokens", "verify", "rollout", "train", "rest", "step, s", "times faster"]
    rows, plain = [], 0.0
    for row in figures["gpus"]:
        taken = row["seconds"]
        total = sum(taken.values())
        plain = total if row["way"] == "every answer anew" else plain
        parts = [f"{taken[name]:.1f}" for name in ("verify", "rollout", "train", "rest")]
        case = [str(row["gpus"]), row["model"], f"{row['longest']:,}", row["way"], f"{row['new']:,.0f}"]
        rows.append([*case, *parts, f"{total:.0f}", f"{plain / total:.2f}"])
    lines += table(head, rows)
    lines += [
        "",
        "The step of GRPO that NeMo RL 0.4 published (Llama 3.1 8B, 16 H100, 2,048 samples of 1,060 tokens): "
        f"{figures['published']} s; the model says {figures['said']:.1f}.",
        "",
    ]
    for level, ways in figures.get("runs", {}).items():
        lines += [
            f"## Runs on this machine, level {level}",
            "",
            "Seconds of all steps, measured (as the model says):",
            "",
        ]
        rows = []
        for way, one in ways.items():
            parts = [f"{measured:.1f} ({said:.1f})" for measured, said in one["phases"].values()]
            rows.append([way, *parts, f"{one['measured']:.1f} ({one['said']:.1f})", f"{one['ratio']:.2f}"])
        lines += [*table(["way", *PHASES, "together", "ratio"], rows), ""]
    return lines
