"""A run whose questions and paths are as nasty as text can be, with a tokenizer of bytes, and one headless Chromium."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path as File
from typing import Any

import pytest
from selenium import webdriver
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.exchange.text import load_tokenizer
from openrlhf_rpo.run.files import tokenizer_fingerprint
from openrlhf_rpo.run.samples import FOLDER, SampleLog
from openrlhf_rpo.types import OWN, CacheDecision, Group, Path, Prefix, Question, Sample, StepRecord, Visit

ATTACK = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
TEXTS = [
    "one plus one? " + ATTACK,
    "Ünïcödé 🧮 <b>bold</b> \u202eturned round",
    "<!-- <script> &lt; two times three?",
]
STEPS = 4


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> File:
    """One token a byte, so that a cut can go through a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def encode(tokenizer_folder: File) -> Callable[[str], tuple[int, ...]]:
    tokenizer = load_tokenizer(str(tokenizer_folder), offline=True)
    return lambda text: tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def figures(step: int, **changes: float) -> dict[str, float]:
    """What a step records, in short; everything is a simple function of the step."""
    return {
        "rpo/score": 0.5 + step / 10,
        "reward": 0.4 + step / 10,
        "rpo/generated_tokens": 100.0 - 10 * step,
        "rpo/prefix_tokens": 10.0 * step,
        "rpo/path_length": 100.0,
        "rpo/truncated_rate": 0.0,
        "rpo/groups_without_variance": step / 4,
        "rpo/groups_all_right": step / 4,
        "rpo/groups_all_wrong": 0.0,
        "rpo/tokens_generated_total": 1000.0 * step,
        "rpo/tokens_reused_total": 500.0 * (step - 1),
        "rpo/cache/replaced": 0.5,
        "timing/rollout": 2.0,
        "timing/train": 1.0,
        "timing/step_total": 4.0,
        "actor_grad_norm": 0.1 * step,
        "kl": 0.0,
    } | changes


def commit(cache: PathCache, step: int, encode: Callable, **changes: float) -> None:
    """Question 0 keeps 8 tokens of its path and goes on; the others keep theirs, 1 from a wrong path once."""
    parent = cache.paths(["q0"])["q0"]
    ids = tuple(parent.token_ids[:8]) + encode(f" step {step} {ATTACK} 🧮")
    path = Path("q0", ids, None, "stop", 1.0, 0.75, 8, step, parent_id=parent.path_id)
    reset = Visit("q1", step, 5, 3, 20, 4, 4 * (step % 2), "reset", step == STEPS, 1 if step == 2 else OWN)
    decisions = [
        CacheDecision(path, Visit("q0", step, len(parent) - 8, 8, len(ids), 4, 2, "best")),
        CacheDecision(None, reset),
    ]
    cache.commit_step(StepRecord(step, 0, 2 * step, figures(step, **changes)), decisions)


@pytest.fixture(scope="session")
def begin_run(tokenizer_folder: File, encode: Callable) -> Callable[..., str]:
    """``begin_run(folder, data="d")``: a cache with three questions, two of which have an initial path; its URL."""

    def begin(folder: File, **fingerprints: str) -> str:
        url = f"sqlite:///{folder}/rpo_cache.db"
        tokenizer = load_tokenizer(str(tokenizer_folder), offline=True)
        own = {"data": "d", "tokenizer": tokenizer_fingerprint(tokenizer), "template": "t", "base model": "m"}
        with PathCache.open(url, own | fingerprints) as cache:
            cache.describe(
                [Question(f"q{i}", f"<u>{t}", str(i), text=t) for i, t in enumerate(TEXTS)], str(tokenizer_folder)
            )
            cache.set_options({"train.num_episodes": "2", "rollout.batch_size": "1", "actor.adam.lr": "0.001"})
            first = [Path(f"q{i}", encode(f"initial {i} {TEXTS[i]}"), None, "stop", 1.0, 1.0) for i in range(2)]
            cache.commit_initial(first)
            cache.mark_initialised()
            cache.record_evaluation(0, {"eval_default_pass1": 0.5})
        return url

    return begin


@pytest.fixture(scope="session")
def take_step(encode: Callable) -> Callable[..., None]:
    """``take_step(url, 3)``: commit step 3, and its samples."""
    sample = Sample(Prefix(), (1, 2), (-1.0, -1.0), "length", 0.0, 0.25)

    def take(url: str, step: int, **changes: float) -> None:
        with PathCache.open(url) as cache:
            commit(cache, step, encode, **changes)
            if step % 2 == 0:
                cache.record_evaluation(step, {"eval_default_pass1": 0.5 + step / 20})
        log = SampleLog(
            File(url.removeprefix("sqlite:///")).parent / FOLDER, 1, lambda lists: [f"sample {ATTACK}"] * len(lists)
        )
        log.write(step, [Group(Question("q0", "p", "0"), (sample, sample))], [])

    return take


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, begin_run: Callable, take_step: Callable) -> File:
    """A finished run of four steps with samples."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    url = begin_run(folder)
    for step in range(1, STEPS + 1):
        take_step(url, step)
    return folder


@pytest.fixture(scope="session")
def plain_folder(tmp_path_factory: pytest.TempPathFactory) -> File:
    """What OpenRLHF's own trainer leaves: event files of four steps of 8 samples of 100 tokens, evaluated twice."""
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path_factory.mktemp("plain")
    with SummaryWriter(str(folder / "run")) as writer:
        for step in range(1, 5):
            for name, value in {
                "score": 0.3 + step / 10,
                "rollout/response_length_mean": 100,
                "rollout/num_samples": 8,
                "rollout/truncated_rate": 0.125,
                "timing/generation": 6,
                "timing/step_total": 8,
                "actor_grad_norm": 0.5,
            }.items():
                writer.add_scalar(f"train/{name}", value, step)
        for step, accuracy in ((2, 0.55), (4, 0.65)):
            writer.add_scalar("eval/eval_default_pass1", accuracy, step)
    return folder


@pytest.fixture(scope="session")
def written(run_folder: File, plain_folder: File, tmp_path_factory: pytest.TempPathFactory) -> File:
    """The report of both, made by the command."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    assert main(["report", f"ours={run_folder}", f"plain={plain_folder}", "--out", str(file)]) == 0
    return file


# ── The browser ──

CHROMIUM = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-dev-shm-usage", "--disable-component-update", "--disable-sync", "--window-size=1200,900"),
)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One headless Chromium for all tests; skipped where there is none, but never where CI is set."""
    programs = shutil.which("chromium"), shutil.which("chromedriver")
    if None in programs:
        message = "no Chromium on this machine: apt-get install chromium chromium-driver (.ci/run installs them)"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    profile = tempfile.mkdtemp(prefix="rpo_chromium_")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for word in (*CHROMIUM, f"--user-data-dir={profile}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs[1]))
    driver.set_script_timeout(60)
    try:
        yield driver
    finally:
        driver.quit()
        shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """On a desktop's screen in light colours; whatever the page complained of in the console fails the test."""
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    chromium.get("about:blank")
    chromium.get_log("browser")
    yield chromium
    assert [entry["message"] for entry in chromium.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
