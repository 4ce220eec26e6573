"""Whether samples with drafts equal those without, and follow the policy: through the engines of a run.

Two engines, one with ``--rpo.drafts on`` and one without, get the same groups: every start, temperature and top_p below,
with a short length limit. Stored paths are drawn at temperature 1.3, as if written by another policy whose log-probs are
known; samples start from a part of a path, and the whole path is a draft.

Every new token is placed in the policy's distribution, recomputed with transformers: u is uniform over the token's
probability, stacked above that of all more likely tokens. If samples follow the policy, all u are independent and uniform,
whatever the text; a chi-square test with 100 bins says how likely the counts are.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from tqdm import tqdm

from lab.bench import table
from lab.residual import p_value
from openrlhf_rpo import upstream
from openrlhf_rpo.algo.methods import Cut
from openrlhf_rpo.algo.methods.prefixes import choose_prefixes
from openrlhf_rpo.algo.methods.verify import Verify
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.evaluation.session import training_args
from openrlhf_rpo.launch.cluster import choose_device, connect
from openrlhf_rpo.rollout.requests import Generated, GroupRequest, Request, ScoreRequest
from openrlhf_rpo.rollout.unfinished import begin, whole
from openrlhf_rpo.types import LogProbs, Prefix
from openrlhf_rpo.types import Path as StoredPath

STORED, LONGEST, LIMIT, BINS = 8, 500, 16, 100
"""Stored paths per question, the longest in tokens, most new tokens per sample, bins of the test."""
WRITTEN_AT = 1.3
"""The temperature of stored paths."""
LAWS = ((1.0, 1.0), (0.7, 1.0), (1.0, 0.9), (1.4, 0.95))  # temperature, top_p
SETTINGS = [(start, *law) for start in ("bare", "half", "end") for law in LAWS] + [("verified", 1.0, 1.0)]

COUNTED = ("samples", "tokens", "drafted", "accepted", "equal", "repeated", "asked_again")

Samples = list[list[Generated]]


class Engines:
    """Ray with an engine that drafts and one that does not."""

    def __init__(self, model: Path, data: Path, n_tokens: int) -> None:
        words = f"--data.max_len 768 --vllm.num_engines 2 --rpo.drafts on --rpo.drafts.tokens {n_tokens}"
        args = training_args(str(model), str(data), words.split())
        device = choose_device(args)
        from openrlhf_rpo.rollout.engine import engine_for

        connect(args, device)
        args.vllm.num_engines = 1
        of_run = RPOConfig.from_namespace(args.rpo), args.ds.param_dtype
        kinds = {"plain": engine_for(*of_run, trains=False), "drafts": engine_for(*of_run)}
        self.of = {name: upstream.create_engines(args, kind)[0] for name, kind in kinds.items()}

    def answer(self, name: str, groups: Sequence[GroupRequest]) -> tuple[Samples, int, int]:
        """The samples of each group, and how many tokens were drafted and accepted."""
        found = ray.get([self.of[name].generate_group.remote(group) for group in groups])
        counts = sum((Counter(one.counts) for one in found), Counter())
        return [one.samples for one in found], counts["drafted"], counts["accepted"]

    def log_probs(self, questions: Sequence[Sequence[int]], paths: Samples) -> list[list[LogProbs]]:
        """Log-probs of each path's tokens under the policy."""
        asked = [
            [ScoreRequest((*q, *path.token_ids), len(path.token_ids)) for path in group]
            for q, group in zip(questions, paths, strict=True)
        ]
        return ray.get([self.of["plain"].score_group.remote(group) for group in asked])


