"""lighteval's side of an evaluation: its task, its prompt and its metric, with answers that our engines gave to its prompts.

Runs as a process of its own, ``python -P -m openrlhf_rpo.cli.evaluate.judge_worker FOLDER``, that finds lighteval's packages
before ours. lighteval's own command is not used: at its start it loads every task that it knows, and one of them downloads
and unpickles a file.

In FOLDER: ``questions/train.jsonl`` (``question``, ``answer``) and ``answers.jsonl`` (one list of texts a question), both in
the same order; ``scores.json`` is written, one list of scores a question.
"""

import json
import sys
from pathlib import Path
from typing import Any

from lighteval.metrics import apply_metric
from lighteval.metrics.metrics import Metrics
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.lighteval_task import LightevalTask, LightevalTaskConfig
from lighteval.tasks.requests import Doc
from tqdm import tqdm


def _prompt(row: dict[str, Any], task: str) -> Doc:
    """The bare question. The gold answer stands in a box, where lighteval recognizes LaTeX as well as numbers."""
    return Doc(task_name=task, query=row["question"], choices=[f"\\boxed{{{row['answer']}}}"], gold_index=0)


def scores(folder: Path) -> list[list[float]]:
    """Of every answer to every question, what lighteval's mathematical match gives it: 1.0 or 0.0."""
    answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    metric = Metrics.avg_at_n_math(sample_params={"n": 1})  # one answer at a time, so that each has its own score
    config = LightevalTaskConfig(
        name="questions",
        prompt_function=_prompt,
        hf_repo=str(folder / "questions"),
        hf_subset="default",
        hf_avail_splits=["train"],
        evaluation_splits=["train"],
        few_shots_split="train",  # none is asked for; without a split it warns
        metrics=[metric],
    )
    found: list[list[float]] = [[] for _ in answers]
    for doc in tqdm(LightevalTask(config).get_docs(), desc="lighteval", unit="question", dynamic_ncols=True):
        texts = answers[int(doc.id)]
        responses = [ModelResponse(input=doc.query, text=[text]) for text in texts]
        judged = apply_metric(responses, [doc] * len(texts), [metric])
        found[int(doc.id)] = [float(one[metric.metric_name]) for one in judged]
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1])
    (place / "scores.json").write_text(json.dumps(scores(place)), encoding="utf-8")
