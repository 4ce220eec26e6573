"""What only a GPU can say, in the first ten minutes on one: kernels, rounding, memory of logits, the self-check.

Needs torch and transformers only, so a copy of the repository runs on a bare machine: no vLLM, no flash-attn (used if it is
there), no network. Models have the shapes of Qwen2 1.5B and random weights in bfloat16; on a CPU, to see that it works, a
small one. Each part is a process of its own, and the report is written after each; a part that fails is reported as that.

    make gpu-first                                        on a GPU; the report is lab/results/DATE-gpu-first
    python -m lab.bench gpu-first --quick --parts logits

The figures, by part:

- kernels: for each attention kernel, log-probs and gradient of a group in one row against padded rows, and seconds;
- rounding: log-probs of decoding (with keys and values kept), and of one pass over eight texts, against a pass over each
  text alone, for the same weights: the mean difference, and the share of tokens that `--rpo.method verify` would reject
  although nothing changed, by lenience;
- logits: peak bytes and seconds of forward and backward, logits in chunks and all at once;
- self-check: what shared prefixes and their control differ from padded rows by, at temperatures 1 and 0.7.
"""

import argparse
import math
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from tqdm import tqdm

from lab.bench import about, header, table, write_report
from lab.scale.shared_prefix import Peak, build, draw_group, flat_gradient, relative, run_way, timed
from openrlhf_rpo.training.shared_prefix import head
from openrlhf_rpo.training.shared_prefix.attention import enable
from openrlhf_rpo.training.shared_prefix.forward import shared_log_probs

Figures = dict[str, Any]
LENIENCES = (1.0, 1.1, 1.25, 1.65)
ENTROPY = 0.7
"""Nats a token, about what a language model has; random weights have ten times that."""


