"""The commands of docs/reproduction.md are what the studies take, at full size."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from lab.studies.sampling import with_own_options
from lab.study import STUDIES, build_parser
from openrlhf_rpo.cli.main import main
from openrlhf_rpo.evaluation.session import training_args

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "reproduction.md"
SHOW = 'openrlhf-rpo() { python3 -c "import json, sys; print(json.dumps(sys.argv[1:]))" "$@"; }\n'


def commands() -> list[list[str]]:
    """The words of every ``openrlhf-rpo study`` command on the page, as the shell hands them over."""
    script = SHOW + "".join(re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    shown = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in shown.splitlines()]


def trains(study: str) -> bool:
    module = ROOT / "lab" / "studies" / f"{STUDIES[study][0]}.py"
    return "train_all" in module.read_text()


def named(words: list[str]) -> str:
    return Path(words[words.index("--out") + 1]).stem


@pytest.mark.parametrize("words", [w for w in commands() if trains(w[1])], ids=named)
def test_every_run_of_every_command_is_accepted(words, tmp_path, monkeypatch, capsys):
    """With --finished a study goes through all its checks and then finds no run."""
    monkeypatch.chdir(tmp_path)
    split = words.index("--")
    assert main([*words[:split], "--finished", *words[split:]]) == 1
    assert "--finished: no run below" in capsys.readouterr().err


@pytest.mark.parametrize("words", [w for w in commands() if w[1] in ("tokens", "sweep", "large-to-small")], ids=named)
def test_the_papers_literal_choices_are_accepted_in_every_study_of_its_setting(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    split = words.index("--")
    assert main([*words[:split], "--finished", *words[split:], "--rpo.method", "paper"]) == 1
    assert "--finished: no run below" in capsys.readouterr().err


@pytest.mark.parametrize("words", [w for w in commands() if not trains(w[1])], ids=named)
def test_every_command_that_samples_is_accepted(words):
    args, rest = build_parser(words[1:]).parse_known_args(words[1:])
    for engines in getattr(args, "engines", [None]):
        training = training_args(args.model, args.data, with_own_options(args, rest, engines))
        assert args.model and training.vllm.num_engines == (engines or 8)


def test_every_study_that_trains_is_on_the_page():
    assert {words[1] for words in commands()} >= {name for name in STUDIES if trains(name)}
