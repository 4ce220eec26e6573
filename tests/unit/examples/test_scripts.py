"""Every script of examples/scripts, whichever there are: its commands work, its folders are its own, words are passed on.

The commands go through the training command's own ``--dry-run``, as they stand but for the model and the data, which are
the testbed's (of two flags the later counts).
"""

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.testbed import model_dir, write_dataset
from lab.testbed.task import CAREFUL, demonstrate
from openrlhf_rpo import platform
from openrlhf_rpo.cli import doctor, train_rpo_ray
from openrlhf_rpo.launch import cluster
from openrlhf_rpo.launch.options import parse

ROOT = Path(__file__).parents[3]
SCRIPTS = sorted(path.name for path in (ROOT / "examples" / "scripts").iterdir())
LAPTOP = "train_rpo_testbed_laptop.sh"
FOLDERS = ("--ckpt.path", "--ckpt.output_dir", "--logger.tensorboard_dir")
GPU_SCRIPTS = [name for name in SCRIPTS if name != LAPTOP]
GPUS = {
    "train_rpo_multi_node_7b.sh": 16,
    "train_rpo_one_gpu_1.5b.sh": 1,
    "train_rpo_lora_one_gpu_1.5b.sh": 1,
}  # the others: 8
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}={% endif %}"


@pytest.fixture(scope="session")
def testbed(tmp_path_factory) -> Path:
    """A folder with a tiny model that has a chat template and, on paper, a long context; 128 questions, some held-out ones,
    and worked solutions."""
    folder = tmp_path_factory.mktemp("testbed")
    model = Path(shutil.copytree(model_dir("main"), folder / "model"))
    changes = {"tokenizer_config": {"chat_template": TEMPLATE}}
    changes["config"] = {"max_position_embeddings": 131_072}
    for name, changed in changes.items():
        file = model / f"{name}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    train, _ = write_dataset("main", folder, 128, 8, seed=0)
    rows = [json.loads(line) for line in train.read_text().splitlines()]
    for i, row in enumerate(rows):
        row["solution"] = demonstrate(row["question"], CAREFUL, random.Random(i))
    (folder / "solutions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def on_the_testbed(words: list[str], testbed: Path) -> list[str]:
    """The command with what it would fetch replaced, on the device that it is for."""
    instead = {
        "--actor.model_name_or_path": testbed / "model",
        "--critic.model_name_or_path": testbed / "model",
        "--reward.model_name_or_path": testbed / "model",
        "--data.prompt_dataset": testbed / "train.jsonl",
        "--data.input_key": "question",
        "--data.label_key": "answer",
        "--eval.dataset": testbed / "heldout.jsonl",
        "--eval.split": "train",
        "--rpo.init.source": f"{testbed}/solutions.jsonl:solution",
        "--rpo.reward.workers": 1,
    }
    given = [word for name, value in instead.items() if name in words for word in (name, str(value))]
    return [*words, *given, "--rpo.device", "cuda", "--dry-run"]


@pytest.fixture
def dry_run(testbed, monkeypatch, capsys):
    """level -> topics of what the training command says of a command with --dry-run."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    platform.prepare()  # this host's own device, before the commands name theirs
    monkeypatch.setenv(platform.DEVICE_ENV, platform.device())
    monkeypatch.setattr(cluster, "has_nvcc", lambda: True)  # as on the hosts that the scripts are for

    def examine(words: list[str]) -> dict[str, set[str]]:
        doctor.examine(on_the_testbed(words, testbed), as_json=True)
        levels: dict[str, set[str]] = {"pass": set(), "warn": set(), "fail": set()}
        for finding in json.loads(capsys.readouterr().out)["findings"]:
            levels[finding["level"]].add(finding["topic"])
        return levels

    return examine


def test_the_folder_holds_executable_scripts_only():
    assert LAPTOP in SCRIPTS
    for name in SCRIPTS:
        assert name.endswith(".sh") and os.access(ROOT / "examples" / "scripts" / name, os.X_OK), name


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_commands_pass_every_check_but_those_of_the_machine(shell, dry_run, name):
    """The first and the last command of a script: those between differ in the value of an option, which is parsed below."""
    commands = shell.commands(name)
    for words in {tuple(words): list(words) for words in (commands[0], commands[-1])}.values():
        levels = dry_run(words)
        assert levels["fail"] <= {"version", "Ray has"}
        expected = {"options", "model", "data", "reward", "cache"}
        expected |= {"initial cache"} if "import" in words else set()
        assert expected <= levels["pass"]


def test_cache_names_the_whole_file_of_the_cache_on_several_nodes(shell):
    for file, environment in (
        ("/var/tmp/rpo-grpo-7b-2-nodes.db", {}),
        ("/local/run.sqlite", {"CACHE": "/local/run.sqlite"}),
    ):
        words = shell.command("train_rpo_multi_node_7b.sh", **environment)
        assert words[words.index("--rpo.cache.url") + 1] == f"sqlite:///{file}"


@pytest.mark.parametrize("name", [*SCRIPTS, "README"])
def test_every_command_is_parsed_and_survives_ray_job_submit(shell, name):
    """It joins the words by the rules of Windows, and a shell takes them apart: both must agree."""
    calls = [words for words in shell.calls(name) if train_rpo_ray.__name__ in words]
    assert calls
    for words in calls:
        entrypoint = words[words.index("--") + 1 :] if words[:2] == ["job", "submit"] else ["python", *words]
        assert shlex.split(subprocess.list2cmdline(entrypoint)) == entrypoint
        assert entrypoint[:3] == ["python", "-m", train_rpo_ray.__name__]
        parse(entrypoint[3:])


@pytest.mark.parametrize("name", GPU_SCRIPTS)
def test_a_command_asks_for_the_gpus_that_its_header_names(shell, name):
    for words in shell.commands(name):
        assert sum(number for _, number, _ in cluster.required_devices(parse(words))) == GPUS.get(name, 8)


@pytest.mark.parametrize("name", SCRIPTS)
def test_words_behind_a_script_are_the_last_of_each_of_its_commands(shell, name):
    more = ["--train.seed", "7", "--data.input_template", "Solve: {}"]
    assert all(words[-4:] == more for words in shell.commands(name, *more))


@pytest.mark.parametrize("name", SCRIPTS)
def test_run_says_where_every_file_goes(shell, name, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    for words in shell.commands(name, RUN=str(elsewhere)):
        folders = [Path(words[words.index(option) + 1]) for option in FOLDERS]
        assert {folder.name for folder in folders} == {"checkpoints", "model", "tensorboard"}
        [run] = {folder.parent for folder in folders}
        assert run.is_relative_to(elsewhere)


def test_no_two_commands_share_a_folder(shell):
    others = [name for name in SCRIPTS if name != "train_rpo_resume.sh"]
    commands = [words for name in others for words in shell.commands(name)]
    paths = {words[words.index("--ckpt.path") + 1] for words in commands}
    assert len(paths) == len(commands) >= len(others) > 10


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_header_says_what_is_needed_where_files_go_and_what_was_not_tried(name):
    lines = (ROOT / "examples" / "scripts" / name).read_text().splitlines()
    header = " ".join(line.removeprefix("#").strip() for line in lines[1 : lines.index("set -euo pipefail")])
    assert "Needs: " in header and re.search("Folders?: |its folder, ", header) and "passed on" in header
    assert ("Not run on GPUs in this release." in header) == (name != LAPTOP)


def test_the_page_of_the_folder_lists_exactly_its_scripts():
    page = (ROOT / "examples" / "README.md").read_text()
    assert sorted(re.findall(r"^\| \[`([^`]+)`\]\(scripts/\1\) \|", page, re.MULTILINE)) == SCRIPTS


# ── As a person starts them: no stand-in for Python ──


def start(name: str, words: list[str], tmp: Path) -> subprocess.CompletedProcess[str]:
    """``ray job submit ... -- COMMAND`` runs the command, with this Python."""
    (tmp / "bin").mkdir()
    (tmp / "bin" / "ray").write_text('#!/bin/bash\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    (tmp / "bin" / "ray").chmod(0o755)
    (tmp / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp / "bin" / "python").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "RUN": str(tmp / "run")}
    env.pop("RAY_ADDRESS", None)
    script = ["bash", str(ROOT / "examples" / "scripts" / name)]
    return subprocess.run([*script, *words], env=env, capture_output=True, text=True, timeout=300)


def test_the_laptop_script_passes_its_own_dry_run(tmp_path):
    done = start(LAPTOP, ["--dry-run", "--rpo.device", "cpu"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pass  data: 128 questions, 64 held out" in done.stdout and "0 failed" in done.stderr
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_script_for_gpus_reaches_the_dry_run_of_the_training_command(testbed, tmp_path):
    replaced = ["--actor.model_name_or_path", "--data.prompt_dataset", "--data.input_key", "--data.label_key"]
    replaced += ["--eval.dataset", "--eval.split", "--rpo.reward.workers"]
    words = on_the_testbed(replaced, testbed)[len(replaced) :]
    done = start("train_rpo_dapo_7b.sh", words, tmp_path)
    failed = re.findall(r"^fail  ([\w ]+):", done.stdout, re.MULTILINE)
    assert set(failed) <= {"version", "Ray has"}, done.stdout + done.stderr
    assert "pass  options" in done.stdout and "pass  data: 128 questions" in done.stdout
