"""The path cache at the size that users have, where a method stores every sample: 4,096 paths of 16,384 tokens a step.

Steps replace the paths of all questions, with log-probs. After each a copy is begun, as beside a checkpoint, which a thread
makes; every second step is committed while it does. Then comes a pruning that keeps ``--keep`` versions, as with
``--rpo.cache.keep_versions``. Paths are drawn from 64 sequences of token ids made as in ``cache-scale``, so that the
driver's memory holds them.

    make bench NAME=cache-step QUICK=1
    python -m lab.bench cache-step --report lab/results/DATE-cache-step

The figures: medians over the steps after the first of commit_s, commit_beside_copy_s, begin_s (all that a step waits for a
copy), copy_s and prune_s; bytes a token and megabytes a step; the file's megabytes at the end, and what they would be
without pruning.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path as File
from statistics import median
from typing import Any

from tqdm import tqdm

from lab.bench import about, header, table, write_report
from lab.scale.cache_scale import Writer
from openrlhf_rpo.cache.session import Snapshot
from openrlhf_rpo.types import Path, Question

SEQUENCES = 64
SHOWN = {
    "commit_s": "commit, s",
    "commit_beside_copy_s": "commit while a copy is made, s",
    "begin_s": "beginning a copy beside a checkpoint, s",
    "copy_s": "the copy, in a thread, s",
    "prune_s": "pruning, s",
    "step_mb": "a step, MB",
    "bytes_a_token": "bytes a token",
    "file_mb": "the file at the end, MB",
    "unpruned_mb": "without pruning, MB",
}


class Pool(Writer):
    """A writer of paths from a fixed pool."""

    def __init__(self, file: File, n_tokens: int) -> None:
        super().__init__(file, n_tokens, log_probs=True)
        made = [super(Pool, self).path("", None) for _ in range(SEQUENCES)]
        self.pool = [(path.token_ids, path.log_probs) for path in made]

    def path(self, name: str, parent: Path | None) -> Path:
        token_ids, log_probs = self.pool[int(self.rng.integers(SEQUENCES))]
        return Path(name, token_ids, log_probs, "stop", 1.0, 1.0, 0, self.step)


def seconds(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


def copied(snapshot: Snapshot, file: File) -> float:
    """Seconds of copying, in a thread."""
    with snapshot:
        return seconds(lambda: snapshot.copy_to(str(file)))


def measure(args: argparse.Namespace, folder: File) -> dict[str, Any]:
    """Take the steps; the figures."""
    writer = Pool(folder / "cache.db", args.tokens)
    names = writer.names[: args.paths]
    writer.cache.describe([Question(n, f"<user>{n}<assistant>", "42", "math", n) for n in names], "scale")
    found: dict[str, list[float]] = {name: [] for name in SHOWN if name.endswith("_s")}
    sizes = []
    with ThreadPoolExecutor(1) as thread:
        copying: Future[float] | None = None
        for step in tqdm(range(1, args.steps + 1), desc="Steps", unit="step"):
            before = writer.cache.size()
            commit, _ = writer.commit(names, {})
            found["commit_s" if copying is None else "commit_beside_copy_s"].append(commit)
            sizes.append(writer.cache.size() - before)
            if copying is not None:
                found["copy_s"].append(copying.result())
            found["prune_s"].append(seconds(lambda now=step: writer.cache.prune(max(0, now - args.keep))))
            started = time.perf_counter()
            snapshot = writer.cache.snapshot()
            found["begin_s"].append(time.perf_counter() - started)
            copying = thread.submit(copied, snapshot, folder / "copy.db")
            if step % 2 == 0:
                found["copy_s"].append(copying.result())
                copying = None
    file_mb = os.path.getsize(writer.file) / 1e6
    writer.cache.close()
    return {name: median(values[1:]) for name, values in found.items()} | {
        "step_mb": median(sizes) / 1e6,
        "bytes_a_token": median(sizes) / (args.paths * args.tokens),
        "file_mb": file_mb,
        "unpruned_mb": sum(sizes) / 1e6,
        "steps": found,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--paths", type=int, default=4096, help="stored in a step (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=16_384, help="of a path (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=9, help="(default: %(default)s)")
    parser.add_argument("--keep", type=int, default=2, help="versions that are kept (default: %(default)s)")
    parser.add_argument("--folder", help="folder of the database during the measurement (default: the temporary folder)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Take the steps in an empty cache."""
    if args.quick:
        args.paths, args.tokens, args.steps = 256, 4096, 5
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        shape = {"paths": args.paths, "tokens": args.tokens, "keep": args.keep}
        figures = about() | shape | measure(args, File(folder))
    write_report(args.report, figures, page(figures))
    return figures


def page(figures: dict[str, Any]) -> list[str]:
    """The report as Markdown."""
    size = f"{figures['paths']:,} paths of {figures['tokens']:,} tokens"
    said = f"{len(figures['steps']['begin_s'])} steps that store {size} with log-probs; {figures['keep']} versions are kept."
    rows = [[text, f"{figures[name]:,.2f}"] for name, text in SHOWN.items()]
    return [*header("A large step in the path cache", figures), said, "", *table(["", "measured"], rows)]
