"""The error of verified reuse, which guesses the residual, and the cost of the exact residual.

After a rejection, speculative decoding draws from p - min(p, q), which needs q of the whole vocabulary. The cache only has q
of the stored token, and the method `verify` assumes that the other tokens have changed by one factor. Here the policies of a
real run (hard testbed, `verify`, saved every 4 steps) are enumerated: answers are drawn from an earlier policy q, and at
every position the distribution of verified reuse is compared with the later policy p, for the one factor and for a residual
from the stored log-probs of the k most likely tokens. The cost of these log-probs is measured in vLLM: seconds to generate
and to score with k log-probs per token, alternating.

    make bench NAME=residual QUICK=1
    python -m lab.bench residual --report lab/results/DATE-residual

The figures: the share of rejected tokens; by residual, the total variation distance between a token's distribution and the
policy's, and the positions where a chi-square test of 100,000 draws tells them apart (out of 40: every tenth of the 400 with
the most rejections).
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from lab import policies
from lab.bench import about, header, table, write_report
from lab.policies import engine, policy, trained
from lab.runs import digest_of_code

STEPS = (4, 8, 12, 16)
TOPS = (1, 4, 8, 20)
POSITIONS, DRAWS, SIGNIFICANT = 40, 100_000, 0.001
TRAIN = {"rpo.method": "verify", "rollout.n_samples_per_prompt": 4, "train.batch_size": 32}


# ── Error ──


def of_one_factor(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """A token's distribution when a rejected one is replaced by a draw from p without it."""
    kept = np.minimum(p, q)
    law = kept.copy()
    for x in np.nonzero(q > p)[0]:
        others = p.copy()
        others[x] = 0
        law += (q[x] - kept[x]) * others / others.sum()
    return law


def of_top(p: np.ndarray, q: np.ndarray, k: int) -> np.ndarray:
    """The same with q known for its ``k`` most likely tokens; the rest has changed by one factor."""
    kept, known = np.minimum(p, q), np.zeros(len(q), bool)
    known[np.argsort(-q)[:k]] = True
    rest = p[~known].sum()
    guess = np.where(known, q, p * (q[~known].sum() / rest if rest > 0 else 0))
    residual = np.clip(p - guess, 0, None)
    residual = residual if residual.sum() > 0 else p
    return kept + (q - kept).sum() * residual / residual.sum()


RESIDUALS = {"one factor": of_one_factor} | {f"top {k}": lambda p, q, k=k: of_top(p, q, k) for k in TOPS}


