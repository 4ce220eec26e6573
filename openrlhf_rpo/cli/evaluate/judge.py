"""lighteval as the judge of an evaluation (``--lighteval``): its task and its metric, with our engines as its model.

lighteval and the math reward require different versions of one package, and lighteval checks its own on import. So what it
needs beside ours lies in a folder (``lighteval.txt``, installed with ``pip --target``), and a process that looks there first
judges (``judge_worker``).
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from openrlhf_rpo.upstream import UsageError

PINS = Path(__file__).with_name("lighteval.txt")
FOLDER = Path(sys.prefix) / "lighteval"


class JudgeError(RuntimeError):
    """lighteval's process ended without scores. The message is for the user."""


@dataclass(frozen=True)
class Answered:
    """A question and its gold answer as the data set has them, and the answers that were sampled."""

    question: str
    gold: str
    answers: Sequence[str]


def version(folder: Path) -> str:
    """The version of lighteval in ``folder``. Raises UsageError, with the command that installs it, when it is not ours."""
    wanted = re.search(r"^lighteval==(\S+)$", PINS.read_text(encoding="utf-8"), re.M)[1]
    found = {d.name.lower(): d.version for d in distributions(path=[str(folder)])}.get("lighteval")
    if found != wanted:
        other = f", but {found}" if found else ""
        raise UsageError(
            f"--lighteval: there is no lighteval {wanted} in {folder}{other}. Install it (400 MB, and nothing "
            "outside that folder changes):\n"
            f"    {sys.executable} -m pip install --no-deps --target {folder} -r {PINS}"
        )
    return wanted


def judge(folder: Path, rows: Sequence[Answered]) -> list[list[float]]:
    """Each answer's score by lighteval's mathematical match, 1.0 or 0.0. Takes about ten seconds to start.

    Raises JudgeError when its process fails; what it printed is on standard error.
    """
    with tempfile.TemporaryDirectory(prefix="rpo-judge") as name:
        place = Path(name)
        (place / "questions").mkdir()
        _write(place / "questions" / "train.jsonl", [{"question": row.question, "answer": row.gold} for row in rows])
        _write(place / "answers.jsonl", [list(row.answers) for row in rows])
        # lighteval's packages come first; its copy of the questions goes when the folder goes.
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "HF_DATASETS_CACHE": str(place / "cache")}
        command = [sys.executable, "-P", "-m", "openrlhf_rpo.cli.evaluate.judge_worker", name]
        status = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode
        if status != 0:
            raise JudgeError(f"lighteval, in {folder}, ended with status {status}; what it said is above")
        return json.loads((place / "scores.json").read_text(encoding="utf-8"))


def _write(file: Path, rows: Sequence[object]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
