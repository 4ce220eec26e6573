"""Paths that the initial policy samples: of which policy, with which seeds, and after an interruption."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from tqdm import tqdm

from openrlhf_rpo.cache import PathCache
from openrlhf_rpo.rollout import initial_cache
from openrlhf_rpo.rollout.initial_cache import sample_batch, sample_paths
from openrlhf_rpo.rollout.rollout import EVAL_STEP, Sampling
from openrlhf_rpo.types import Group, Prefix, Question, Sample

QUESTIONS = [Question(name, "", "") for name in "abc"]
ONE_EACH = Sampling(n_samples=1, temperature=1.0, top_p=1.0, max_path_length=None)
REFUSES_WRONG = SimpleNamespace(method=SimpleNamespace(admits_wrong=False))


class Rollout:
    """Question a is answered right in the first round, b in the second, c never. Another seed is another round."""

    sampling = replace(ONE_EACH, n_samples=4)

    def __init__(self, dies_at=None, engines=1):
        self.asked, self.dies_at = [], dies_at
        self.generator = SimpleNamespace(engines=[None] * engines)
        self.is_awake = False

    @contextmanager
    def awake(self):
        self.is_awake = True
        yield
        self.is_awake = False

    def sample_bare(self, questions, sampling, step, progress):
        assert sampling.n_samples == 1 and self.is_awake
        if len(self.asked) == self.dies_at:
            self.dies_at = None
            raise KeyboardInterrupt
        self.asked.append((step, "".join(question.question_id for question in questions)))
        n_rounds = len({step for step, _ in self.asked})
        return [self.group(question, (question.question_id, n_rounds) in (("a", 1), ("b", 2))) for question in questions]

    def group(self, question, right):
        return Group(question, (Sample(Prefix(), (5, 6, 1), (-0.5,) * 3, "stop", float(right), float(right)),))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(initial_cache, "_BATCH", 2)
    with PathCache.open(f"sqlite:///{tmp_path}/cache.db", {}) as made:
        yield made


def test_they_are_of_the_policy_before_any_step():
    with tqdm(disable=True) as bar:
        rollout = Rollout()
    with rollout.awake(), tqdm(disable=True) as bar:
        paths, _ = sample_batch(rollout, QUESTIONS[:1], ONE_EACH, 0, False, bar)
    assert [(path.question_id, path.parts) for path in paths] == [("a", ((0, 3),))]


def test_a_wrong_sample_is_drawn_again_with_other_seeds_and_none_of_an_evaluation_or_a_step(cache):
    rollout = Rollout()
    sample_paths(cache, rollout, QUESTIONS, REFUSES_WRONG)
    assert [names for _, names in rollout.asked] == ["ab", "c", "bc", "c"]
    one, also_one, two, three = (step for step, _ in rollout.asked)
    assert one == also_one and len({one, two, three, EVAL_STEP}) == 4 and max(one, two, three) < 0
    assert cache.question_ids() == ["a", "b"]


def test_more_engines_have_more_questions_at_a_time(cache):
    rollout = Rollout(engines=2)
    sample_paths(cache, rollout, QUESTIONS, REFUSES_WRONG)
    assert [names for _, names in rollout.asked] == ["abc", "bc", "c"]


@pytest.mark.parametrize("dies_at", [1, 2, 3])
def test_after_an_interruption_nothing_is_asked_again(cache, tmp_path, dies_at):
    """As many batches were committed before. The whole is asked as if nothing had happened."""
    rollout, whole = Rollout(dies_at), Rollout()
    with pytest.raises(KeyboardInterrupt):
        sample_paths(cache, rollout, QUESTIONS, REFUSES_WRONG)
    sample_paths(cache, rollout, QUESTIONS, REFUSES_WRONG)
    with PathCache.open(f"sqlite:///{tmp_path}/other.db", {}) as other:
        sample_paths(other, whole, QUESTIONS, REFUSES_WRONG)
    assert rollout.asked == whole.asked and cache.question_ids() == ["a", "b"]
