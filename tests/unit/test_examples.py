"""Every training command that the README and examples/scripts show is one that the command line accepts.

The shell runs them, with stand-ins for ``ray`` and ``python`` that write down what they were given.
"""

import os
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from openrlhf_rpo.cli.cluster import required_devices
from openrlhf_rpo.cli.options import parse

ROOT = Path(__file__).parents[2]
SCRIPTS = {path.name: path for path in sorted((ROOT / "examples" / "scripts").glob("*.sh"))}
MODULE = "openrlhf_rpo.cli.train_rpo_ray"
STAND_IN = '#!/bin/sh\nprintf "%s\\0" "$@" > "$RECORD/$$"\n'
BASH_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {
    f"README block {i}": block
    for i, block in enumerate(BASH_BLOCK.findall((ROOT / "README.md").read_text()))
    if MODULE in block
}
NAMES = [*SCRIPTS, *BLOCKS]


@cache
def recorded(name: str, tmp: Path) -> list[list[str]]:
    """The words of every call of ray or python in a script, or in a block of the README."""
    record, home = tmp / name / "record", tmp / name / "home"
    for folder in (record, home, tmp / "bin"):
        folder.mkdir(parents=True, exist_ok=True)
    for program in ("ray", "python"):
        (tmp / "bin" / program).write_text(STAND_IN)
        (tmp / "bin" / program).chmod(0o755)
    words = ["bash", str(SCRIPTS[name])] if name in SCRIPTS else ["bash", "-euc", BLOCKS[name]]
    env = {"PATH": f"{tmp / 'bin'}:/usr/bin:/bin", "HOME": str(home), "RECORD": str(record)}
    subprocess.run(words, env=env, cwd=home, check=True)
    return [file.read_text().split("\0")[:-1] for file in record.iterdir()]


@pytest.fixture(scope="session")
def calls(tmp_path_factory: pytest.TempPathFactory):
    tmp = tmp_path_factory.mktemp("examples")
    return lambda name: recorded(name, tmp)


@pytest.fixture
def argv(calls):
    """The options of the one training command of an example; what is made in its $HOME is shown as $HOME."""

    def of(name: str) -> list[str]:
        [words] = [words for words in calls(name) if MODULE in words]
        return [re.sub(r"^.*/home/", "$HOME/", word) for word in words[words.index(MODULE) + 1 :]]

    return of


def options(words: list[str], *, without: str = "") -> dict[str, str]:
    """Option -> value; a flag has the value "". Folders below $HOME are left out with ``without``."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    values = {word: "" if value.startswith("--") else value for word, value in pairs if word.startswith("--")}
    return {k: v for k, v in values.items() if not without or not (k.startswith(without) or v.startswith("$HOME"))}


def test_every_script_and_a_block_of_the_readme_are_looked_at():
    assert len(SCRIPTS) == 6
    assert BLOCKS
    assert all(os.access(path, os.X_OK) for path in SCRIPTS.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_accepts_the_example(argv, name):
    assert isinstance(parse(argv(name)), SimpleNamespace)


@pytest.mark.parametrize("name", NAMES)
def test_ray_job_submit_passes_the_command_on_unchanged(calls, name):
    """It joins the words by the rules of Windows, and a shell takes them apart: both must agree."""
    for words in calls(name):
        if words[:2] == ["job", "submit"]:
            entrypoint = words[words.index("--") + 1 :]
            assert shlex.split(subprocess.list2cmdline(entrypoint)) == entrypoint


@pytest.mark.parametrize("name", [name for name in NAMES if "laptop" not in name])
def test_an_example_for_gpus_asks_for_eight_of_them(argv, name):
    assert sum(number for _, number, _ in required_devices(parse(argv(name)))) == 8


@pytest.mark.parametrize("name", [name for name in NAMES if "laptop" not in name])
def test_a_step_is_the_papers_96_questions_by_6_samples(argv, name):
    args = parse(argv(name))
    assert (args.rollout.batch_size, args.rollout.n_samples_per_prompt, args.train.batch_size) == (96, 6, 576)
    assert (args.rollout.temperature, args.rollout.max_new_tokens, args.train.num_episodes) == (0.7, 4096, 4)


def test_the_readme_shows_the_command_of_the_script(argv):
    [block] = BLOCKS
    assert argv(block) == argv("train_rpo_grpo_1.5b.sh")


def test_the_baseline_differs_in_rpo_and_its_folders_only(argv):
    rpo, baseline = argv("train_rpo_grpo_1.5b.sh"), argv("train_grpo_1.5b_baseline.sh")
    assert options(rpo, without="--rpo.") == options(baseline, without="--rpo.")
    assert parse(baseline).rpo.enable is False
    assert options(rpo)["--ckpt.path"] != options(baseline)["--ckpt.path"]


def test_resuming_is_the_same_command_and_one_flag(argv):
    assert argv("train_rpo_resume.sh") == [*argv("train_rpo_grpo_1.5b.sh"), "--ckpt.load_enable"]


def test_the_laptop_trains_on_the_files_that_it_writes(calls, argv, tmp_path, monkeypatch):
    [code] = [words[1] for words in calls("train_rpo_testbed_laptop.sh") if words[0] == "-c"]
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    args = parse(argv("train_rpo_testbed_laptop.sh"))
    for path in (args.data.prompt_dataset, args.eval.dataset):
        assert (tmp_path / Path(path).relative_to(ROOT)).is_file()
    assert (Path(args.actor.model_name_or_path) / "model.safetensors").is_file()
    assert args.actor.num_gpus_per_node == args.vllm.num_engines == 1
