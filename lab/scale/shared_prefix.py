"""Forward and backward of one group: whole rows padded, whole rows packed, and with a shared prefix.

Needs only torch and transformers (flash-attn is used if installed), so a copy of the repository runs on a bare GPU machine.
Models have the shapes of Qwen2 and random weights; a small one on a CPU. Each case runs its three ways in turn, ``--rounds``
times after a warm-up; medians are reported. On a CPU the process keeps freed memory while it is timed, because mapping large
tensors anew makes page faults dominate (spreads of a factor of two were seen).

    make bench NAME=shared-prefix QUICK=1                one case, a minute on two cores
    python -m lab.bench shared-prefix                    CPU: the small model; GPU: the 1.5B shape, the whole grid
    python -m lab.bench shared-prefix --model 7b --groups 6 --prefixes 2540 --responses 150

"Padded" is OpenRLHF without packing: micro-batches of ``--micro`` whole rows, logits of every token. "Packed" concatenates
the same rows and computes only logits with loss; "shared" is packed, with the prefix once. The bound is the number of tokens
in whole rows over that with the prefix once; it ignores attention and kernels.
"""

import argparse
import contextlib
import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from lab.bench import about, header, table, write_report
from openrlhf_rpo.training.shared_prefix.attention import best_kernel, enable
from openrlhf_rpo.training.shared_prefix.forward import shared_log_probs

MODELS = {
    "small": dict(
        hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=2
    ),
    "1.5b": dict(
        hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2
    ),
    "7b": dict(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4
    ),
}
VOCABULARY = {"small": 16384, "1.5b": 151936, "7b": 152064}
WAYS = ("padded", "packed", "shared")


def build(name: str, device: str, dtype: torch.dtype, checkpointing: bool) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        **MODELS[name],
        vocab_size=VOCABULARY[name],
        tie_word_embeddings=name != "7b",
        max_position_embeddings=8192,
        attn_implementation="sdpa",
        use_cache=False,
    )
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if checkpointing:
        model.gradient_checkpointing_enable()
    return model.train()


def draw_group(prefix: int, response: int, size: int, vocabulary: int, device: str) -> tuple[torch.Tensor, ...]:
    """Ids (G, T), loss mask (G, T - 1) of the responses, and weights (G, T - 1) in place of advantages."""
    generator = torch.Generator().manual_seed(1)
    head = torch.randint(vocabulary, (1, prefix), generator=generator).expand(size, -1)
    tails = torch.randint(vocabulary, (size, response), generator=generator)
    tails[:, 0] = torch.arange(size)  # different first tokens, so that no more than the prefix is shared
    ids = torch.cat([head, tails], 1)
    mask = torch.zeros(size, prefix + response - 1, dtype=torch.long)
    mask[:, prefix - 1 :] = 1
    weights = torch.randn(mask.shape, generator=generator) * mask / mask.sum()
    return ids.to(device), mask.to(device), weights.to(device)


def padded(model: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """OpenRLHF's ``Actor.forward`` (0.11.2), abridged."""
    attention = torch.ones_like(ids)
    logits = model(ids, attention_mask=attention, position_ids=attention.cumsum(-1) - 1).logits.float()
    chosen = logits[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    return (chosen - logits[:, :-1].logsumexp(-1)) * mask


def run_way(model: torch.nn.Module, way: str, group: tuple[torch.Tensor, ...], micro: int) -> torch.Tensor:
    """Gradients of sum(weight * log-prob) over the group, accumulated in the model; returns the log-probs."""
    ids, mask, weights = group
    model.zero_grad()
    parts = []
    for i in range(0, len(ids), len(ids) if way == "shared" else micro):
        part = slice(i, len(ids) if way == "shared" else i + micro)
        if way == "padded":
            log_probs = padded(model, ids[part], mask[part])
        else:
            rows = ids[part]
            log_probs = shared_log_probs(model, rows, torch.ones_like(rows), mask[part], share=way == "shared").log_probs
        (log_probs * weights[part]).sum().backward()
        parts.append(log_probs.detach())
    return torch.cat(parts)


class Peak:
    """Peak memory in bytes: of the allocator on a GPU, else of the Linux process."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"

    def reset(self) -> None:
        gc.collect()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")

    def read(self) -> int:
        if self.cuda:
            return torch.cuda.max_memory_allocated()
        status = Path("/proc/self/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


@contextlib.contextmanager
def kept_memory(device: str) -> Iterator[None]:
    """Keep freed memory in the process until the end, by glibc's ``mallopt`` with constants from its malloc.h."""
    if device == "cuda":
        yield
        return
    libc, trim_threshold, mmap_max = ctypes.CDLL(None), -1, -4
    libc.mallopt(trim_threshold, 2**31 - 1)
    libc.mallopt(mmap_max, 0)
    try:
        yield
    finally:
        libc.mallopt(trim_threshold, 2**17)
        libc.mallopt(mmap_max, 2**16)
        libc.malloc_trim(0)


def timed(work: Callable[[], object], device: str) -> float:
    started = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten().float().cpu() for p in model.parameters() if p.grad is not None])


