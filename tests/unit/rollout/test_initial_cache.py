"""Paths that the initial policy samples."""

from types import SimpleNamespace

from tqdm import tqdm

from openrlhf_rpo.rollout.initial_cache import sample_batch
from openrlhf_rpo.types import Group, Prefix, Question, Sample


def test_they_are_of_the_policy_before_any_step():
    def sample_bare(questions, sampling, step, progress):
        return [Group(q, (Sample(Prefix(), (5, 6, 1), (-0.5,) * 3, "stop", 1.0, 1.0),)) for q in questions]

    rollout = SimpleNamespace(sample_bare=sample_bare)
    with tqdm(disable=True) as bar:
        paths, _ = sample_batch(rollout, [Question("q", "", "")], None, 0, False, bar)
    assert [(path.question_id, path.parts) for path in paths] == [("q", ((0, 3),))]
