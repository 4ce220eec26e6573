"""The report at scale: bytes of the file and seconds until a browser shows it, at 10, 1,000 and 10,000 questions.

Each run has one initial path and three visits a question; two of three visits replace the path after a cut. Texts are
words of a fixed vocabulary, drawn with Zipf's law, so that they compress about as well as English does; a path has
``--tokens`` tokens, one a word. The file is written by the real command and opened in headless Chromium (chromium and
chromedriver must be installed), in a process of its own with an empty profile.

ready_s: from navigation until the overview is drawn. questions_s: from then until the list of questions stands.
question_s: from a click until a question's lineage stands. keypress_ms: one step in the list by keyboard, median of 50.

Of the live view: news_ms: the answer to a page that has every step, commit_ms and commit_watched_ms: the commit of a step of
96 questions alone, and while another process asks five times a second; medians of 40.

    python benchmarks/report_scale.py --quick                         10 and 300 questions
    python benchmarks/report_scale.py --report benchmarks/results/DATE-report-scale

The last line is one JSON object: the rows.
"""

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path as File
from statistics import median

import numpy as np
from selenium import webdriver
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cli.main import main as command
from openrlhf_rpo.exchange.text import load_tokenizer
from openrlhf_rpo.reports.live import LiveRun
from openrlhf_rpo.run_files import tokenizer_fingerprint
from openrlhf_rpo.types import CacheDecision, Path, Question, StepRecord, Visit

VISITS, BATCH, WORDS, COMMITS = 3, 96, 5_000, 40
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
    """One token a word; words of 2 to 9 letters with a space before."""
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = {"".join(rng.choice(letters, rng.integers(2, 10))) for _ in range(2 * WORDS)}
    vocabulary = {f"Ġ{word}": number for number, word in enumerate(sorted(words)[:WORDS])}
    made = Tokenizer(models.WordLevel(vocabulary | {"<unk>": len(vocabulary)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<unk>").save_pretrained(folder)


def make_run(folder: File, model: File, n: int, tokens: int, rng: np.random.Generator) -> None:
    """A run that has visited each of ``n`` questions ``VISITS`` times."""
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
    """What watching costs the run: commits alone, then beside a process that asks; and what an answer costs."""
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
    """Two times of three the path is replaced, after a cut that is uniform up to half of it."""
    cut = int(rng.integers(1, tokens // 2))
    kept = len(parent) - cut
    visit = Visit(parent.question_id, step, cut, kept, tokens, 8, int(rng.integers(0, 9)), "best")
    ids = parent.token_ids[:kept] + draw(cut)
    new = Path(parent.question_id, ids, None, "stop", 1.0, 0.75, kept, step, None, parent.path_id)
    return CacheDecision(new if rng.random() < 2 / 3 else None, visit)


def opened(file: File, n: int) -> dict[str, float]:
    """How long a fresh browser takes."""
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
    """Times as the page's own clock has them; each part ends with the frame that shows it."""

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
    """A run of ``n`` questions: its database, its report, and the median times of ``repeats`` browsers."""
    with tempfile.TemporaryDirectory() as place:
        folder, rng = File(place), np.random.default_rng(n)
        make_tokenizer(folder / "model", rng)
        make_run(folder / "run", folder / "model", n, tokens, rng)
        file = folder / "report.html"
        started = time.perf_counter()
        status = command(["report", str(folder / "run"), "--out", str(file)])
        written = time.perf_counter() - started
        if status:
            raise SystemExit(f"the command ended with status {status}")
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


def write_report(name: str, rows: list[dict[str, float]], browser: str, load: tuple[float, float]) -> None:
    """NAME.md and NAME.json."""
    hardware = f"{os.cpu_count()} cores ({platform.machine()})"
    columns = list(rows[0])
    cells = [[f"{row[c]:,.0f}" if c in ("questions", "tokens") else f"{row[c]:,.2f}" for c in columns] for row in rows]
    worst = max(row["ready_s"] + row["questions_s"] for row in rows)
    watching = [row["commit_watched_ms"] - row["commit_ms"] for row in rows]
    lines = [
        f"# The report at scale ({datetime.date.today()})",
        "",
        f"Hardware: {hardware}. Versions: Python {platform.python_version()}, {browser}, "
        f"transformers {version('transformers')}. Load average before and after: {load[0]:.1f}, {load[1]:.1f}.",
        "",
        f"    {' '.join(['python', *sys.argv])}",
        "",
        "The docstring of `benchmarks/report_scale.py` says how the runs are made and what is timed.",
        "",
        f"**What it says.** From opening the file to the list of questions: {worst:.2f} s at most (aim: {AIM_S:.0f} s). The "
        f"commit of a step took {min(watching):+.1f} to {max(watching):+.1f} ms longer while a page asked 5 times a second.",
        "",
        "| " + " | ".join(columns) + " |",
        "| " + " | ".join("---" for _ in columns) + " |",
        *("| " + " | ".join(row) + " |" for row in cells),
        "",
    ]
    File(f"{name}.md").write_text("\n".join(lines))
    File(f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 and 300 questions, one browser each")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 1_000, 10_000], help="questions")
    parser.add_argument("--tokens", type=int, default=600, help="tokens a path (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="browsers a size (default: %(default)s)")
    parser.add_argument("--report", help="write NAME.md and NAME.json")
    args = parser.parse_args()
    if args.report:
        File(args.report).parent.mkdir(parents=True, exist_ok=True)
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        raise SystemExit("chromium and chromedriver are needed: apt-get install chromium chromium-driver")
    before = os.getloadavg()[0]
    sizes, repeats = ([10, 300], 1) if args.quick else (args.sizes, args.repeats)
    rows = [measure(n, args.tokens, repeats) for n in sizes]
    if args.report:
        with os.popen("chromium --version") as said:
            browser = said.read().split(" built")[0].strip()
        write_report(args.report, rows, browser, (before, os.getloadavg()[0]))
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
