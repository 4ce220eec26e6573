"""Rollouts with stored paths as drafts, against the same rollouts without: seconds, and whether the samples are the same.

For each level a run is trained without reuse and saved every 4 steps. The policy of a step answers its training questions
with drafts written by the policy 4 steps earlier (for the base model: by itself, with other seeds), as if from a cache of
that age. Three engines in one process, alternating: plain, `--rpo.drafts on`, `--rpo.drafts auto`; once from the bare
question, once after the first half of a stored path, and once after the part that `--rpo.method verify` keeps.

    make bench NAME=drafts QUICK=1
    python -m lab.bench drafts --report lab/results/DATE-drafts

The figures, by level, weights and start: seconds, the ratio plain to drafts, the seconds saved over all rounds, and how many
`auto` says it saved; tokens drafted and accepted; the samples whose tokens and log-probs are equal bit for bit. Then
100,000 short samples at several starts, temperatures and top_p (`lab/law.py`): equal ones, and the p-value of a chi-square
test that they follow the policy. "ok" if all are equal and follow it.
"""

import argparse
import json
import multiprocessing
import os
import random
import statistics
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from lab import law, policies
from lab.bench import about, header, table, write_report
from lab.policies import SAVED, engine, policy, trained
from lab.runs import digest_of_code
from lab.testbed import model_dir, write_dataset
from openrlhf_rpo.rollout.drafts import speculation

STEPS = (0, 8, 16)
ARMS = {"plain": None, "on": False, "auto": True}  # name -> whether it is thrifty
TRAIN = {"rpo.method": "off", "rollout.n_samples_per_prompt": 8, "train.batch_size": 64, "ckpt.max_num": 16}


def model_at(level: str, folder: Path, step: int) -> Path:
    """The model after ``step`` steps."""
    return policy(folder, step) if step else model_dir(level)


class Engine:
    """vLLM in this process, as a run on a CPU has it."""

    def __init__(self, model: Path, n_tokens: int, thrifty: bool | None) -> None:
        os.environ |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        options: dict[str, Any] = {
            "seed": 1,
            "block_size": 32,
            "max_num_batched_tokens": 8192,
            "enable_chunked_prefill": False,
        }
        self.drafts = thrifty is not None
        if thrifty is not None:
            options["speculative_config"] = speculation.speculative_config(n_tokens, thrifty)
        self.engine = engine(model, **options)

    def encode(self, questions: list[str]) -> list[list[int]]:
        tokenizer = self.engine.get_tokenizer()
        return [tokenizer(question, add_special_tokens=False).input_ids for question in questions]

    def answer(
        self, questions: list[list[int]], starts: list[list[list[int]]], stored: list[list[list[int]]], seed: int
    ) -> tuple[float, list[Any], Counter[str]]:
        """Seconds, each sample's tokens and log-probs, and the sums of ``speculation.forget``.

        ``starts``: the prefix of each sample, question by question.
        """
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        prompts, params = [], []
        for i, (question, prefixes) in enumerate(zip(questions, starts, strict=True)):
            for j, prefix in enumerate(prefixes):
                prompts.append(TokensPrompt(prompt_token_ids=[*question, *prefix]))
                group = {speculation.GROUP: [str(i), len(question)]} if self.drafts else None
                asked = {"temperature": 1.0, "max_tokens": 500, "logprobs": 0, "detokenize": False, "extra_args": group}
                params.append(SamplingParams(seed=seed + 1000 * i + j, **asked))
        started = time.perf_counter()
        if self.drafts:
            for i, paths in enumerate(stored):
                ids = [np.array(path, np.int32).tobytes() for path in paths]
                self.engine.collective_rpc(speculation.remember, args=(str(i), ids))
        outputs = [output.outputs[0] for output in self.engine.generate(prompts, params, use_tqdm=False)]
        counts = Counter[str]()
        for i in range(len(stored) if self.drafts else 0):
            counts.update(self.engine.collective_rpc(speculation.forget, args=(str(i),))[0])
        seconds = time.perf_counter() - started
        samples = [(o.token_ids, [d[t].logprob for t, d in zip(o.token_ids, o.logprobs, strict=True)]) for o in outputs]
        return seconds, samples, counts

    def verified(self, questions: list[list[int]], paths: list[Any]) -> list[list[int]]:
        """The prefixes that the policy keeps of paths with log-probs, one for each question."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        prompts = [TokensPrompt(prompt_token_ids=[*q, *ids]) for q, (ids, _) in zip(questions, paths, strict=True)]
        outputs = self.engine.generate(prompts, SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
        now = []
        for question, (ids, _), output in zip(questions, paths, outputs, strict=True):
            found = zip(ids, output.prompt_logprobs[len(question) :], strict=True)
            now.append(tuple(log_probs[token].logprob for token, log_probs in found))
        return [list(prefix.token_ids) for prefix in law.verified(paths, now, random.Random(0))]


def measure(level: str, folder: Path, step: int, n_tokens: int, size: tuple[int, int, int]) -> dict[str, Any]:
    """The figures of one policy, by start. ``size``: questions, samples of each, rounds."""
    n_questions, n_samples, rounds = size
    engines = {name: Engine(model_at(level, folder, step), n_tokens, thrifty) for name, thrifty in ARMS.items()}
    writer = engines["plain"] if step == 0 else Engine(model_at(level, folder, step - SAVED), n_tokens, None)
    lines = (folder / "data" / "train.jsonl").read_text().splitlines()[:n_questions]
    questions = writer.encode([json.loads(line)["question"] for line in lines])
    bare: list[list[list[int]]] = [[[]] * n_samples for _ in questions]
    _, written, _ = writer.answer(questions, bare, [], seed=10**9)
    stored = [[list(ids) for ids, _ in written[i * n_samples : (i + 1) * n_samples]] for i in range(len(questions))]
    halves = [[paths[0][: len(paths[0]) // 2]] * n_samples for paths in stored]
    starts = {"bare": bare, "half": halves}
    if step:  # paths by the same weights are kept whole
        kept = engines["plain"].verified([q for q in questions for _ in range(n_samples)], written)
        starts["verified"] = [kept[i * n_samples : (i + 1) * n_samples] for i in range(len(questions))]
    return {name: compare(engines, questions, prefixes, stored, rounds) for name, prefixes in starts.items()}


def compare(engines: dict[str, Engine], questions: Any, starts: Any, stored: Any, rounds: int) -> dict[str, Any]:
    """The arms, alternating; the first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    counts = {name: Counter[str]() for name in engines}
    equal = {name: 0 for name in engines}
    n_samples = n_tokens = 0
    for turn in range(rounds + 1):
        plain: list[Any] = []
        for name, arm in engines.items():
            took, samples, found = arm.answer(questions, starts, stored, seed=10**6 * turn)
            plain = plain or samples
            equal[name] += sum(a == b for a, b in zip(samples, plain, strict=True))
            if turn:
                seconds[name].append(took)
                counts[name] += found
        n_samples += len(plain)
        n_tokens += sum(len(ids) for ids, _ in plain)
    arms = {}
    for name, times in seconds.items():
        ratios = [a / b for a, b in zip(seconds["plain"], times, strict=True)]
        arms[name] = {
            "seconds": statistics.median(times),
            "ratio": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
            "drafted": counts[name]["drafted"],
            "accepted": counts[name]["accepted"],
            "saved": sum(seconds["plain"]) - sum(times),
            "said_saved": counts[name]["saved"],
            "equal": equal[name],
        }
    return {"samples": n_samples, "tokens": n_tokens, "arms": arms}


