"""``cache import`` by the training command's own options and checks: a C(0) that the training command then takes."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path as File

import pytest

from lab.testbed import model_dir
from lab.testbed.task import CAREFUL, answer, demonstrate, draw_split
from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.cli.main import main

REPOSITORY = File(__file__).parents[4]


@pytest.fixture
def data(tmp_path) -> File:
    """Eight questions of the testbed, seven with a worked solution, one of which is wrong."""
    rows = []
    for i, question in enumerate(draw_split("main", 8, 0, heldout=False)):
        solution = demonstrate(question, CAREFUL, random.Random(i))
        worked = "\\boxed{0000}x" if i == 6 else None if i == 7 else solution
        rows.append({"question": question, "answer": answer(question), "worked": worked})
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def cache_command(*words: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-m", "openrlhf_rpo.cli.main", "cache", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def training_options(data: File, folder: File) -> list[object]:
    values = {
        "actor.model_name_or_path": model_dir("main"),
        "actor.num_gpus_per_node": 1,
        "critic.num_gpus_per_node": 1,
        "data.prompt_dataset": data,
        "data.input_key": "question",
        "data.label_key": "answer",
        "data.max_len": 768,
        "rpo.reward.functions": "math",
        "algo.kl.init_coef": 0,
        "rollout.batch_size": 4,
        "rollout.n_samples_per_prompt": 4,
        "train.batch_size": 16,
        "train.micro_batch_size": 8,
        "vllm.num_engines": 1,
        "rpo.device": "cpu",
        "ckpt.path": folder / "checkpoints",
        "ckpt.output_dir": folder / "model",
    }
    return [word for name, value in values.items() for word in (f"--{name}", value)]


def test_worked_solutions_become_the_initial_cache_of_a_run(data, tmp_path, capsys) -> None:
    """In a process of its own, so that all that is imported may speak: standard output is the answer's alone."""
    words = training_options(data, tmp_path / "run")
    done = cache_command("import", f"{data}:worked", *words, "--train.dynamic_batch_enable", "--json")
    assert done.returncode == 0, done.stderr
    assert "[Warning]" in done.stderr  # OpenRLHF's
    told = json.loads(done.stdout)
    assert (told["read"], told["matched"], told["imported"], told["questions"]) == (8, 8, 6, 8)
    assert told["skipped"] == {"not_rewarded": 1, "empty": 1}
    with PathCache.open_to_read(f"sqlite:///{tmp_path}/run/checkpoints/rpo_cache.db") as cache:
        assert cache.initialised and cache.latest_step == 0 and cache.count() == 6
        assert all(path.score == 1.0 and path.token_ids[-1] == 1 for path in cache.iter_paths())
        assert set(cache.fingerprints) == {"data", "tokenizer", "template", "base model", "weights"}

    assert main(["cache", "import", f"{data}:worked", *map(str, words)]) == 1
    assert "is complete already" in capsys.readouterr().err


def test_rewards_that_fail_end_it_with_what_to_do(data, tmp_path, capsys) -> None:
    (tmp_path / "reward.py").write_text(
        "def reward_func(queries, prompts, labels):\n    raise ValueError('no such answer')\n"
    )
    words = training_options(data, tmp_path / "run")
    place = words.index("--rpo.reward.functions")
    words[place : place + 2] = ["--reward.remote_url", tmp_path / "reward.py"]
    assert main(["cache", "import", f"{data}:worked", *map(str, words), "--json"]) == 1
    said = capsys.readouterr()
    assert "Traceback" not in said.err and said.out == ""
    assert "rewards failed" in said.err and "no such answer" in said.err
    assert "Run the same command again to continue where it stopped" in said.err


def test_a_source_that_cannot_serve_is_refused_with_what_it_has(data, tmp_path, capsys) -> None:
    words = training_options(data, tmp_path / "run")
    for source, message in (
        (f"{data}:solution", "no column 'solution'; its columns are question, answer, worked"),
        (tmp_path / "none.parquet", "there is no file"),
    ):
        assert main(["cache", "import", str(source), *map(str, words)]) == 1
        assert message in capsys.readouterr().err
    assert main(["cache", "import", f"{data}:worked", *map(str, words), "--rpo.init.mode", "bulk"]) == 1
    assert "--rpo.init.mode: `cache import SOURCE` sets it itself" in capsys.readouterr().err
