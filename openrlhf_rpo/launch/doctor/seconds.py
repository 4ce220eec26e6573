"""A model of a step's seconds, from what every sample reads, generates and trains on, and from hardware rates.

An engine's pass gives every running sequence one token. It takes a fixed time (``Rates.a_pass``: launching kernels,
reading the weights), plus some for each running sequence and for each token of its context (keys and values). So a rollout
takes as long as its longest samples, and a tail of few samples costs nearly as much as a full batch. With drafts, a pass
checks several tokens of each sequence and gives it those that are accepted, plus one.

Rates of GPUs are computed from published figures:

- memory and arithmetic: NVIDIA's data sheets, dense bfloat16;
- the share of arithmetic that training uses (0.40; 0.54 of a forward pass alone): llm-foundry,
  scripts/train/benchmarking/README.md, H100 80GB BF16, 1B to 7B at 4,096 tokens on 8 GPUs: MFU 0.40 to 0.42, HFU 0.54;
- the share of memory bandwidth that decoding uses (0.65): TensorRT-LLM 1.0, performance overview, Llama 3.1 8B on an H100:
  22,714 tokens/s at 128/2048 and 14,325 at 128/4096, which is 0.57 and 0.69;
- 2.5 ms more a pass: Qwen2.5's speed benchmark, vLLM 0.6.3 on an A100, one sequence: 311.55 tokens/s at 0.5B, 183.33
  at 1.5B; with 0.65 of the bandwidth this model says 307 and 207.

They are those of well-tuned programs, so a first run will be slower. ``make bench NAME=plan`` reports what this model says
of published steps, and of runs on a CPU whose rates were measured.
"""

import math
from dataclasses import dataclass

import numpy as np

from openrlhf_rpo.launch.doctor.memory import ModelShape, kv_bytes_per_token
from openrlhf_rpo.rollout.drafts.pace import abreast

GPUS = {  # name -> floating point operations and bytes a second, bytes of memory
    "H100": (989e12, 3.35e12, 80e9),
    "H200": (989e12, 4.8e12, 141e9),
    "A100": (312e12, 2.04e12, 80e9),
    "B200": (2250e12, 8e12, 180e9),
}
MFU, FORWARD, BANDWIDTH, PASS = 0.40, 0.54, 0.65, 2.5e-3
SEQUENCES = 1024
"""Sequences at once: vLLM's offline default on such GPUs."""
SYNC = 25e9
"""Bytes a second from the trainer to the engines: half of a 400 Gb/s network. An assumption."""
SLEEP = 2.0
"""Seconds to wake engines and let them sleep (TRL issue 4086: 0.3 and 1.3 to 1.6 at 52 GiB)."""
DRIVER = 7e-8
"""Seconds a token (``make bench NAME=driver``)."""
IMBALANCE = 1.1
"""The slowest rank's tokens against the mean (``make bench NAME=balance``: 1.02 to 1.19)."""


@dataclass(frozen=True)
class Rates:
    """Rates in seconds.

    An engine's: per pass and, in it, per sequence, token of context (``behind``) and drafted token; per token read. A
    training process's: a token's forward pass, its forward and backward pass, an optimizer step (``update``). Of every
    step: a rollout's ``start``, and the ``rest``. The ``driver``'s: per token.
    """

    a_pass: float = 0.0
    sequence: float = 0.0
    behind: float = 0.0
    draft: float = 0.0
    read: float = 0.0
    forward: float = 0.0
    train: float = 0.0
    update: float = 0.0
    start: float = 0.0
    rest: float = 0.0
    driver: float = 0.0


@dataclass(frozen=True)
class Work:
    """The samples of a step in tokens, each array [groups, samples].

    ``scored``: of stored paths that the engines read to verify them; ``prefix``: kept; ``new``: generated; ``prompt``: of
    every question. ``common``: a group's samples share one prefix. ``trained``: tokens of a training pass, if known; else
    the prompt and a common prefix count once per group. ``read``: engines also read what they generated, as for
    ``--rpo.method verify`` in half precision.
    """

    prompt: float
    scored: np.ndarray
    prefix: np.ndarray
    new: np.ndarray
    common: bool = True
    trained: float | None = None
    read: bool = False


@dataclass(frozen=True)
class Drafts:
    """A pass checks ``tokens`` of every sequence, and ``accepted`` of them are right. ``auto``: only in passes that drafts
    make faster per token."""

    tokens: float
    accepted: float
    auto: bool = False


@dataclass(frozen=True)
class Cluster:
    """``engines`` that each run at most ``sequences`` at a time; ``ranks`` that train, the slowest on ``imbalance`` times
    the mean."""

    engines: int
    ranks: int
    sequences: int = SEQUENCES
    imbalance: float = IMBALANCE


def phases(
    work: Work,
    rates: Rates,
    cluster: Cluster,
    forwards: int = 0,
    drafts: Drafts | None = None,
    passes: int = 1,
    updates: int = 1,
) -> dict[str, float]:
    """Seconds of a step by phase, as ``timing/`` names them; "rest" is everything else.

    ``forwards``: passes over the batch before training (old log-probs, models that only score); ``passes``: over it in
    training, with ``updates`` optimizer steps in all.
    """
    kept = work.prompt + work.prefix + work.new
    shared = (work.prompt + work.prefix[:, :1]) if work.common else np.full((len(kept), 1), work.prompt)
    packed = float((kept - shared).sum() + shared.sum()) if work.trained is None else work.trained
    trained = packed / cluster.ranks * cluster.imbalance
    seconds = {
        "verify": rates.read * float(work.scored.sum() + work.prompt * (work.scored.sum(1) > 0).sum()) / cluster.engines,
        "rollout": rates.start + max(_generating(work, rates, cluster, drafts, e) for e in range(cluster.engines)),
        "log_probs": forwards * rates.forward * trained,
        "train": updates * rates.update + passes * rates.train * trained,
        "rest": rates.rest + rates.driver * float(kept.sum()),
    }
    return {name: float(value) for name, value in seconds.items()}