def page(figures: dict[str, Any]) -> list[str]:
    """The report as Markdown."""
    rows = []
    for case, starts in figures["cases"].items():
        for start, found in starts.items():
            for name, arm in found["arms"].items():
                spread = f"{arm['ratio']:.2f} ({arm['lowest']:.2f} to {arm['highest']:.2f})"
                share = f"{arm['accepted'] / arm['drafted']:.0%}" if arm["drafted"] else ""
                equal = f"{arm['equal']:,} of {found['samples']:,}"
                saved = f"{arm['saved']:.1f} ({arm['said_saved']:.1f})" if name == "auto" else ""
                rows.append((case, start, name, f"{arm['seconds']:.2f}", spread, saved, share, equal))
    head = ["policy", "start", "drafts", "seconds (median)", "times faster (median, lowest to highest)"]
    head += ["seconds saved (as told)", "accepted", "equal"]
    return [*header("Stored paths as drafts", figures), *table(head, rows), "", *law.page(figures["law"])]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/drafts"), help="trained policies are kept here, by code")
    parser.add_argument("--tokens", type=int, default=4, help="the longest draft (default: %(default)s)")
    parser.add_argument("--questions", type=int, default=32, help="questions of a rollout (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=8, help="samples of each (default: %(default)s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train each level once, then measure every policy in a process of its own."""
    levels, steps = (("main",), (0,)) if args.quick else (("main", "hard"), STEPS)
    size = (4, 4, 1) if args.quick else (args.questions, args.samples, 5)
    cases: dict[str, Any] = {}
    made_by = digest_of_code(Path(__file__), Path(policies.__file__))
    alone = multiprocessing.get_context("spawn")
    for level in levels:
        folder = args.out.resolve() / made_by / level
        if args.quick:
            write_dataset(level, folder / "data", 64, 8, seed=0)
        else:
            trained(level, folder, TRAIN)
        for step in tqdm(steps, desc=f"Policies of {level}", unit="policy"):
            with ProcessPoolExecutor(1, mp_context=alone) as pool:
                cases[f"{level}, step {step}"] = pool.submit(measure, level, folder, step, args.tokens, size).result()
    with ProcessPoolExecutor(1, mp_context=alone) as pool:  # for the last policy
        data, total = folder / "data" / "train.jsonl", 200 if args.quick else 100_000
        found = pool.submit(law.check, model_at(level, folder, step), data, args.tokens, *size[:2], total).result()
    starts = [start for case in cases.values() for start in case.values()]
    equal = all(arm["equal"] == start["samples"] for start in starts for arm in start["arms"].values())
    figures = about() | {"cases": cases, "law": found, "ok": equal and law.holds(found)}
    write_report(args.report, figures, page(figures))
    return figures
