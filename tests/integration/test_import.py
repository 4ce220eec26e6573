"""One model's cached paths as the initial cache of another, through the real command, and the log of samples.

The finished run asked 12 questions, these runs ask 8 of them; both models of the testbed share their tokenizer.
"""

from pathlib import Path

import pytest
from datasets import load_dataset

from lab.testbed import model_dir

from .conftest import TrainingRun, run_training

EXPERT = Path(__file__).parents[2] / "examples" / "methods" / "expert.py:Expert"


def importing(folder, source, **options) -> TrainingRun:
    """Two steps that visit the data in order, so that every question replays its imported path."""
    run = run_training(folder, 2, rpo__init__mode="import", rpo__init__source=source, rpo__replay__share=0, **options)
    assert run.status == 0, run.output[-3000:]
    return run


@pytest.fixture(scope="module")
def hard(tmp_path_factory: pytest.TempPathFactory, finished_run) -> TrainingRun:
    """The hard level's model on paths of the main level's, as they were at step 3; keeps its samples."""
    source = f"{finished_run.folder / 'checkpoints'}@3"
    model = model_dir("hard")
    folder = tmp_path_factory.mktemp("hard")
    return importing(folder, source, actor__model_name_or_path=model, rpo__log_samples=64, ckpt__save_steps=2)


def test_the_hard_model_starts_from_the_main_models_paths(hard, finished_run) -> None:
    source = f"sqlite:///{finished_run.folder / 'checkpoints'}/rpo_cache.db@3"
    assert f"Initial cache from {source}" in hard.output
    with hard.cache() as cache, finished_run.cache() as other:
        ids = cache.question_ids(0)
        assert ids and set(ids) == set(other.question_ids(3)) & cache.questions().keys()
        for question_id, path in cache.paths(ids, 0).items():
            original = other.paths([question_id], 3)[question_id]
            assert (path.token_ids, path.log_probs) == (original.token_ids, original.log_probs)
            assert (path.score, path.reward) == (original.score, original.reward)
        assert cache.records()[0].metrics["rpo/prefix_tokens"] > 0  # the first step replays already
        replaced = [p for p in cache.paths(ids).values() if p.parent_id is not None]
        assert replaced and all(p.log_probs is not None for p in replaced)


@pytest.mark.release
def test_the_hard_models_paths_are_an_experts_who_waits_for_a_group_that_fails(tmp_path, hard) -> None:
    """At a learning rate that breaks the policy groups fail soon."""
    run = importing(
        tmp_path,
        hard.folder / "checkpoints",
        rpo__method=EXPERT,
        train__num_episodes=3,
        actor__adam__lr=0.02,
        actor__lr_scheduler="constant",
    )
    with run.cache() as cache, hard.cache() as other:
        imported = cache.slots(cache.question_ids(0, slot=1), 0)
        assert imported.keys() == set(other.question_ids())
        assert all(places.keys() == {1} for places in imported.values())
        assert cache.records()[0].metrics["rpo/prefix_tokens"] == 0  # every question starts without a path of its own
        assert {visit.slot for visit in cache.visits_after()} == {0, 1}
        now = cache.slots(imported)
        assert all(now[question][1] == places[1] for question, places in imported.items())  # training never replaces it


def test_every_sample_of_a_run_is_kept(tmp_path, hard) -> None:
    files = str(hard.folder / "checkpoints" / "rpo_samples" / "*.parquet")
    samples = load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "datasets"))
    assert len(samples) == 2 * 4 * 4 and set(samples["step"][:]) == {1, 2}
    assert all(row["response"].endswith("<eos>") == (row["finish_reason"] == "stop") for row in samples)
    assert all(row["path_length"] == row["prefix_length"] + len(row["response_ids"]) for row in samples)
    with hard.cache() as cache:
        scores = [r.metrics["rpo/score"] for r in cache.records()]
    for step, score in enumerate(scores, 1):
        own = [row["score"] for row in samples if row["step"] == step]
        assert sum(own) / len(own) == pytest.approx(score)
