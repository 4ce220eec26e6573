"""The real command on the real components: Ray, DeepSpeed and a vLLM engine on CPU, a few steps of the testbed."""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock

from lab.attempt import title_of
from lab.compare import differences
from lab.testbed import model_dir, write_dataset
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.cli.train_rpo_ray import main
from openrlhf_rpo.platform.cpu import free_port

BATCH, SAMPLES = 4, 4

# Ray's workers yield to everything else on the host, here to the other test process, and would starve.
os.environ.update(RAY_worker_niceness="0")


@dataclass
class TrainingRun:
    """One finished (or killed) training command and where its files are."""

    folder: Path
    status: int
    output: str
    seconds: float = math.nan
    """From the last act of ``run_acting`` to its end."""

    def cache(self) -> PathCache:
        """Read-only, because tests in other processes read it too."""
        return PathCache.open_to_read(f"sqlite:///{self.folder}/checkpoints/rpo_cache.db")

    def copy_checkpoints(self, folder: Path) -> None:
        """Without the files that SQLite keeps while somebody reads, which may go at any moment."""
        ignore = shutil.ignore_patterns("*.db-wal", "*.db-shm")
        shutil.copytree(self.folder / "checkpoints", folder / "checkpoints", ignore=ignore)

    def differences(self, other: "TrainingRun") -> list[str]:
        """What differs in database, final weights and last checkpoint."""
        return differences(
            self.folder / "checkpoints", self.folder / "model", other.folder / "checkpoints", other.folder / "model"
        )

    def last_words(self) -> str:
        """What a run said that broke, which took it less than a minute."""
        assert self.status == 1, self.output[-3000:]
        assert self.seconds < 60
        return self.output[self.output.rindex("\nerror: ") + 1 :]

    @property
    def step_lines(self) -> list[str]:
        return [line for line in self.output.splitlines() if ") step " in line or ")\x1b[0m step " in line]


def training_command(folder: Path, steps: int, **options: object) -> list[str]:
    """The command for ``steps`` steps of 4 questions x 4 samples.

    Options are given with __ for the dot; None leaves one out.
    """
    data = write_dataset("main", folder / "data", BATCH * steps, 8, seed=0)
    values = {
        "actor.model_name_or_path": model_dir("main"),
        "data.prompt_dataset": data[0],
        "data.input_key": "question",
        "data.label_key": "answer",
        "data.max_len": 640,
        "rpo.reward.functions": "math",
        "algo.advantage.estimator": "group_norm",
        "algo.kl.init_coef": 0,
        "rollout.batch_size": BATCH,
        "rollout.n_samples_per_prompt": SAMPLES,
        "rollout.micro_batch_size": 8,
        "train.batch_size": BATCH * SAMPLES,
        "train.micro_batch_size": 8,
        "actor.adam.lr": 1e-4,
        "actor.num_gpus_per_node": 1,
        "ref.num_gpus_per_node": 1,
        "critic.num_gpus_per_node": 1,
        "reward.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "ckpt.path": folder / "checkpoints",
        "ckpt.output_dir": folder / "model",
        **{name.replace("__", "."): value for name, value in options.items()},
    }
    command = [sys.executable, "-m", "openrlhf_rpo.cli.train_rpo_ray"]
    for name, value in values.items():
        if value is None:
            continue
        command += (
            [f"--{name}"] if value is True else [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
        )
    return command


def run_training(folder: Path, steps: int, **options: object) -> TrainingRun:
    """Run the command to its end; its output also lies in the folder."""
    command = training_command(folder, steps, **options)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=800)
    with (folder / "output.txt").open("a") as log:
        log.write(done.stdout)
    return TrainingRun(folder, done.returncode, done.stdout)


@contextmanager
def watched(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A command whose output is read; killed with all that it started when its reader fails or runs out of time.

    Leaving ``Popen`` would wait for its end instead, and a run that hangs has none.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as process:
        try:
            yield process
        except BaseException:
            kill_tree(process.pid)
            raise


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says that ends before anything starts, in this process: nothing of it outlives the call."""
    assert main(words[3:]) == 1
    return capsys.readouterr().err


def run_acting(folder: Path, steps: int, acts: dict[str, Callable[[int], None]], **options: object) -> TrainingRun:
    """Run the command to its end, and call an act with its process id when its marker is printed for the first time."""
    command, waiting, lines, last = training_command(folder, steps, **options), dict(acts), [], None
    with watched(command, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            for marker in [m for m in waiting if m in line]:
                waiting.pop(marker)(process.pid)
                last = time.perf_counter()
    seconds = time.perf_counter() - last if last is not None else math.inf
    return TrainingRun(folder, process.returncode, "".join(lines), seconds)


def kill_one(title: str) -> Callable[[int], None]:
    """An act: SIGKILL to one process of the run whose command line contains ``title``."""

    def act(pid: int) -> None:
        tree = psutil.Process(pid).children(recursive=True)
        next(p for p in tree if title in title_of(p)).kill()

    return act


def run_until(folder: Path, steps: int, marker: str, **options: object) -> TrainingRun:
    """Run the command, and kill its whole process tree (SIGKILL) as soon as it prints ``marker``."""
    command = training_command(folder, steps, **options)
    lines = []
    with watched(command, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if marker in line:
                kill_tree(process.pid)
                break
    return TrainingRun(folder, process.returncode, "".join(lines))


def kill_tree(pid: int) -> None:
    """SIGKILL a process and all that it started, and wait until those are gone; the process is its parent's to wait for."""
    tree: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):  # it has ended
        tree.append(psutil.Process(pid))
        tree += tree[0].children(recursive=True)
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(tree[1:], timeout=30)