def positions(folder: Path, questions: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(p, q) at every position of an answer to each question, drawn from the policy 4 steps (or 8) before p."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    load = partial(AutoModelForCausalLM.from_pretrained, dtype=torch.float32)
    policies = {step: load(policy(folder, step)).eval() for step in STEPS}
    asked = [json.loads(line)["question"] for line in (folder / "data" / "train.jsonl").open()][:questions]
    torch.manual_seed(0)
    for earlier, later in tqdm([(4, 8), (8, 12), (12, 16), (4, 12)], desc="Enumerating", unit="pair"):
        for question in asked:
            prompt = tokenizer(question, return_tensors="pt").input_ids
            with torch.no_grad():
                path = policies[earlier].generate(prompt, do_sample=True, max_new_tokens=300, top_k=0, top_p=1.0)
                both = [policies[s](path).logits[0, prompt.shape[1] - 1 : -1].double().softmax(-1) for s in (later, earlier)]
            yield from zip(*(law.numpy() for law in both), strict=True)


def p_value(counts: np.ndarray, expected: np.ndarray | float) -> float:
    """The p-value of a chi-square test of counts against ``expected``, all above 0."""
    half = [torch.tensor(x / 2, dtype=torch.float64) for x in (len(counts) - 1, ((counts - expected) ** 2 / expected).sum())]
    return float(torch.special.gammaincc(*half))


def told_apart(law: np.ndarray, p: np.ndarray, rng: np.random.Generator) -> bool:
    """Whether ``DRAWS`` draws from ``law`` show that it is not ``p``; rare tokens form one class."""
    drawn, expected = rng.multinomial(DRAWS, law / law.sum()), DRAWS * p / p.sum()
    often = expected >= 5
    drawn, expected = (np.append(x[often], x[~often].sum()) for x in (drawn, expected))
    return p_value(drawn[expected > 0], expected[expected > 0]) < SIGNIFICANT


def errors(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """The share of rejected tokens, and by residual the mean distance and the positions that chi-square finds."""
    rejected = [float((q - np.minimum(p, q)).sum()) for p, q in pairs]
    worst = sorted(range(len(pairs)), key=lambda i: -rejected[i])[: 10 * POSITIONS : 10]
    rng, found = np.random.default_rng(0), {}
    for name, law in {"the policy itself": lambda p, q: p, **RESIDUALS}.items():
        distance = statistics.fmean(float(np.abs(law(p, q) - p).sum() / 2) for p, q in pairs)
        seen = sum(told_apart(law(*pairs[i]), pairs[i][0], rng) for i in worst)
        found[name] = {"distance": distance, "of_rejected": distance / statistics.fmean(rejected), "chi_square_finds": seen}
    return {"tokens": len(pairs), "rejected": statistics.fmean(rejected), "residuals": found}


# ── Cost ──


def costs(folder: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Seconds to generate 32 answers, and to score them, with k log-probs per token; medians and ratios to k = 0."""
    llm = engine(folder / "model")
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    encode = llm.get_tokenizer()
    asked = [encode(json.loads(line)["question"]).input_ids for line in (folder / "data" / "train.jsonl").open()][:32]

    def run(paths: list[list[int]], **params: Any) -> tuple[float, list[Any]]:
        started = time.perf_counter()
        prompts = [TokensPrompt(prompt_token_ids=path) for path in paths]
        outputs = llm.generate(prompts, SamplingParams(detokenize=False, **params), use_tqdm=False)
        return time.perf_counter() - started, outputs

    generate: dict[str, Any] = {"temperature": 1, "max_tokens": 400, "seed": 1}
    _, answers = run(asked, **generate)
    paths = [[*question, *answer.outputs[0].token_ids] for question, answer in zip(asked, answers, strict=True)]
    seconds: dict[str, list[float]] = {}
    for _ in tqdm(range(rounds + 1), desc="Timing", unit="round"):
        for k in (0, 4, 20):
            seconds.setdefault(f"generate, k = {k}", []).append(run(asked, logprobs=k, **generate)[0])
            seconds.setdefault(f"score, k = {k}", []).append(run(paths, max_tokens=1, prompt_logprobs=k)[0])
    figures = {}
    for name, times in seconds.items():
        plain = seconds[f"{name.split(',')[0]}, k = 0"]
        ratios = [a / b for a, b in zip(times[1:], plain[1:], strict=True)]  # the first round warms up
        figures[name] = {
            "seconds": statistics.median(times[1:]),
            "ratio": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
        }
    return figures


def page(figures: dict[str, Any]) -> list[str]:
    """The report as Markdown."""
    found = figures["residuals"]
    return [
        *header("The residual of verified reuse", figures),
        f"{figures['tokens']:,} tokens drawn from the policy 4 or 8 steps before; {figures['rejected']:.2%} are rejected.",
        "",
        *table(
            ["residual", "distance from the policy, a token", "share of the rejected", f"chi-square finds, of {POSITIONS}"],
            [
                (name, f"{f['distance']:.1e}", f"{f['of_rejected']:.2%}", str(f["chi_square_finds"]))
                for name, f in found.items()
            ],
        ),
        "",
        *table(
            ["vLLM, 32 answers", "seconds (median)", "ratio to k = 0 (median, lowest to highest)"],
            [
                (name, f"{f['seconds']:.2f}", f"{f['ratio']:.2f} ({f['lowest']:.2f} to {f['highest']:.2f})")
                for name, f in figures["costs"].items()
            ],
        ),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/residual"), help="trained policies are kept here, by code")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Train once, enumerate, and time."""
    made_by = digest_of_code(Path(__file__), Path(policies.__file__))
    folder = trained("hard", args.out.resolve() / made_by, TRAIN)
    pairs = list(positions(folder, 4 if args.quick else 24))
    figures = about() | errors(pairs) | {"costs": costs(folder, 1 if args.quick else 8)}
    write_report(args.report, figures, page(figures))
    return figures
