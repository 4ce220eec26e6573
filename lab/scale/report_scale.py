"""The report at scale: file size and seconds until a browser shows it, at 10, 1,000 and 10,000 questions.

Each run has one initial path and three visits per question; two of three visits replace the path after a cut. Texts are
words of a fixed vocabulary, drawn with Zipf's law so that they compress about as well as English; a path has ``--tokens``
tokens, one per word. As many options are stored as by a real run. The file is written by the real command and opened in
headless Chromium (chromium and chromedriver must be installed) with an empty profile.

ready_s: from navigation until the overview is drawn. questions_s: from then until the list of questions is drawn.
question_s: from a click until a question's lineage is drawn. keypress_ms: one step in the list by keyboard, median of 50.

Live view, medians of 40: news_ms: an answer to a page that has every step; commit_ms and commit_watched_ms: the commit of a
step of 96 questions, alone and while another process asks five times per second.

    make bench NAME=report-scale QUICK=1                         10 and 300 questions
    python -m lab.bench report-scale --report lab/results/DATE-report-scale

The figures: a row per number of questions.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path as File
from statistics import median
from typing import Any

import numpy as np
from selenium import webdriver
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from lab.bench import about, header, table, write_report
from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cli.main import main as command
from openrlhf_rpo.errors import Failed, UsageError
from openrlhf_rpo.exchange.text import load_tokenizer
from openrlhf_rpo.reports.live import LiveRun
from openrlhf_rpo.run.files import tokenizer_fingerprint
from openrlhf_rpo.types import CacheDecision, Path, Question, StepRecord, Visit

VISITS, BATCH, WORDS, COMMITS, OPTIONS = 3, 96, 5_000, 40, 140
CHROMIUM = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-dev-shm-usage", "--disable-component-update", "--disable-sync", "--window-size=1400,1000"),
)
AIM_S = 3.0
ROW = "document.querySelector('.row[aria-selected=true]')"
FIGURES = ("ready_s", "questions_s", "question_s", "keypress_ms")
WATCHER = """
import sys, time
from openrlhf_rpo.reports.live import LiveRun
run, after, mark = LiveRun("r", sys.argv[1], None, None), -1, ""
while True:
    news = run.news(after, mark)
    after, mark = news["after"], news["mark"]
    print(after, flush=True)
    time.sleep(0.2)
"""


def make_tokenizer(folder: File, rng: np.random.Generator) -> None:
    """One token per word; words of 2 to 9 letters after a space."""
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = {"".join(rng.choice(letters, rng.integers(2, 10))) for _ in range(2 * WORDS)}
    vocabulary = {f"Ġ{word}": number for number, word in enumerate(sorted(words)[:WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary | {"<unk>": len(vocabulary)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<unk>").save_pretrained(folder)


def make_run(folder: File, model: File, n: int, tokens: int, rng: np.random.Generator) -> None:
    """Write a run that visited each of ``n`` questions ``VISITS`` times."""
    tokenizer = load_tokenizer(str(model), offline=True)
    weights = 1 / (np.arange(1, WORDS + 1) + 2.7)
    stream = rng.permutation(WORDS)[rng.choice(WORDS, size=2_000_000, p=weights / weights.sum())]

    def draw(length: int) -> tuple[int, ...]:
        start = int(rng.integers(0, len(stream) - length))
        return tuple(stream[start : start + length].tolist())

    ids = [f"{number:016x}" for number in range(n)]
    known = [Question(i, "", "42", text=tokenizer.decode(draw(60))) for i in ids]
    with PathCache.open(f"sqlite:///{folder}/rpo_cache.db", {"tokenizer": tokenizer_fingerprint(tokenizer)}) as cache:
        cache.describe(known, str(model))
        cache.set_options({f"an.option_{number}": "0" for number in range(OPTIONS)})
        cache.commit_initial([Path(i, draw(tokens), None, "stop", 1.0, 1.0) for i in ids])
        cache.mark_initialised()
        step = 0
        for _ in range(VISITS):
            for start in tqdm(range(0, n, BATCH), desc=f"Making {n:,} questions", unit="step", leave=False, delay=2):
                step += 1
                chosen = ids[start : start + BATCH]
                decisions = [decision(path, step, tokens, draw, rng) for path in cache.paths(chosen).values()]
                metrics = {name: float(rng.random()) for name in ("rpo/score", "reward", "timing/step_total")}
                metrics |= {"rpo/tokens_generated_total": step * 1e5, "rpo/tokens_reused_total": step * 9e4}
                cache.commit_step(StepRecord(step, 0, step * BATCH, metrics), decisions)


def watched(url: str, tokens: int, rng: np.random.Generator) -> dict[str, float]:
    """The cost of watching in ms: of commits alone, of commits while another process asks, and of an answer."""
    with PathCache.open(url) as cache:
        ids = cache.question_ids()[:BATCH]
        same = cache.paths(ids[:1])[ids[0]].token_ids

        def draw(length: int) -> tuple[int, ...]:
            return same[:length]

        def commit() -> float:
            step = cache.latest_step + 1
            decisions = [decision(path, step, tokens, draw, rng) for path in cache.paths(ids).values()]
            started = time.perf_counter()
            cache.commit_step(StepRecord(step, 0, step, {"rpo/score": 0.5}), decisions)
            return time.perf_counter() - started

        alone = [commit() for _ in range(COMMITS)]
        with subprocess.Popen([sys.executable, "-c", WATCHER, url], stdout=subprocess.PIPE, text=True) as watcher:
            watcher.stdout.readline()
            beside = [commit() for _ in range(COMMITS)]
            watcher.kill()
    run = LiveRun("r", url, None, None)
    told = run.news(-1, "")
    times = []
    for _ in range(COMMITS):
        started = time.perf_counter()
        run.news(told["after"], told["mark"])
        times.append(time.perf_counter() - started)
    values = {"news_ms": times, "commit_ms": alone, "commit_watched_ms": beside}
    return {name: 1000 * median(found) for name, found in values.items()}


def decision(parent: Path, step: int, tokens: int, draw, rng: np.random.Generator) -> CacheDecision:
    """Replace the path with probability 2/3, after a cut that is uniform up to half of it."""
    cut = int(rng.integers(1, tokens // 2))
    kept = len(parent) - cut
    visit = Visit(parent.question_id, step, cut, kept, tokens, 8, int(rng.integers(0, 9)), "best")
    ids = (*parent.token_ids[:kept], *draw(cut))
    new = Path(parent.question_id, ids, None, "stop", 1.0, 0.75, kept, step, None, parent.path_id)
    return CacheDecision(new if rng.random() < 2 / 3 else None, visit)


def opened(file: File, n: int) -> dict[str, float]:
    """The times of a fresh browser."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for word in (*CHROMIUM, f"--user-data-dir={profile}"):
            options.add_argument(word)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            driver.set_script_timeout(120)
            return look(driver, file, n)
        finally:
            driver.quit()


