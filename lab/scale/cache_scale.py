"""The path cache at scale: commit, read, opening, memory and bytes per token, from 1,000 to 100,000 questions.

One SQLite cache grows as in a run (default: paths of 4,000 tokens). At each size of the curve it takes steps of 96
questions with the reads (order of replay, paths, visits) and the commit of a training step; at ``--questions`` it takes
``--steps`` of them for the figures in the last line. Opening is measured in a separate process, with and without the file
in the page cache.

Token ids: ranks from a Zipf-Mandelbrot law, p(rank) ~ 1 / (rank + 2.7), over a vocabulary of 151,643. As in a byte-pair
vocabulary, ids follow ranks roughly (by log rank plus a normal deviate). Draws are independent, so a compressor finds no
repetition; real answers take less. Log-probs: a quarter exponential with mean 1, the rest close to 0.

    make bench NAME=cache-scale QUICK=1                    500 and 1,500 questions, under a minute
    python -m lab.bench cache-scale --report lab/results/DATE-cache-scale

The figures: commit_ms, read_ms, open_s, driver_mb, bytes_per_token, and the curve.
"""

import argparse
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path as File
from statistics import median, quantiles
from typing import Any

import numpy as np
from tqdm import tqdm

from lab.bench import about, header, table, write_report
from lab.plot import save_plot
from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.types import CacheDecision, Path, Question, StepRecord, Visit

VOCABULARY = 151_643
BATCH, FILL, CURVE_STEPS = 96, 512, 30
PARTS = ("replay", "read", "visits", "commit", "read_cpu", "commit_cpu")
COLUMNS = (
    *("questions", "steps", "commit_ms", "commit_cpu_ms", "commit_p95_ms", "read_ms", "read_cpu_ms", "visits_ms"),
    *("replay_ms", "open_s", "open_cold_s", "inspected_s", "inspected_cold_s", "driver_mb", "file_mb", "bytes_per_token"),
)
PANELS = {
    "milliseconds per step (median)": {
        "commit_ms": "commit",
        "read_ms": "read paths",
        "visits_ms": "read visits",
        "replay_ms": "order of replay",
    },
    "seconds": {
        "open_s": "open",
        "open_cold_s": "open, file not in memory",
        "inspected_s": "every byte read",
        "inspected_cold_s": "every byte read, file not in memory",
    },
    "MB": {"driver_mb": "memory of the driver"},
}
OPENER = """
import json, resource, sys, time
from openrlhf_rpo.cache import PathCache
started = time.perf_counter()
cache = PathCache.open(sys.argv[1], {"data": "scale"})
opened = time.perf_counter()
cache.wait_until_inspected()
inspected = time.perf_counter()
cache.close()
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"open_s": opened - started, "inspected_s": inspected - started, "opener_mb": memory}))
"""