def starts_of(paths: Samples, log_probs: list[list[LogProbs]]) -> dict[str, list[Sequence[Prefix]]]:
    """Where the samples of each question start, by the name of the start."""
    starts: dict[str, list[Sequence[Prefix]]] = {"bare": [], "half": [], "end": [], "verified": []}
    generator = random.Random(0)
    for group, now in zip(paths, log_probs, strict=True):
        ids = [path.token_ids for path in group]
        starts["bare"].append([Prefix() for _ in ids])
        starts["half"].append([Prefix(path[: len(path) // 2]) for path in ids])
        starts["end"].append([Prefix(path[:-8]) for path in ids])
        starts["verified"].append(verified([(path.token_ids, path.log_probs) for path in group], now, generator))
    return starts


def verified(
    paths: Sequence[tuple[Sequence[int], Sequence[float]]], now: Sequence[tuple[float, ...]], generator: random.Random
) -> tuple[Prefix, ...]:
    """The prefixes that ``--rpo.method verify`` keeps of paths (tokens, and the log-probs they were drawn with).

    Of a path that it accepts whole, where a run draws nothing, all but the end token.
    """
    stored = tuple(StoredPath("", tuple(ids), tuple(then), "stop", 0, 0) for ids, then in paths)
    prefixes = choose_prefixes(Verify(), Cut(stored, generator, log_probs=tuple(now)), LONGEST)
    return tuple(whole(sample, 0).prefix for sample in begin(prefixes))


class Law:
    """Where new tokens stand in the policy's distribution, recomputed with transformers in float32."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.random = torch.Generator().manual_seed(0)

    def add(self, asked: Sequence[Request], given: Sequence[Generated]) -> tuple[np.ndarray, float]:
        """The counts of all tokens, [BINS], and the largest difference of a log-prob from the engine's."""
        texts = [torch.tensor((r.token_ids + s.token_ids).tolist()) for r, s in zip(asked, given, strict=True)]
        with torch.no_grad():
            logits = self.model(torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)).logits.double()
        rows = [i for i, sample in enumerate(given) for _ in sample.token_ids]
        places = [len(r.token_ids) - 1 + t for r, s in zip(asked, given, strict=True) for t in range(len(s.token_ids))]
        law = _processed(logits[rows, places], asked[0].temperature, asked[0].top_p)
        tokens = torch.tensor([token for sample in given for token in sample.token_ids])[:, None]
        reported = torch.tensor([x for sample in given for x in sample.log_probs], dtype=torch.float64)
        error = (law.gather(1, tokens)[:, 0].log() - reported).abs().max().item()
        first = np.cumsum([0, *[len(sample.token_ids) for sample in given]])
        for place, request in zip(first, asked, strict=False):
            if request.rejected:
                law[place, request.rejected.token_id] *= request.rejected.weight
                law[place] /= law[place].sum()
        own = law.gather(1, tokens)
        u = (law * (law > own)).sum(1) + own[:, 0] * torch.rand(len(own), generator=self.random, dtype=torch.float64)
        return np.bincount((u * BINS).long().clamp(0, BINS - 1).numpy(), minlength=BINS), error


def _processed(logits: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """Probabilities at a temperature of the most likely tokens that together have ``top_p``."""
    law = (logits / temperature).softmax(-1)
    ordered, order = law.sort(descending=True)
    beyond = ordered.cumsum(-1) - ordered >= top_p
    law = law.masked_fill(torch.zeros_like(beyond).scatter(1, order, beyond), 0.0)
    return law / law.sum(-1, keepdim=True)


def check(model: Path, data: Path, n_tokens: int, n_questions: int, n_samples: int, total: int) -> dict[str, Any]:
    """Compare at least ``total`` samples, ``n_samples`` for each of ``n_questions`` per round. Needs its own process."""
    from transformers import AutoTokenizer

    tokenizer, engines, law = AutoTokenizer.from_pretrained(model), Engines(model, data, n_tokens), Law(model)
    try:
        lines = [json.loads(line)["question"] for line in data.read_text().splitlines()[:n_questions]]
        questions = [tokenizer(line, add_special_tokens=False).input_ids for line in lines]
        written = [
            GroupRequest([Request((*q,), LONGEST, 10**9 + STORED * i + j, WRITTEN_AT) for j in range(STORED)], len(q))
            for i, q in enumerate(questions)
        ]
        paths, _, _ = engines.answer("plain", written)
        starts = starts_of(paths, engines.log_probs(questions, paths))
        rounds = -(-total // (len(SETTINGS) * n_questions * n_samples))
        bar, by = tqdm(total=rounds * len(SETTINGS), desc="Samples twice", unit="round"), {}
        for k, setting in enumerate(SETTINGS):
            asked = _rounds(questions, paths, starts[setting[0]], setting, range(k * rounds, (k + 1) * rounds), n_samples)
            by["{}, temperature {}, top_p {}".format(*setting)] = compare(engines, law, asked, bar)
        bar.close()
    finally:
        ray.shutdown()
    counts = np.sum([found.pop("counts") for found in by.values()], axis=0)
    sums = {name: sum(found[name] for found in by.values()) for name in COUNTED}
    worst = max(found["log_prob_error"] for found in by.values())
    return {**sums, "p_value": p_value(counts, counts.mean()), "log_prob_error": worst, "by": by}


def _rounds(
    questions: Sequence[Sequence[int]],
    paths: Samples,
    starts: list[Sequence[Prefix]],
    setting: Any,
    numbers: range,
    n_samples: int,
) -> Iterator[list[GroupRequest]]:
    """The groups of each round, with seeds of their own."""
    _, temperature, top_p = setting
    for number in numbers:
        groups = []
        for i, (question, stored) in enumerate(zip(questions, paths, strict=True)):
            requests = []
            for j in range(n_samples):
                prefix = starts[i][j % len(starts[i])]
                seed = (number * len(questions) + i) * n_samples + j
                prompt = *question, *prefix.token_ids
                requests.append(Request(prompt, LIMIT, 2 * seed, temperature, top_p, prefix.rejected))
            drafts = [np.array(path.token_ids, np.int32).tobytes() for path in stored]
            groups.append(GroupRequest(requests, len(question), drafts))
        yield groups


def compare(engines: Engines, law: Law, rounds: Iterator[list[GroupRequest]], bar: tqdm) -> dict[str, Any]:
    """Both engines' samples of one setting; the last round is repeated with drafts."""
    counts, total = np.zeros(BINS, int), dict.fromkeys(COUNTED, 0)
    error = 0.0
    groups: list[GroupRequest] = []
    found: Samples = []
    for groups in rounds:
        plain, _, _ = engines.answer("plain", groups)
        found, drafted, accepted_ = engines.answer("drafts", groups)
        for group, ours, theirs in zip(groups, found, plain, strict=True):
            new, difference = law.add(group.samples, ours)
            counts, error = counts + new, max(error, difference)
            total["samples"] += len(ours)
            total["tokens"] += sum(len(sample.token_ids) for sample in ours)
            total["equal"] += sum(a == b for a, b in zip(ours, theirs, strict=True))
        total["drafted"] += drafted
        total["accepted"] += accepted_
        bar.update()
    again, _, _ = engines.answer("drafts", groups)
    total["repeated"] = sum(a == b for one, other in zip(found, again, strict=True) for a, b in zip(one, other, strict=True))
    total["asked_again"] = sum(map(len, groups))
    return {**total, "p_value": p_value(counts, counts.mean()), "log_prob_error": error, "counts": counts}


def holds(found: dict[str, Any]) -> bool:
    """Whether all samples are equal, their log-probs are the policy's to 1e-3, and the test does not reject."""
    equal = found["equal"] == found["samples"] and found["repeated"] == found["asked_again"]
    return equal and found["log_prob_error"] < 1e-3 and found["p_value"] > 0.001


def page(found: dict[str, Any]) -> list[str]:
    """The part of a report, as Markdown."""
    rows = [
        (
            name,
            f"{one['samples']:,}",
            f"{one['equal']:,}",
            f"{one['repeated']:,} of {one['asked_again']:,}",
            f"{one['tokens']:,}",
            f"{one['accepted'] / max(1, one['drafted']):.0%}",
            f"{one['p_value']:.3f}",
        )
        for name, one in [*found["by"].items(), ("together", found)]
    ]
    told = (
        f"Samples of at most {LIMIT} tokens by the last policy; starts and drafts are answers at temperature {WRITTEN_AT}. "
        "Equal: tokens and log-probs with drafts and without; repeated: twice with drafts. p: chi-square, whether tokens "
        "follow the distribution that transformers computes, whose log-probs differ from the engine's by at most "
        f"{found['log_prob_error']:.1e}."
    )
    return [told, "", *table(["start", "samples", "equal", "repeated", "tokens", "accepted", "p"], rows)]