def look(driver: webdriver.Chrome, file: File, n: int) -> dict[str, float]:
    """Times by the page's clock; each part ends with the frame that shows it."""

    def seconds(action: str, condition: str) -> float:
        script = (
            "const done = arguments[0], from = performance.now(); ACTION; const look = () => (CONDITION) ?"
            " requestAnimationFrame(() => done((performance.now() - from) / 1000)) : setTimeout(look, 2); look();"
        )
        return driver.execute_async_script(script.replace("ACTION", action).replace("CONDITION", condition))

    started = time.perf_counter()
    driver.get(f"file://{file}")
    seconds("0", "document.documentElement.dataset.ready && document.querySelector('canvas')")
    ready = time.perf_counter() - started
    questions = seconds("document.getElementById('tab-questions').click()", "document.querySelector('.row')")
    question = seconds("document.querySelector('.row').click()", "document.getElementById('path-text')")
    key = "document.getElementById('list').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown'}))"
    keys = [seconds(f"const was = {ROW}.id; {key}", f"{ROW}.id !== was") for _ in range(min(50, n - 2))]
    return {"ready_s": ready, "questions_s": questions, "question_s": question, "keypress_ms": 1000 * median(keys)}


def measure(n: int, tokens: int, repeats: int) -> dict[str, float]:
    """A run of ``n`` questions: sizes of its database and report, and median times of ``repeats`` browsers."""
    with tempfile.TemporaryDirectory() as place:
        folder, rng = File(place), np.random.default_rng(n)
        make_tokenizer(folder / "model", rng)
        make_run(folder / "run", folder / "model", n, tokens, rng)
        file = folder / "report.html"
        started = time.perf_counter()
        status = command(["report", str(folder / "run"), "--out", str(file)])
        written = time.perf_counter() - started
        if status:
            raise Failed(f"`openrlhf-rpo report` ended with status {status}")
        times = [opened(file, n) for _ in range(repeats)]
        live = watched(f"sqlite:///{folder}/run/rpo_cache.db", tokens, rng)
        row = {
            "questions": n,
            "tokens": tokens,
            "database_mb": (folder / "run" / "rpo_cache.db").stat().st_size / 1e6,
            "file_mb": file.stat().st_size / 1e6,
            "written_s": written,
        }
        return row | {name: median(one[name] for one in times) for name in FIGURES} | live


def page(figures: dict[str, Any]) -> list[str]:
    """The report as Markdown."""
    rows = figures["rows"]
    columns = list(rows[0])
    cells = [[f"{row[c]:,.0f}" if c in ("questions", "tokens") else f"{row[c]:,.2f}" for c in columns] for row in rows]
    worst = max(row["ready_s"] + row["questions_s"] for row in rows)
    watching = [row["commit_watched_ms"] - row["commit_ms"] for row in rows]
    return [
        *header("The report at scale", figures),
        f"{figures['browser']}. Load average before and after: {figures['load']}. The docstring of "
        "`lab/scale/report_scale.py` describes the runs and the times.",
        "",
        f"**Result.** From opening the file to the list of questions: at most {worst:.2f} s (aim: {AIM_S:.0f} s). The "
        f"commit of a step took {min(watching):+.1f} to {max(watching):+.1f} ms longer while a page asked 5 times a second.",
        "",
        *table(columns, cells),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 1_000, 10_000], help="questions")
    parser.add_argument("--tokens", type=int, default=600, help="tokens per path (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="browsers per size (default: %(default)s)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure a run of each size."""
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        raise UsageError("chromium and chromedriver are needed: apt-get install chromium chromium-driver")
    before = os.getloadavg()[0]
    sizes, repeats = ([10, 300], 1) if args.quick else (args.sizes, args.repeats)
    rows = [measure(n, args.tokens, repeats) for n in sizes]
    said = subprocess.run(["chromium", "--version"], capture_output=True, text=True).stdout
    browser = said.split(" built")[0].strip()
    figures = about() | {"rows": rows, "browser": browser, "load": f"{before:.1f}, {os.getloadavg()[0]:.1f}"}
    write_report(args.report, figures, page(figures))
    return figures
