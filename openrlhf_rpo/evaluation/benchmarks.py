"""The paper's benchmarks by name: where to find each, and its questions and answers in one format.

A file in the benchmark folder takes precedence over the hub, for machines without a network: ``NAME.jsonl`` or
``NAME.parquet``, with the columns ``question`` and ``answer`` or those of the hub.
"""

from dataclasses import dataclass
from pathlib import Path

from openrlhf_rpo.data import columns, sources
from openrlhf_rpo.errors import UsageError, reason_of

FOLDER = "data/benchmarks"


@dataclass(frozen=True)
class Benchmark:
    """A data set on the hub, its columns of questions and answers, and its number of questions."""

    hub: str
    split: str
    question: str
    answer: str
    size: int


# From the evaluation script of open-rs, whose recipe the paper follows.
BENCHMARKS = {
    "aime24": Benchmark("HuggingFaceH4/aime_2024", "train", "problem", "answer", 30),
    "aime25": Benchmark("yentinglin/aime_2025", "train", "problem", "answer", 30),
    "math500": Benchmark("HuggingFaceH4/MATH-500", "test", "problem", "answer", 500),
    "amc23": Benchmark("knoveleng/AMC-23", "train", "problem", "answer", 40),
    "minerva": Benchmark("knoveleng/Minerva-Math", "train", "problem", "solution", 272),
    "olympiadbench": Benchmark("knoveleng/OlympiadBench", "train", "question", "answer", 675),
}


def rows(name: str, folder: Path) -> list[dict[str, str]]:
    r"""``question`` and ``answer`` of every row of a benchmark; the answer of a worked solution is its last \boxed{...}.

    Raises UsageError if the benchmark is neither in ``folder`` nor on the hub, or if a row has no question or no answer.
    """
    from openrlhf_rpo.rewards.math import last_boxed  # loads sympy, too slow for --help

    benchmark = BENCHMARKS[name]
    file = next((f for suffix in (".jsonl", ".parquet") if (f := folder / f"{name}{suffix}").is_file()), None)
    try:
        [table] = sources.load([str(file or benchmark.hub)], None, benchmark.split)
    except UsageError as error:
        if file is not None:
            raise
        raise UsageError(_missing(name, benchmark, folder, reason_of(error))) from error
    question = columns.choose("--data", None, ("question", benchmark.question), table.column_names)
    answer = columns.choose("--data", None, ("answer", benchmark.answer), table.column_names)
    found = []
    for number, row in enumerate(table, 1):
        asked, right = columns.text(row[question]), columns.text(row[answer])
        if not asked or not right:
            raise UsageError(f"{name}, row {number} of {file or benchmark.hub}: no {answer if asked else question}")
        found.append({"question": asked, "answer": last_boxed(right) or right})
    return found


def _missing(name: str, benchmark: Benchmark, folder: Path, reason: str) -> str:
    target = folder / f"{name}.parquet"
    return (
        f"benchmark {name} is not on this machine and cannot be loaded from the hub: {reason}\n"
        f"Provide {folder / name}.jsonl with the columns question and answer ({benchmark.size} rows), or download it on a "
        f"machine with a network\n    python -c \"from datasets import load_dataset; load_dataset('{benchmark.hub}', "
        f"split='{benchmark.split}').to_parquet('{name}.parquet')\"\nand copy it to {target} (--benchmarks names the folder)"
    )