def _generating(work: Work, rates: Rates, cluster: Cluster, drafts: Drafts | None, engine: int) -> float:
    """Seconds that an engine takes to generate its groups."""
    prefix, new = work.prefix[engine :: cluster.engines], work.new[engine :: cluster.engines]
    if not new.size:
        return 0.0
    # A prompt, and a common prefix, are read once; what verification has read is not read again.
    unread = len(prefix) * work.prompt + float((prefix[:, 0] if work.common else prefix).sum())
    if work.scored.any():
        unread = 0.0
    if work.read:
        unread += float(new.sum())
    running, behind = abreast(new.ravel(), work.prompt + prefix.ravel(), cluster.sequences)
    plain = rates.a_pass + rates.sequence * running + rates.behind * behind
    if drafts is not None:
        with_drafts = (plain + rates.draft * running * drafts.tokens) / (1 + drafts.accepted)
        plain = np.minimum(plain, with_drafts) if drafts.auto else with_drafts
    return rates.read * unread + float(plain.sum())


def of_gpus(shape: ModelShape, gpu: str, per_engine: int, length: float, sleeps: bool, ranks: int) -> Rates:
    """The 16-bit rates of engines of ``per_engine`` GPUs and of a GPU that trains. ``length``: a sequence's mean."""
    flops, bytes_a_second, _ = GPUS[gpu]
    reading = bytes_a_second * BANDWIDTH * per_engine
    # Attention: two products of 2 x hidden operations, with half of the tokens on average.
    forward = 2 * shape.parameters + 2 * shape.layers * shape.hidden * length
    weights = 2 * shape.parameters
    return Rates(
        a_pass=PASS + weights / reading,
        sequence=2 * shape.parameters / (flops * FORWARD * per_engine),
        behind=kv_bytes_per_token(shape, 2) / reading,
        draft=2 * shape.parameters / (flops * FORWARD * per_engine),
        read=forward / (flops * FORWARD * per_engine),
        forward=forward / (flops * FORWARD),
        train=3 * forward / (flops * MFU),
        # AdamW reads and writes four numbers of 4 bytes: gradient, weight, two moments.
        update=32 * shape.parameters / ranks / bytes_a_second,
        start=SLEEP * sleeps,
        rest=weights / SYNC,
        driver=DRIVER,
    )


def sequences(shape: ModelShape, memory: float, length: float) -> int:
    """How many sequences of ``length`` tokens fit (keys and values) in ``memory`` bytes beside the weights; at most vLLM's
    own limit, at least 1."""
    room = memory - 2 * shape.parameters
    return max(1, min(SEQUENCES, int(room / (kv_bytes_per_token(shape, 2) * length))))


# ── The work of a step by method ──

TAIL = 0.8
"""The spread of the logarithm of lengths: the longest of 512 answers is ten times the median."""
MEAN_SHARE = 0.4
"""Mean length of an answer as a share of the longest allowed, if nothing else is known."""
KEPT = 0.6
"""Share of a stored path that verification keeps on average (SPEC-RL, 2509.23232, reports 2 to 3 times fewer tokens)."""


def answers(groups: int, samples: int, longest: int, mean: float, seed: int = 0) -> np.ndarray:
    """Lengths of answers in tokens, [groups, samples]: log-normal with a long tail, cut at ``longest``."""
    draw = np.random.default_rng(seed).lognormal(math.log(mean) - TAIL**2 / 2, TAIL, (groups, samples))
    return np.clip(draw, 1, longest).round()


def bare(lengths: np.ndarray, prompt: float) -> Work:
    """Every answer from its first token: GRPO."""
    nothing = np.zeros_like(lengths)
    return Work(prompt, nothing, nothing, lengths)


def continued(lengths: np.ndarray, prompt: float, share: float, ratio: float, seed: int = 1) -> Work:
    """``share`` of the groups continue a stored path, cut by at most ``ratio`` of it: ``--rpo.method rpo``, ``ratio:R``.

    A sample generates as many tokens as were cut, times the ratio of its answer's length to the path's.
    """
    draw = np.random.default_rng(seed)
    stored = lengths[:, :1]
    cut = stored * draw.uniform(0, ratio, (len(lengths), 1))
    replayed = (draw.permutation(len(lengths)) < share * len(lengths))[:, None]
    new = np.where(replayed, np.clip(cut * lengths / stored, 1, None).round(), lengths)
    prefix = np.where(replayed, (stored - cut).round(), 0) * np.ones_like(lengths)
    return Work(prompt, np.zeros_like(lengths), prefix, new)


def verified(lengths: np.ndarray, prompt: float, share: float, kept: float = KEPT, seed: int = 1) -> Work:
    """``share`` of the groups keep what the policy accepts of every stored path, token by token, ``kept`` of it on average:
    ``--rpo.method verify`` in half precision."""
    draw = np.random.default_rng(seed)
    replayed = (draw.permutation(len(lengths)) < share * len(lengths))[:, None]
    prefix = np.minimum(lengths - 1, draw.exponential(1 / _rejections(kept), lengths.shape) * lengths).round()
    scored, prefix = np.where(replayed, lengths, 0), np.where(replayed, prefix, 0)
    return Work(prompt, scored, prefix, lengths - prefix, common=False, read=True)


def _rejections(kept: float) -> float:
    """Expected rejections in a whole path, if the first comes after ``kept`` of it on average: (1 - exp(-x)) / x."""
    low, high = 1e-6, 1e6
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if -math.expm1(-middle) / middle > kept else (low, middle)
    return low
