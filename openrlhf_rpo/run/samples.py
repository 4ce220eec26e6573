"""A log of all sampled responses, one Parquet file per step in ``<ckpt.path>/rpo_samples``.

Load them with ``datasets.load_dataset("parquet", data_files="rpo_samples/*.parquet")``. Files are written atomically;
a resumed run removes those of the steps it repeats, and the oldest are removed when all exceed the limit.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path as File
from types import UnionType
from typing import Any

import pyarrow as pa

from openrlhf_rpo.cache.columns import shown
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.errors import ExchangeError
from openrlhf_rpo.tables import read_rows, write_rows
from openrlhf_rpo.types import Group

FOLDER = "rpo_samples"
_NAME = re.compile(r"step_(\d{8})\.parquet")
_MEGABYTE = 2**20
SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("question_id", pa.string()),
        ("prompt", pa.string()),
        ("label", pa.string()),
        ("sample", pa.int64()),
        ("trained_on", pa.bool_()),
        ("score", pa.float64()),
        ("shaped_reward", pa.float64()),
        ("cut", pa.int64()),
        ("prefix_length", pa.int64()),
        ("path_length", pa.int64()),
        ("finish_reason", pa.string()),
        ("prefix", pa.string()),
        ("response", pa.string()),
        ("response_ids", pa.list_(pa.uint32())),
    ]
)
_SHOWN: dict[str, type | UnionType] = {
    "step": int,
    "question_id": str,
    "trained_on": bool,
    "score": float | None,
    "shaped_reward": float | None,
    "prefix_length": int,
    "path_length": int,
    "finish_reason": str,
    "response": str,
}


class SampleLog:
    """The sample log of a run; ``decode`` turns lists of token ids into texts with special tokens."""

    def __init__(self, folder: File, max_megabytes: int, decode: Callable[[list[list[int]]], list[str]]) -> None:
        self.folder = folder
        self.max_bytes = max_megabytes * _MEGABYTE
        self.decode = decode

    @classmethod
    def of_run(cls, config: RPOConfig, ckpt_path: str, tokenizer: Any) -> "SampleLog | None":
        """The log, or None without ``--rpo.log_samples``."""
        if not config.log_samples:
            return None

        def decode(ids: list[list[int]]) -> list[str]:
            return tokenizer.batch_decode(ids, skip_special_tokens=False)

        return cls(File(ckpt_path) / FOLDER, config.log_samples, decode)

    @classmethod
    def left_over(cls, ckpt_path: str) -> "SampleLog":
        """The log that earlier commands of a run may have left, where it keeps no samples now."""
        return cls(File(ckpt_path) / FOLDER, 0, lambda lists: [])

    def files(self) -> list[tuple[int, File]]:
        """(step, file), oldest first."""
        return sample_files(self.folder)

    def rollback(self, step: int) -> None:
        """Remove the files of steps after ``step``, from which the run resumes."""
        for written, file in self.files():
            if written > step:
                file.unlink()

    def write(self, step: int, kept: Sequence[Group], dropped: Sequence[Group]) -> None:
        """Store the groups trained on and those dropped by dynamic sampling, replacing a file of the same step.

        The newest step always stays. Raises ExchangeError when the file cannot be written.
        """
        write_rows(self.folder / f"step_{step:08d}.parquet", self._rows(step, kept, dropped), SCHEMA)
        files = self.files()
        total = sum(file.stat().st_size for _, file in files)
        for _, file in files[:-1]:
            if total <= self.max_bytes:
                break
            total -= file.stat().st_size
            file.unlink()

    def _rows(self, step: int, kept: Sequence[Group], dropped: Sequence[Group]) -> Iterator[dict[str, Any]]:
        for trained_on, groups in ((True, kept), (False, dropped)):
            for group in groups:
                prefixes = self.decode([list(sample.prefix.token_ids) for sample in group.samples])
                responses = self.decode([list(sample.response_ids) for sample in group.samples])
                for number, sample in enumerate(group.samples):
                    yield {
                        "step": step,
                        "question_id": group.question.question_id,
                        "prompt": group.question.prompt,
                        "label": group.question.label,
                        "sample": number,
                        "trained_on": trained_on,
                        "score": sample.score,
                        "shaped_reward": sample.shaped_reward,
                        "cut": sample.prefix.cut,
                        "prefix_length": len(sample.prefix),
                        "path_length": sample.path_length,
                        "finish_reason": sample.finish_reason,
                        "prefix": prefixes[number],
                        "response": responses[number],
                        "response_ids": list(sample.response_ids),
                    }


def sample_files(folder: File) -> list[tuple[int, File]]:
    """(step, file) of a run's samples, oldest first; empty without the folder."""
    found = [(_NAME.fullmatch(file.name), file) for file in folder.glob("*.parquet")]
    return sorted((int(match[1]), file) for match, file in found if match)


def read_samples(file: File, question_id: str | None = None) -> Iterator[dict[str, Any]]:
    """The samples of a step, for one or all questions, with what a report shows (``_SHOWN``). Raises ExchangeError."""
    for row in read_rows(file, list(_SHOWN)):
        for name, kind in _SHOWN.items():
            if not isinstance(row.get(name), kind):
                raise ExchangeError(f"{file} cannot be read: its {name} is {shown(row.get(name))}")
        if question_id in (None, row["question_id"]):
            yield row
