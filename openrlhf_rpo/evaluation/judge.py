"""lighteval as the judge of an evaluation (``--lighteval``): its task and metric score the answers of our engines.

lighteval and the math reward need different versions of latex2sympy2_extended. lighteval's packages (``lighteval.txt``) are
therefore installed in a folder of their own (``pip --target``), which only the judging process (``judge_worker``) imports.
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

from openrlhf_rpo.errors import Failed, UsageError

PINS = Path(__file__).with_name("lighteval.txt")
FOLDER = Path(sys.prefix) / "lighteval"


class JudgeError(Failed):
    """lighteval's process ended without scores."""


@dataclass(frozen=True)
class Answered:
    """A question and its gold answer from the data set, and the sampled answers."""

    question: str
    gold: str
    answers: Sequence[str]


def version(folder: Path) -> str:
    """The pinned version of lighteval. Raises UsageError, with the command that installs it, if ``folder`` lacks it."""
    wanted = re.search(r"^lighteval==(\S+)$", PINS.read_text(encoding="utf-8"), re.M)[1]
    found = {d.name.lower(): d.version for d in distributions(path=[str(folder)])}.get("lighteval")
    if found != wanted:
        other = f", but {found}" if found else ""
        raise UsageError(
            f"--lighteval: there is no lighteval {wanted} in {folder}{other}. Install it (400 MB, all in that folder):\n"
            f"    {sys.executable} -m pip install --no-deps --target {folder} -r {PINS}"
        )
    return wanted


def judge(folder: Path, rows: Sequence[Answered]) -> list[list[float]]:
    """Score each answer with lighteval's math metric, 1.0 or 0.0. Takes about ten seconds to start.

    Raises JudgeError if its process fails; its output goes to standard error.
    """
    with tempfile.TemporaryDirectory(prefix="rpo-judge") as name:
        place = Path(name)
        (place / "questions").mkdir()
        _write(place / "questions" / "train.jsonl", [{"question": row.question, "answer": row.gold} for row in rows])
        _write(place / "answers.jsonl", [list(row.answers) for row in rows])
        # PYTHONPATH puts lighteval's packages first; its copy of the questions is deleted with the folder.
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "HF_DATASETS_CACHE": str(place / "cache")}
        command = [sys.executable, "-P", "-m", "openrlhf_rpo.evaluation.judge_worker", name]
        status = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode
        if status != 0:
            raise JudgeError(f"lighteval, in {folder}, ended with status {status}; its output is above")
        return json.loads((place / "scores.json").read_text(encoding="utf-8"))


def _write(file: Path, rows: Sequence[object]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
