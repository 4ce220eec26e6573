"""The training commands of examples/scripts and of the README, as the shell makes them.

Scripts run with stand-ins for ``ray`` and ``python`` that write down what they were given.
"""

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULE = "openrlhf_rpo.cli.train_rpo_ray"
BASH_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
README_BLOCKS = [block for block in BASH_BLOCK.findall((ROOT / "README.md").read_text()) if MODULE in block]
STAND_IN = '#!/bin/sh\nprintf "%s\\0" "$@" > "$RECORD/$(ls "$RECORD" | wc -l)"\n'


@dataclass(frozen=True)
class Shell:
    """Runs scripts in an empty home folder."""

    tmp: Path

    @property
    def home(self) -> Path:
        return self.tmp / "home"

    def calls(self, name: str, *words: str, **environment: str) -> list[list[str]]:
        """The words of every call of ray or python, in order: of a script, or of the README's block for ``README``."""
        record, programs = self.tmp / "record", self.tmp / "bin"
        for folder in (record, programs, self.home):
            folder.mkdir(exist_ok=True)
        for file in record.iterdir():
            file.unlink()
        for program in ("ray", "python"):
            (programs / program).write_text(STAND_IN)
            (programs / program).chmod(0o755)
        script = ["-euc", README_BLOCKS[0]] if name == "README" else [str(ROOT / "examples" / "scripts" / name), *words]
        env = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(self.home), "RECORD": str(record)} | environment
        subprocess.run(["bash", *script], env=env, cwd=self.home, check=True)
        return [(record / str(i)).read_text().split("\0")[:-1] for i in range(len(os.listdir(record)))]

    def commands(self, name: str, *words: str, **environment: str) -> list[list[str]]:
        """The options of every training command that a script starts."""
        calls = self.calls(name, *words, **environment)
        return [call[call.index(MODULE) + 1 :] for call in calls if MODULE in call]

    def command(self, name: str, *words: str, **environment: str) -> list[str]:
        """The options of a script with one training command."""
        [options] = self.commands(name, *words, **environment)
        return options


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def differences(shell: Shell) -> Callable[..., dict[str, str | None]]:
    """``differences(a, b)``: the options that hold in command ``b`` and not in ``a``; folders below $HOME are left out."""

    def between(a: list[str], b: list[str]) -> dict[str, str | None]:
        before, after = (in_force(words, str(shell.home)) for words in (a, b))
        return {name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}

    return between


def in_force(words: list[str], home: str) -> dict[str, str]:
    """Option -> value, the last one given; a flag has the value "". Without options whose value lies in ``home``."""
    pairs = zip(words, [*words[1:], "--"], strict=True)
    values = {word: "" if value.startswith("--") else value for word, value in pairs if word.startswith("--")}
    return {name: value for name, value in values.items() if home not in value}
