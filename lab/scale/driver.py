"""What the driver does with the tokens of a step, at the size that users have: 4,096 samples of 16,384 tokens.

Engines and actors wait while the driver reads their answers, verifies stored paths, builds OpenRLHF's experiences and stores
what is new, so its seconds are added to every step. Measured on fewer samples of that length, each stage alone, the median
of several rounds; seconds of a whole step are reckoned from that, as every stage goes over the tokens once.

    make bench NAME=driver QUICK=1
    python -m lab.bench driver --report lab/results/DATE-driver

The figures: by stage, nanoseconds a token (median, least, most) and seconds of a step; bytes a token of samples and of the
experiences made of them, which are alive together.
"""

import argparse
import pickle
import random
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch

from lab.bench import about, header, table, write_report
from openrlhf_rpo.algo.methods.verify import Verify, accepted
from openrlhf_rpo.cache.codec import decode_log_probs, decode_token_ids, encode_log_probs, encode_token_ids
from openrlhf_rpo.rollout.experience import to_experiences
from openrlhf_rpo.rollout.requests import Generated
from openrlhf_rpo.training.experience_maker import cumulated
from openrlhf_rpo.training.shared_prefix.batches import over_ranks
from openrlhf_rpo.types import Group, Prefix, Question, Sample, as_ids, as_log_probs
from openrlhf_rpo.upstream import Experience

GROUP, PROMPT, RANKS, VOCABULARY = 8, 200, 8, 151_936
SAMPLES, TOKENS = 4096, 16_384
"""Of a user's step."""

Stage = Callable[[], Any]


def stages(samples: int) -> dict[str, Stage]:
    """What a step does, by name, on ``samples`` answers of ``TOKENS`` tokens: groups of 8 behind a prompt of 200 tokens."""
    draw = np.random.default_rng(0)
    ids = [as_ids(draw.integers(0, VOCABULARY, TOKENS).tolist()) for _ in range(samples)]
    log_probs = [as_log_probs(-draw.exponential(0.5, TOKENS)) for _ in range(samples)]
    now = [as_log_probs(np.asarray(then) + draw.normal(0, 1e-6, TOKENS)) for then in log_probs]
    answers = pickle.dumps([Generated(*sample, "stop") for sample in zip(ids, log_probs, strict=True)])
    stored = [(encode_token_ids(a), encode_log_probs(b)) for a, b in zip(ids, log_probs, strict=True)]
    question = Question("id", "prompt", "label", prompt_ids=as_ids(range(PROMPT)))
    members = [Sample(Prefix(), a, b, "stop", 1.0, 1.0) for a, b in zip(ids, log_probs, strict=True)]
    groups = [Group(question, tuple(members[i : i + GROUP])) for i in range(0, samples, GROUP)]
    experiences = built(groups)
    rows = [experience.sequences[0] for experience in experiences]
    batches = [Experience.concat_experiences(experiences[i : i + GROUP], 0) for i in range(0, samples, GROUP)]
    return {
        "the engines' answers are read": lambda: pickle.loads(answers),
        "stored paths are read": lambda: [(decode_token_ids(a), decode_log_probs(b)) for a, b in stored],
        "stored paths are verified": lambda: [
            accepted(then, p, 1.0, random.Random(0)) for then, p in zip(log_probs, now, strict=True)
        ],
        "experiences are built": lambda: built(groups),
        "groups are dealt to ranks": lambda: over_ranks(rows, GROUP, RANKS),
        "micro-batches are put together": lambda: [
            Experience.concat_experiences(experiences[i : i + GROUP], 0) for i in range(0, samples, GROUP)
        ],
        "returns are summed": lambda: [cumulated(torch.ones(len(b.sequences), 1), b.action_mask) for b in batches],
        "micro-batches are sent": lambda: pickle.dumps(batches, protocol=5),
        "new paths are stored": lambda: [
            (encode_token_ids(a), encode_log_probs(b)) for a, b in zip(ids, log_probs, strict=True)
        ],
    }


def built(groups: list[Group]) -> list[Experience]:
    return [experience for group in groups for experience in to_experiences(group, Verify())]


def held() -> dict[str, float]:
    """Bytes a token."""
    sample = Sample(Prefix(), as_ids(range(TOKENS)), as_log_probs([0.0]) * TOKENS, "stop", 1.0, 1.0)
    [experience] = built([Group(Question("id", "prompt", "label", prompt_ids=as_ids(range(PROMPT))), (sample,))])
    arrays, tensors = (sample.response_ids, sample.response_log_probs), filter(torch.is_tensor, vars(experience).values())
    return {
        "samples": sum(len(a) * a.itemsize for a in arrays) / TOKENS,
        "experiences": sum(t.nbytes for t in tensors) / (TOKENS + PROMPT),
    }


def seconds(stage: Stage) -> float:
    started = time.perf_counter()
    stage()
    return time.perf_counter() - started


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=128, help="answers that are measured (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Each stage in turn, round by round."""
    if args.quick:
        args.samples, args.rounds = 16, 2
    found = stages(args.samples)
    rounds = [{name: seconds(stage) for name, stage in found.items()} for _ in range(args.rounds)]
    tokens = args.samples * TOKENS
    each = {name: sorted(one[name] / tokens for one in rounds) for name in found}
    figures = about() | {
        "ns_a_token": {name: [1e9 * of(own) for of in (median, min, max)] for name, own in each.items()},
        "seconds": {name: SAMPLES * TOKENS * median(own) for name, own in each.items()},
        "together": SAMPLES * TOKENS * sum(map(median, each.values())),
        "bytes_a_token": held(),
    }
    write_report(args.report, figures, page(figures))
    return figures


def page(figures: dict[str, Any]) -> list[str]:
    """The report as Markdown."""
    rows = [
        [name, f"{middle:.0f} ({least:.0f}-{most:.0f})", f"{figures['seconds'][name]:.1f}"]
        for name, (middle, least, most) in figures["ns_a_token"].items()
    ]
    rows.append(["together", "", f"{figures['together']:.1f}"])
    memory = " and ".join(f"{n:.1f} as {name}" for name, n in figures["bytes_a_token"].items())
    said = (
        f"Seconds are those of {SAMPLES:,} samples of {TOKENS:,} tokens, reckoned from fewer; the driver uses one core. "
        f"A token takes {memory} (bytes)."
    )
    return [
        *header("What the driver does with a step's tokens", figures),
        said,
        "",
        *table(["stage", "ns a token", "s"], rows),
    ]
