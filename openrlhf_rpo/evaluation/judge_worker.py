"""The judging process: lighteval's task, prompt and metric on the answers of our engines.

Runs as ``python -P -m openrlhf_rpo.evaluation.judge_worker FOLDER`` with lighteval's packages before ours. lighteval's own
command is not used: at start it loads every task it knows, and one of them downloads and unpickles a file.

Reads ``questions/train.jsonl`` (``question``, ``answer``) and ``answers.jsonl`` (a list of texts per question, in the same
order) in FOLDER; writes ``scores.json`` (a list of scores per question).
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

from openrlhf_rpo.platform import guard


def _prompt(row: dict[str, Any], task: str) -> Doc:
    """The bare question. The gold answer is boxed, where lighteval recognizes LaTeX and numbers."""
    return Doc(task_name=task, query=row["question"], choices=[f"\\boxed{{{row['answer']}}}"], gold_index=0)


def scores(folder: Path) -> list[list[float]]:
    """Each answer's score from lighteval's math metric, 1.0 or 0.0."""
    answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    metric = Metrics.avg_at_n_math(sample_params={"n": 1})  # one answer at a time, for a score each
    config = LightevalTaskConfig(
        name="questions",
        prompt_function=_prompt,
        hf_repo=str(folder / "questions"),
        hf_subset="default",
        hf_avail_splits=["train"],
        evaluation_splits=["train"],
        few_shots_split="train",  # unused, but lighteval warns without a split
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
    guard.install()
    guard.allow(False)
    place = Path(sys.argv[1])
    (place / "scores.json").write_text(json.dumps(scores(place)), encoding="utf-8")