class Place:
    """Where a part runs, and the sizes that fit there."""

    def __init__(self, quick: bool) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.small = quick or self.device == "cpu"
        self.dtype = torch.bfloat16

    def model(self, dtype: torch.dtype | None = None) -> Any:
        model = build("small" if self.small else "1.5b", self.device, dtype or self.dtype, checkpointing=not self.small)
        enable("sdpa")
        return model

    def group(self, prefix: int, response: int, size: int, model: Any) -> tuple[torch.Tensor, ...]:
        short = 16 if self.small else 1
        return draw_group(prefix // short, response // short, size, model.config.vocab_size, self.device)


# ── Parts ──


def kernels(place: Place) -> Figures:
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = place.model(dtype)
        group = place.group(1024, 512, 4, model)
        wanted = run_way(model, "padded", group, micro=1)
        gradient = flat_gradient(model)
        # FlexAttention has no backward pass on a CPU, flash-attention no float32.
        on_gpu = ["flex", *["flash"] * bool(find_spec("flash_attn") and dtype == torch.bfloat16)]
        for kernel in ("sdpa", *on_gpu * (place.device == "cuda")):
            enable("sdpa", kernel)
            given = run_way(model, "shared", group, micro=1)
            found[f"{kernel}, {name_of(dtype)}"] = {
                "log_prob_difference": (given - wanted).abs().max().item(),
                "gradient_difference": relative(flat_gradient(model), gradient),
                "seconds": fastest(partial(run_way, model, "shared", group, 1), place),
            }
    return found


def rounding(place: Place) -> Figures:
    """After arXiv 2211.17192: a token is rejected with probability max(0, 1 - lenience p / q)."""
    rows, length, prompt = (8, 64, 16) if place.small else (64, 1024, 64)
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = place.model(dtype).eval()
        torch.manual_seed(1)
        text = torch.randint(model.config.vocab_size, (rows, prompt), device=place.device)
        scale_entropy(model, text)
        with torch.no_grad():
            drawn, text = decode(model, text, length)
            read, again = (torch.cat([score(model, rows, prompt) for rows in text.split(n)]) for n in (8, 1))
        for way, then in (("drawn", drawn), ("read", read)):
            gap = again - then
            found[f"{name_of(dtype)}, {way}"] = {
                "mean_difference": gap.abs().mean().item(),
                "largest_difference": gap.abs().max().item(),
                "nats": -drawn.mean().item(),
                "rejected": {str(x): (1 - (gap + math.log(x)).exp()).clamp(min=0).mean().item() for x in LENIENCES},
            }
    return found


def scale_entropy(model: Any, text: torch.Tensor) -> None:
    """Scale the layers so that they matter beside the embeddings, and the output for about ``ENTROPY`` nats a token."""
    for weight in model.model.layers.parameters():
        weight.data.mul_(3 if weight.ndim > 1 else 1)
    layer = model.get_output_embeddings()
    layer.weight = torch.nn.Parameter(layer.weight.detach().clone())  # apart from the embeddings
    with torch.no_grad():
        logits = model(text).logits[:, -1].float()
        low, high = 1e-2, 1e4
        for _ in range(40):
            middle = math.sqrt(low * high)
            log = (logits * middle).log_softmax(-1)
            low, high = (middle, high) if -(log.exp() * log).sum(-1).mean() > ENTROPY else (low, middle)
        layer.weight.mul_(low)


def decode(model: Any, text: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw ``length`` tokens behind each row, one by one; their log-probs, and the rows with them."""
    output, log_probs = model(text, use_cache=True), []
    for _ in range(length):
        log = output.logits[:, -1].float().log_softmax(-1)
        token = torch.multinomial(log.exp(), 1)
        log_probs.append(log.gather(1, token))
        text = torch.cat([text, token], 1)
        output = model(token, past_key_values=output.past_key_values, use_cache=True)
    return torch.cat(log_probs, 1), text


def score(model: Any, rows: torch.Tensor, prompt: int) -> torch.Tensor:
    """Log-probs of the tokens behind the prompt, in one pass."""
    log = model(rows).logits[:, prompt - 1 : -1].float().log_softmax(-1)
    return log.gather(2, rows[:, prompt:, None])[..., 0]


def logits(place: Place) -> Figures:
    found, usual, model = {}, head.LOGITS_AT_ONCE, place.model()
    for size in (6, 8, 16):
        group = place.group(512, 4096, size, model)
        for name, at_once in (("in chunks", usual), ("all at once", 2**62)):
            head.LOGITS_AT_ONCE = at_once
            peak = Peak(place.device)
            peak.reset()
            try:
                seconds = fastest(partial(run_way, model, "shared", group, size), place)
                found[f"{size} samples, {name}"] = {"peak_bytes": peak.read(), "seconds": seconds}
            except torch.OutOfMemoryError:
                found[f"{size} samples, {name}"] = {"peak_bytes": "out of memory"}
    return found


def self_check(place: Place) -> Figures:
    found, model = {}, place.model().eval()
    ids, mask, _ = place.group(1024, 512, 4, model)
    scale_entropy(model, ids[:, : ids.shape[1] // 2])
    attention = torch.ones_like(ids)
    for temperature in (1.0, 0.7):
        with torch.no_grad():
            log = (model(ids, attention_mask=attention).logits[:, :-1].float() / temperature).log_softmax(-1)
            plain = log.gather(-1, ids[:, 1:, None])[..., 0] * mask
            shared, control = (
                shared_log_probs(model, ids, attention, mask, temperature, share=share).log_probs for share in (True, False)
            )
        gaps = [((plain - x).abs().sum() / mask.sum()).item() for x in (shared, control)]
        found[f"temperature {temperature}"] = dict(zip(("shared", "control"), gaps, strict=True))
    return found


PARTS: dict[str, Callable[[Place], Figures]] = {
    **{"kernels": kernels, "rounding": rounding},
    **{"logits": logits, "self-check": self_check},
}


def fastest(work: Callable[[], object], place: Place) -> float:
    """Seconds of the fastest of three times."""
    return min(timed(work, place.device) for _ in range(3))


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ── All of them ──


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="(default: all)")


def do(part: str, quick: bool) -> Figures:
    """One part, in a process of its own."""
    return PARTS[part](Place(quick))


def run(args: argparse.Namespace) -> dict[str, Any]:
    """All parts; a failure is a figure like any other."""
    figures = about() | {"parts": {}, "ok": True}
    for part in tqdm(args.parts, desc="Parts", unit="part"):
        try:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                figures["parts"][part] = pool.submit(do, part, args.quick).result()
        except Exception as error:  # whatever a kernel or a driver does: the other parts are worth having
            figures["parts"][part] = {"failed": {"error": f"{type(error).__name__}: {error}"}}
            figures["ok"] = False
        write_report(args.report, figures, page(figures))
    return figures


def page(figures: dict[str, Any]) -> list[str]:
    """The report as Markdown, a table a part."""
    lines = header("The first minutes on a GPU", figures)
    for part, found in figures["parts"].items():
        names = list(dict.fromkeys(name for row in found.values() for name in row))
        rows = [[case, *(written(row.get(name, "")) for name in names)] for case, row in found.items()]
        lines += [f"## {part}", "", *table([part, *names], rows), ""]
    return lines


def written(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {written(one)}" for name, one in value.items())
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
