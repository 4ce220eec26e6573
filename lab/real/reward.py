r"""reasoning-gym's own scorer as a reward: 1.0 where it gives the content of the last \boxed{} full marks, else 0.0.

reasoning-gym also gives part of a mark to a text that merely contains the answer; that would reward guessing, so it counts
as wrong. ``families.record`` writes the labels: the entry that the scorer wants, as JSON.
"""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(sys.prefix) / "real"))

from reasoning_gym import get_score_answer_fn  # noqa: E402  found in the folder that was just added

from openrlhf_rpo.rewards.math import last_boxed  # noqa: E402


def reward_func(queries: list[str], prompts: list[str], labels: list[str], **_: object) -> dict[str, float]:
    """OpenRLHF's interface: lists of one query (prompt + response), one prompt and one label."""
    answer, entry = last_boxed(queries[0][len(prompts[0]) :]), json.loads(labels[0])
    marks = get_score_answer_fn(entry["metadata"]["source_dataset"])(answer, entry) if answer else 0.0
    score = float(marks >= 1)
    return {"rewards": score, "scores": score}