RAY = str(Path(sys.executable).with_name("ray"))


@contextmanager
def ray_node(*words: str, inside: Sequence[object] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """``ray start WORDS``, a node with files of its own; ended through its own process, never by ``ray stop``.

    ``inside``: a command that ends by executing the words after it.
    """
    command = [*map(str, inside), RAY, "start", "--block", "--num-gpus=0", "--disable-usage-stats", *words]
    command += [f"--dashboard-agent-listen-port={free_port()}"]  # the usual one belongs to whichever Ray came first
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # a short name: Ray's sockets are below it
        process = start_ray([*command, f"--temp-dir={folder}"], Path(folder, "log.txt"))
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=60)


def start_ray(command: list[str], log: Path, attempts: int = 3) -> subprocess.Popen[bytes]:
    """A node that has joined. Ray gives it 30 seconds, which a busy host may exceed: then once more."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    while "Ray runtime started" not in (said := log.read_text()):
        if process.poll() is not None:
            assert attempts > 1 and "timed out during startup" in said, said
            return start_ray(command, log, attempts - 1)
        time.sleep(0.2)
    return process


DETERMINISTIC = {
    "train__num_episodes": 2,
    "train__full_determinism_enable": True,
    "ckpt__save_steps": 2,
    "eval__steps": 3,
    "eval__temperature": 1.0,
    "eval__n_samples_per_prompt": 2,
}


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> TrainingRun:
    """Six deterministic steps with evaluation, checkpoints, TensorBoard and W&B; shared by every test that only looks.

    The test process that comes first makes it; the others wait for it.
    """
    shared = tmp_path_factory.getbasetemp()
    folder = (shared if worker_id == "master" else shared.parent) / "finished"
    done = folder / "run.json"
    with FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            held_out = write_dataset("main", folder / "data", 1, 8, seed=0)[1]
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("WANDB_MODE", "offline")
                patch.setenv("WANDB_API_KEY", "0" * 40)
                patch.setenv("WANDB_DIR", str(folder))
                run = run_training(
                    folder,
                    3,
                    **DETERMINISTIC,
                    eval__dataset=held_out,
                    logger__tensorboard_dir=folder / "tensorboard",
                    logger__wandb__run_name="run",
                    logger__wandb__key="on",
                )
            done.write_text(json.dumps([run.status, run.output]))
    return TrainingRun(folder, *json.loads(done.read_text()))


@pytest.fixture(scope="session")
def same_options(finished_run: TrainingRun) -> dict[str, object]:
    """Those that steer a run to where the finished one went."""
    return {**DETERMINISTIC, "eval__dataset": finished_run.folder / "data" / "heldout.jsonl"}


@pytest.fixture(autouse=True)
def own_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command starts a Ray of its own unless a test says otherwise."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert "RAY_ADDRESS" not in os.environ


# What takes longest, by the names of the files.
LONGEST_FIRST = [
    "faults",
    "studies",
    "two_nodes",
    "options",
    "asynchronous",
    "evaluation",
    "resume",
    "methods",
    "real",
    "import",
    "ray_job",
    "shared_prefix",
    "model_code",
]


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Everything here starts Ray (``-m "not ray"`` leaves it out) and takes long, so it goes first, the longest files before
    the others, so that all test processes end together.

    One test process makes the finished run. The other shows with quick tests that something moves, then takes what needs no
    finished run, the image first, then all take the rest.
    """
    here = Path(__file__).parent
    place = {f"test_{name}": i for i, name in enumerate(LONGEST_FIRST)}
    ours = [item for item in items if item.path.parent == here]
    for item in ours:
        item.add_marker("ray")
        item.add_marker(pytest.mark.timeout(1800))  # several runs a test, two test processes at a time
    yield  # to what -m leaves out
    need = {item.path for item in items if "finished_run" in item.fixturenames}
    first = min(need, key=lambda path: place.get(path.stem, len(place)), default=None)

    def turn(item: pytest.Item) -> tuple[int, int]:
        if item.path.parent != here:
            return {"algo": 1, "image": 2}.get(item.path.parent.name, 5), 0
        when = 0 if item.path == first else 4 if item.path in need else 3
        return when, place.get(item.path.stem, len(place))

    items.sort(key=turn)
