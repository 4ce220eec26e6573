"""A run that is killed goes on from its last checkpoint with the cache of that step."""

from openrlhf_rpo.cache.store import PathCache

from .conftest import run_training, run_until

DETERMINISTIC = {
    "train__num_episodes": 2,
    "train__full_determinism_enable": True,
    "ckpt__save_steps": 2,
    "eval__steps": 3,
    "eval__temperature": 1.0,
    "eval__n_samples_per_prompt": 2,
}


def rows(cache: PathCache) -> list:
    """Everything that a step decided, without the times that it took."""
    ids = sorted(cache.question_ids_with_path())
    records = [
        (r.step, r.episode, r.consumed, {k: v for k, v in r.metrics.items() if not k.startswith("timing/")})
        for r in cache.records()
    ]
    history = [[cache.paths(ids, step), cache.visits(ids, step)] for step in range(7)]
    return [records, history]


def test_killed_after_a_commit_and_resumed_is_the_run_that_was_never_interrupted(tmp_path, finished_run) -> None:
    """Killed right after step 5 was committed: the checkpoint is of step 4, and step 5 is taken back and repeated."""
    options = {**DETERMINISTIC, "eval__dataset": finished_run.folder / "data" / "heldout.jsonl"}
    killed = run_until(tmp_path, 3, "step 5/6", **options)
    assert killed.status == -9
    with killed.cache() as cache:
        assert cache.latest_step >= 5
    resumed = run_training(tmp_path, 3, **options, ckpt__load_enable=True)
    assert resumed.status == 0, resumed.output[-3000:]
    assert "Resumed at step 4" in resumed.output
    with resumed.cache() as cache, finished_run.cache() as uninterrupted:
        assert rows(cache) == rows(uninterrupted)


def test_a_lost_cache_comes_back_from_the_checkpoint_and_a_second_start_is_refused(tmp_path) -> None:
    first = run_training(tmp_path, 2, ckpt__save_steps=2)
    assert first.status == 0, first.output[-3000:]
    again = run_training(tmp_path, 2, ckpt__save_steps=2)
    assert again.status == 2
    assert "already holds 2 steps" in again.output and "--ckpt.load_enable" in again.output
    for file in (tmp_path / "checkpoints").glob("rpo_cache.db*"):
        file.unlink()
    resumed = run_training(tmp_path, 2, train__num_episodes=2, ckpt__save_steps=2, ckpt__load_enable=True)
    assert resumed.status == 0, resumed.output[-3000:]
    assert "restoring the copy beside the checkpoint" in resumed.output
    with resumed.cache() as cache:
        assert [r.step for r in cache.records()] == [1, 2, 3, 4]