class Writer:
    """Fills a cache and takes steps on it. Every path is a slice of one long sequence of random tokens."""

    def __init__(self, file: File, n_tokens: int, log_probs: bool) -> None:
        self.url, self.file, self.n_tokens, self.log_probs = f"sqlite:///{file}", file, n_tokens, log_probs
        self.rng = np.random.default_rng(0)
        size = max(2_000_000, 4 * n_tokens)
        weights = 1 / (np.arange(1, VOCABULARY + 1) + 2.7)
        ids = np.argsort(np.log(np.arange(1, VOCABULARY + 1)) + self.rng.normal(0, 1, VOCABULARY))
        self.tokens = ids[self.rng.choice(VOCABULARY, size=size, p=weights / weights.sum())].astype(np.uint32)
        unsure = self.rng.random(size) < 0.25
        self.chances = -np.where(unsure, self.rng.exponential(1, size), self.rng.exponential(0.001, size)).astype(np.float32)
        self.names = [f"{number:032x}" for number in self.rng.permutation(100_000)]
        self.cached, self.step = 0, 0
        self.cache = PathCache.open(self.url, {"data": "scale"})
        self.cache.mark_initialised()

    def path(self, name: str, parent: Path | None) -> Path:
        start = int(self.rng.integers(0, len(self.tokens) - self.n_tokens))
        part = slice(start, start + self.n_tokens)
        log_probs = tuple(self.chances[part].tolist()) if self.log_probs else None
        prefix, above = (self.n_tokens // 2, parent.path_id) if parent else (0, None)
        return Path(name, tuple(self.tokens[part].tolist()), log_probs, "stop", 1.0, 1.0, prefix, self.step, None, above)

    def commit(self, names: list[str], old: dict[str, Path]) -> tuple[float, float]:
        """Take a step; seconds and CPU seconds of its commit."""
        self.step += 1
        decisions = [
            CacheDecision(self.path(name, old.get(name)), Visit(name, self.step, 300, 2000, 3800, 8, 5, "best"))
            for name in names
        ]
        metrics = {f"rpo/figure_{number}": number / 7 for number in range(40)}
        started, cpu = time.perf_counter(), time.process_time()
        self.cache.commit_step(StepRecord(self.step, 0, self.step * BATCH, metrics), decisions)
        return time.perf_counter() - started, time.process_time() - cpu

    def fill(self, questions: int) -> None:
        """Grow to ``questions`` questions with paths."""
        texts = [Question(n, f"<user>{n * 12}<assistant>", "42", "math", n * 12) for n in self.names[:questions]]
        self.cache.describe(texts, "scale")
        with tqdm(total=questions, initial=self.cached, desc=f"Filling to {questions:,}", unit="question") as bar:
            while self.cached < questions:
                new = self.names[self.cached : min(self.cached + FILL, questions)]
                self.commit(new, {})
                self.cached += len(new)
                bar.update(len(new))

    def measure(self, steps: int) -> dict[str, list[float]]:
        """Seconds of the parts of each of ``steps`` steps."""
        found: dict[str, list[float]] = {name: [] for name in PARTS}
        self.cache.least_recently_visited(BATCH)  # built once per run, at its first step
        for _ in tqdm(range(steps), desc=f"Steps at {self.cached:,}", unit="step"):
            started = time.perf_counter()
            oldest = self.cache.least_recently_visited(3 * BATCH // 4)
            found["replay"].append(time.perf_counter() - started)
            others = [self.names[i] for i in self.rng.choice(self.cached, 2 * BATCH, replace=False)]
            names = list(dict.fromkeys(oldest + others))[:BATCH]
            started, cpu = time.perf_counter(), time.process_time()
            old = self.cache.paths(names)
            found["read"].append(time.perf_counter() - started)
            found["read_cpu"].append(time.process_time() - cpu)
            started = time.perf_counter()
            self.cache.visits(names)
            found["visits"].append(time.perf_counter() - started)
            seconds, cpu = self.commit(names, old)
            found["commit"].append(seconds)
            found["commit_cpu"].append(cpu)
            del old  # so that the next read does not pay for freeing these
        return found

    def summary(self, steps: int) -> dict[str, float]:
        """Measure ``steps`` steps, then close, open in another process, and open again."""
        found = self.measure(steps)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.cache.close()
        size = os.path.getsize(self.file)
        warm, cold = self.opening(cold=False), self.opening(cold=True)
        tokens = self.stored_tokens()
        self.cache = PathCache.open(self.url, {"data": "scale"})
        ms = {f"{name}_ms": 1000 * median(values) for name, values in found.items()}
        return ms | {
            "questions": self.cached,
            "steps": steps,
            "commit_p95_ms": 1000 * quantiles(found["commit"], n=20)[-1],
            "read_p95_ms": 1000 * quantiles(found["read"], n=20)[-1],
            "open_s": warm["open_s"],
            "open_cold_s": cold["open_s"],
            "inspected_s": warm["inspected_s"],
            "inspected_cold_s": cold["inspected_s"],
            "driver_mb": max(memory, warm["opener_mb"], cold["opener_mb"]),
            "bytes_per_token": size / tokens,
            "file_mb": size / 1e6,
        }

    def opening(self, cold: bool) -> dict[str, float]:
        with open(self.file, "rb") as opened:
            os.fsync(opened.fileno())
            if cold:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while opened.read(2**22):
                    pass
        output = subprocess.run([sys.executable, "-c", OPENER, self.url], check=True, capture_output=True, text=True).stdout
        return json.loads(output.splitlines()[-1])

    def stored_tokens(self) -> int:
        connection = sqlite3.connect(self.file)
        try:
            return connection.execute("SELECT sum(n_tokens) FROM paths").fetchone()[0]
        finally:
            connection.close()


def measure_all(args: argparse.Namespace, folder: File) -> dict:
    """The curve, the figures at ``--questions``, and the cost of log-probs."""
    curve, main = [], {}
    writer = Writer(folder / "cache.db", args.tokens, log_probs=False)
    for questions in sorted({*args.sizes, args.questions}):
        writer.fill(questions)
        curve.append(writer.summary(args.steps if questions == args.questions else CURVE_STEPS))
        if questions == args.questions:
            main = curve[-1]
            started = time.perf_counter()
            writer.cache.copy_to(str(folder / "copy.db"))
            main["copy_s"] = time.perf_counter() - started
            os.remove(folder / "copy.db")
        print(json.dumps(curve[-1]), file=sys.stderr, flush=True)
    writer.cache.close()
    os.remove(writer.file)
    writer = Writer(folder / "log_probs.db", args.tokens, log_probs=True)
    writer.fill(min(args.questions // 3, 4000))
    with_log_probs = writer.summary(CURVE_STEPS)
    writer.cache.close()
    keys = ("commit_ms", "read_ms", "open_s", "driver_mb", "bytes_per_token")
    return {key: main[key] for key in keys} | {"main": main, "with_log_probs": with_log_probs, "curve": curve}


def plot(report: dict, file: File) -> None:
    sizes = [point["questions"] for point in report["curve"]]

    def draw(figure: Any, axes: Any) -> None:
        for axis, (unit, lines) in zip(axes, PANELS.items(), strict=True):
            for key, label in lines.items():
                axis.plot(sizes, [point[key] for point in report["curve"]], marker="o", label=label)
            axis.set(xscale="log", xlabel="questions", title=unit, ylim=(0, None))

    save_plot(file, draw, panels=len(PANELS))


def page(figures: dict[str, Any], args: argparse.Namespace) -> list[str]:
    """The report as Markdown."""
    main, with_log_probs = figures["main"], figures["with_log_probs"]
    aims = [
        ("commit of a step of 96 questions, median", "commit_ms", "ms", 50),
        ("current paths of 96 questions, median", "read_ms", "ms", 20),
        ("opening", "open_s", "s", 2),
        ("memory of the driver, including Python and the benchmark's token pool", "driver_mb", "MB", 500),
        ("bytes per token on disk in total, without log-probs", "bytes_per_token", "", 2.5),
    ]
    rows = [
        [f"{point[name]:,}" if name in ("questions", "steps") else f"{point[name]:,.2f}" for name in COLUMNS]
        for point in figures["curve"]
    ]
    return [
        *header("The path cache at scale", figures),
        f"SQLite {sqlite3.sqlite_version}. Load average before and after: {figures['load']}.",
        "",
        f"{args.questions:,} questions with a path of {args.tokens:,} tokens, then {args.steps:,} steps that replace the "
        f"paths of {BATCH} questions. The docstring of `lab/scale/cache_scale.py` describes the token ids.",
        "",
        *table(
            ["", "measured", "aim"],
            [(name, f"{main[key]:,.2f} {unit}", f"{limit} {unit}") for name, key, unit, limit in aims],
        ),
        "",
        f"With log-probs (half precision, {with_log_probs['questions']:,} questions): "
        f"{with_log_probs['bytes_per_token']:.2f} bytes per token, commit {with_log_probs['commit_ms']:.1f} ms, "
        f"read {with_log_probs['read_ms']:.1f} ms. "
        f"A copy of the {main['file_mb']:,.0f} MB beside a checkpoint takes {main['copy_s']:.1f} s.",
        "",
        f"![growth]({args.report.name if args.report else 'cache-scale'}.png)",
        "",
        *table(COLUMNS, rows),
        "",
        "`commit_ms`, `read_ms`: median wall time; `*_cpu_ms`: CPU time of the same calls, which other work on the machine",
        "does not affect. `open_s`: until a run can use the cache; `inspected_s`: until every byte is read (in a thread",
        "while the run starts; a resumed run waits for it before starting an engine). *cold*: the file was not in memory.",
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--questions", type=int, default=70_000)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 3000, 10_000, 30_000, 100_000], help="of the curve")
    parser.add_argument("--folder", help="folder of the database during the measurement (default: the temporary folder)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Fill caches and measure them."""
    if args.quick:
        args.questions, args.steps, args.sizes = 1500, 30, [500]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        figures = about() | measure_all(args, File(folder))
    figures["load"] = f"{load:.1f}, {os.getloadavg()[0]:.1f}"
    write_report(args.report, figures, page(figures, args))
    if args.report:
        plot(figures, args.report.with_suffix(".png"))
    return figures