def measure(model: torch.nn.Module, prefix: int, response: int, size: int, options: argparse.Namespace) -> dict:
    device, micro = options.device, min(options.micro, size)
    group = draw_group(prefix, response, size, model.config.vocab_size, device)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    memory, log_probs, gradients = {}, {}, {}
    peak = Peak(device)
    for way in WAYS:  # the first round checks results and memory
        peak.reset()
        log_probs[way] = run_way(model, way, group, micro)
        memory[way] = peak.read()
        gradients[way] = flat_gradient(model)
    with kept_memory(device):
        for number in range(options.rounds + 1):
            for way in WAYS:
                took = timed(lambda way=way: run_way(model, way, group, micro), device)
                if number:
                    seconds[way].append(took)
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    plain, shared = min(medians["padded"], medians["packed"]), medians["shared"]
    whole, once = size * (prefix + response), prefix + size * response
    return {
        "prefix": prefix,
        "response": response,
        "group": size,
        "plain_s": plain,
        "padded_s": medians["padded"],
        "packed_s": medians["packed"],
        "shared_s": shared,
        "spread": {way: [min(values), max(values)] for way, values in seconds.items()},
        "ratio": plain / shared,
        "bound": whole / once,
        "share_of_bound": plain / shared / (whole / once),
        "plain_tokens": whole,
        "shared_tokens": once,
        "peak_bytes": memory,
        "logprob_difference": (log_probs["shared"] - log_probs["padded"]).abs().max().item(),
        "gradient_difference": relative(gradients["shared"], gradients["padded"]),
    }


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on besides the hardware."""
    return {
        "threads": torch.get_num_threads(),
        "model": options.model,
        "dtype": options.dtype,
        "kernel": best_kernel(torch.empty(0, dtype=getattr(torch, options.dtype), device=options.device)),
        "micro_batch": options.micro,
        "rounds": options.rounds,
    }


def result_of(cases: list[dict], options: argparse.Namespace) -> dict[str, Any]:
    return about() | {
        "settings": settings(options),
        "cases": cases,
        "worst_logprob_difference": max(c["logprob_difference"] for c in cases),
        "worst_gradient_difference": max(c["gradient_difference"] for c in cases),
    }


def page(result: dict[str, Any]) -> list[str]:
    """The result as Markdown."""
    lines = header("Shared prefix: forward and backward of one group", result)
    lines += [
        ", ".join(f"{key} {value}" for key, value in result["settings"].items()) + ".",
        "",
        "Seconds are medians. Ratio: the faster of padded and packed over shared; bound: the ratio of the token counts.",
        "",
        "Peak memory in MB: padded, packed, shared.",
        "",
    ]
    head = ["prefix", "response", "G", "padded s", "packed s", "shared s", "ratio", "bound", "share", "peak"]
    rows = []
    for c in result["cases"]:
        sizes = [str(c[name]) for name in ("prefix", "response", "group")]
        seconds = [f"{c[name]:.3f}" for name in ("padded_s", "packed_s", "shared_s")]
        peaks = " / ".join(f"{c['peak_bytes'][way] / 1e6:,.0f}" for way in WAYS)
        rows.append([*sizes, *seconds, f"{c['ratio']:.2f}", f"{c['bound']:.2f}", f"{c['share_of_bound']:.0%}", peaks])
    lines += [
        *table(head, rows),
        "",
        f"Largest difference of a log-prob: {result['worst_logprob_difference']:.1e}; "
        f"of the gradient, relative to its norm: {result['worst_gradient_difference']:.1e}.",
    ]
    return lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=MODELS, help="shape (default: small on a CPU, 1.5b on a GPU)")
    parser.add_argument("--groups", type=int, nargs="+", default=[6, 8, 16])
    parser.add_argument("--prefixes", type=int, nargs="+", default=[512, 1024, 2540, 3900])
    parser.add_argument("--responses", type=int, nargs="+", default=[50, 150, 400])
    parser.add_argument("--micro", type=int, default=2, help="whole rows per micro-batch of the plain ways")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="default: float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the grid. The report is written after each case, because a grid takes an hour."""
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
    options.model = options.model or ("1.5b" if options.device == "cuda" else "small")
    options.dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    if options.quick:
        options.groups, options.prefixes, options.responses = [6], [850], [50]
    model = build(options.model, options.device, getattr(torch, options.dtype), options.checkpointing)
    enable("sdpa")
    cases: list[dict] = []
    grid = list(product(options.prefixes, options.responses, options.groups))
    for number, (prefix, response, size) in enumerate(grid, 1):
        case = measure(model, prefix, response, size, options)
        cases.append(case)
        print(
            f"{number}/{len(grid)}  prefix {prefix} response {response} G {size}: padded {case['padded_s']:.3f} s, "
            f"packed {case['packed_s']:.3f} s, shared {case['shared_s']:.3f} s, {case['ratio']:.2f} of {case['bound']:.2f}",
            flush=True,
        )
        write_report(options.report, result_of(cases, options), page(result_of(cases, options)))
    return result_of(cases, options)
