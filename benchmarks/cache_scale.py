"""The path cache at scale: commit, read, opening, memory and bytes a token, from 1,000 to 100,000 questions.

One SQLite cache grows, as a run would fill it (default: paths of 4,000 tokens). At each size of the curve it takes
steps of 96 questions that read what a training step reads (the order of replay, paths, visits) and commit what it
commits; at ``--questions`` it takes ``--steps`` of them, which give the figures in the last line. Opening is measured in
a process of its own, with the file in the system's cache and without.

Token ids: ranks drawn from a Zipf-Mandelbrot law, p(rank) ~ 1 / (rank + 2.7), over a vocabulary of 151,643. Ids follow
ranks only roughly (by log rank plus a normal deviate), as the ids of a byte-pair vocabulary do. Draws are independent,
so nothing repeats that a compressor could find: real answers take less. Log-probs: a quarter exponential with mean 1, the
rest close to 0.

    python benchmarks/cache_scale.py --quick                    500 and 1,500 questions, under a minute
    python benchmarks/cache_scale.py --report benchmarks/results/DATE-cache-scale

The last line is one JSON object: commit_ms, read_ms, open_s, driver_mb, bytes_per_token, and the curve.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path as File
from statistics import median, quantiles

import matplotlib
import numpy as np
from tqdm import tqdm

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
    "milliseconds a step (median)": {
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
    """Fills a cache and takes steps on it; every path is a slice of one long draw of tokens."""

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
        self.cache = PathCache.open(self.url, {"data": "scale"}, store_log_probs=log_probs)
        self.cache.mark_initialised()

    def path(self, name: str, parent: Path | None) -> Path:
        start = int(self.rng.integers(0, len(self.tokens) - self.n_tokens))
        part = slice(start, start + self.n_tokens)
        log_probs = tuple(self.chances[part].tolist()) if self.log_probs else None
        prefix, above = (self.n_tokens // 2, parent.path_id) if parent else (0, None)
        return Path(name, tuple(self.tokens[part].tolist()), log_probs, "stop", 1.0, 1.0, prefix, self.step, None, above)

    def commit(self, names: list[str], old: dict[str, Path]) -> tuple[float, float]:
        """A step; seconds and CPU seconds of its commit alone."""
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
        """Grow to ``questions`` questions with a path."""
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
        found: dict[str, list[float]] = {
            name: [] for name in ("replay", "read", "visits", "commit", "read_cpu", "commit_cpu")
        }
        self.cache.least_recently_visited(BATCH)  # made once in a run, at its first step
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
            del old  # or the next reading would pay for freeing these
        return found

    def summary(self, steps: int) -> dict[str, float]:
        """Measure ``steps`` steps, then close, open in another process, and open again."""
        found = self.measure(steps)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self.cache.close()
        size = os.path.getsize(self.file)
        warm, cold = self.opening(cold=False), self.opening(cold=True)
        tokens = self.stored_tokens()
        self.cache = PathCache.open(self.url, {"data": "scale"}, store_log_probs=self.log_probs)
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
    """The curve, the figures at ``--questions``, and what log-probs add."""
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
        print(json.dumps(curve[-1]), flush=True)
    writer.cache.close()
    os.remove(writer.file)
    writer = Writer(folder / "log_probs.db", args.tokens, log_probs=True)
    writer.fill(min(args.questions // 3, 4000))
    with_log_probs = writer.summary(CURVE_STEPS)
    writer.cache.close()
    keys = ("commit_ms", "read_ms", "open_s", "driver_mb", "bytes_per_token")
    return {key: main[key] for key in keys} | {"main": main, "with_log_probs": with_log_probs, "curve": curve}


def plot(report: dict, file: File) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes = [point["questions"] for point in report["curve"]]
    figure, axes = plt.subplots(1, len(PANELS), figsize=(13, 4), constrained_layout=True)
    for axis, (unit, lines) in zip(axes, PANELS.items(), strict=True):
        for key, label in lines.items():
            axis.plot(sizes, [point[key] for point in report["curve"]], marker="o", label=label)
        axis.set(xscale="log", xlabel="questions", title=unit, ylim=(0, None))
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(file, dpi=110)


def describe(report: dict, args: argparse.Namespace) -> str:
    main, with_log_probs = report["main"], report["with_log_probs"]
    aims = [
        ("commit of a step of 96 questions, median", "commit_ms", "ms", 50),
        ("current paths of 96 questions, median", "read_ms", "ms", 20),
        ("opening", "open_s", "s", 2),
        ("memory of the driver (Python and the benchmark's own token pool included)", "driver_mb", "MB", 500),
        ("bytes a token on disk, everything included, without log-probs", "bytes_per_token", "", 2.5),
    ]
    rows = [f"| {name} | {main[key]:,.2f} {unit} | {limit} {unit} |" for name, key, unit, limit in aims]
    table = ["| " + " | ".join(COLUMNS) + " |", "| --- " * len(COLUMNS) + "|"]
    for point in report["curve"]:
        cells = [f"{point[name]:,}" if name in ("questions", "steps") else f"{point[name]:,.2f}" for name in COLUMNS]
        table.append("| " + " | ".join(cells) + " |")
    extra = (
        f"With log-probs (half precision, {with_log_probs['questions']:,} questions): "
        f"{with_log_probs['bytes_per_token']:.2f} bytes a token, commit {with_log_probs['commit_ms']:.1f} ms, "
        f"read {with_log_probs['read_ms']:.1f} ms. "
        f"A copy of the {main['file_mb']:,.0f} MB beside a checkpoint takes {main['copy_s']:.1f} s."
    )
    return f"""# The path cache at scale ({report["date"]})

Hardware: {report["hardware"]}. Versions: {report["versions"]}. Load average before and after: {report["load"]}.

    {report["command"]}

{args.questions:,} questions with a path of {args.tokens:,} tokens, then {args.steps:,} steps that replace the paths of
{BATCH} questions. The docstring of `benchmarks/cache_scale.py` says how token ids are made.

| | measured | aim |
| --- | --- | --- |
{chr(10).join(rows)}

{extra}

![growth]({File(args.report).name if args.report else "cache-scale"}.png)

{chr(10).join(table)}

`commit_ms`, `read_ms`: medians of wall time; `*_cpu_ms` is processor time of the same calls, which other work on the
machine does not stretch. `open_s`: until a run can use the cache; `inspected_s`: until every byte was read (in a thread
beside the start of the run; a resumed run waits for it before an engine starts). *cold*: the file was not in memory.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="500 and 1,500 questions, 30 steps")
    parser.add_argument("--questions", type=int, default=70_000)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1000, 3000, 10_000, 30_000, 100_000], help="of the curve")
    parser.add_argument("--folder", help="where the database goes while it is measured (default: the temporary folder)")
    parser.add_argument("--report", help="write REPORT.md, REPORT.json and REPORT.png")
    args = parser.parse_args()
    if args.report:
        File(args.report).parent.mkdir(parents=True, exist_ok=True)
    if args.quick:
        args.questions, args.steps, args.sizes = 1500, 30, [500]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        report = measure_all(args, File(folder))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    lines = File("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "a processor")
    report |= {
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python", *sys.argv]),
        "hardware": f"{os.cpu_count()} cores of {model} ({platform.machine()}), {memory:.0f} GiB",
        "versions": f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, "
        f"SQLAlchemy {version('sqlalchemy')}",
        "load": f"{load:.1f}, {os.getloadavg()[0]:.1f}",
    }
    if args.report:
        plot(report, File(args.report + ".png"))
        File(args.report + ".md").write_text(describe(report, args))
        File(args.report + ".json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
