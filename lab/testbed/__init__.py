"""A reasoning task and base models small enough for reinforcement learning on two CPU cores. See ``task``.

Importing this package needs only the standard library.
"""

import json
from pathlib import Path

from lab.testbed.task import LEVELS, answer, draw_split

__all__ = ["LEVELS", "model_dir", "write_dataset"]


def model_dir(level: str) -> Path:
    """The folder of a level's base model: weights, configuration, tokenizer, ``figures.json``.

    Raises KeyError for an unknown level.
    """
    if level not in LEVELS:
        raise KeyError(f"unknown level {level!r}; there are {sorted(LEVELS)}")
    return Path(__file__).resolve().parent / "weights" / level


def write_dataset(
    level: str, out_dir: str | Path, n_train: int, n_heldout: int, seed: int, n_before: int = 0
) -> tuple[Path, Path]:
    """Write ``train.jsonl`` and ``heldout.jsonl``, one question per line, with the strings ``question`` and ``answer``.

    The same arguments give the same files, and the splits never share a question, whatever the seeds. ``n_before``: leave
    out so many held-out questions of the seed, and take those after them. Returns both paths. Raises KeyError for an unknown
    level, ValueError if a split has too few questions.
    """
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    train = draw_split(level, n_train, seed, heldout=False)
    heldout = draw_split(level, n_before + n_heldout, seed, heldout=True)[n_before:]
    for name, questions in (("train", train), ("heldout", heldout)):
        records = [json.dumps({"question": question, "answer": answer(question)}) for question in questions]
        paths.append(folder / f"{name}.jsonl")
        paths[-1].write_text("".join(record + "\n" for record in records))
    return paths[0], paths[1]
