"""Runs that need more than a path: the policy's view of stored tokens, several paths per question, own methods, LoRA."""

from pathlib import Path

import pytest

from openrlhf_rpo.types import OWN

from .conftest import TrainingRun, kill_one, run_acting, run_training

METHODS = Path(__file__).parents[2] / "examples" / "methods"


@pytest.fixture(scope="module", params=["auto", pytest.param("bf16", marks=pytest.mark.release)])
def unchanged(request, tmp_path_factory) -> TrainingRun:
    """Verified reuse at learning rate 0; the engine dies in step 6."""
    options = {"rpo__method": "verify", "rpo__replay__share": 0.5, "ds__param_dtype": request.param, "ckpt__save_steps": 2}
    options |= {"train__num_episodes": 3, "actor__adam__lr": 0}
    return run_acting(tmp_path_factory.mktemp("unchanged"), 2, {"step 5/6": kill_one("VLLM::EngineCore")}, **options)


def test_a_policy_that_did_not_change_accepts_what_it_wrote(unchanged) -> None:
    """Of a replayed path only the end token is written anew, in bfloat16 as well."""
    with unchanged.cache() as cache:
        records, slots = cache.records(), cache.slots(cache.question_ids())
    assert records[-1].metrics["rpo/groups_from_bare_question"] == 0.5
    assert records[-1].metrics["rpo/cache/every"] == 1.0
    assert all(s.metrics["timing/verify"] > 0 for s in records if s.metrics["rpo/groups_from_bare_question"] < 1)
    assert all(places.keys() == {0, 1, 2, 3} for places in slots.values())
    replayed = [path for places in slots.values() for path in places.values() if path.parent_id]
    assert len(replayed) >= 8
    fresh = sum(len(path) - path.prefix_length for path in replayed) / sum(len(path) for path in replayed)
    assert fresh < 0.1, f"{fresh:.0%} of the replayed paths' tokens were sampled again"


def test_a_dead_engine_ends_the_run(unchanged) -> None:
    said = unchanged.last_words()
    assert said.startswith("error: a vLLM engine died")
    assert f"5 committed steps in {unchanged.folder}/checkpoints/rpo_cache.db; checkpoint: global_step4" in said


@pytest.mark.release
def test_the_engines_have_the_adapter_that_was_trained_on_a_trees_branches_and_segments(tmp_path) -> None:
    """After updates of a large step the log-probs of the engine and of the trainer still agree."""
    run = run_training(
        tmp_path,
        3,
        train__num_episodes=2,
        ds__lora__rank=8,
        ds__zero_stage=2,
        actor__adam__lr=0.01,
        rpo__method=METHODS / "tree.py:Tree",
        rpo__tree__segments="true",
        rpo__tree__depths=4,
        algo__advantage__estimator="reinforce",
    )
    assert run.status == 0, run.output[-3000:]
    with run.cache() as cache:
        records = cache.records()
    gaps = [record.metrics["rpo/rollout_log_prob_gap"] for record in records]
    assert len(gaps) == 6 and max(gaps) < 1e-3, gaps
    assert any(r.metrics["rpo/cut"] > 0 for r in records)
    assert (tmp_path / "model" / "adapter_model.safetensors").exists()


@pytest.mark.release
def test_wrong_paths_are_kept_beside_right_ones_and_continued_where_groups_are_all_right(tmp_path) -> None:
    run = run_training(tmp_path, 3, train__num_episodes=3, rpo__method=METHODS / "pivot.py:Pivot")
    assert run.status == 0, run.output[-3000:]
    with run.cache() as cache:
        slots, visits = cache.slots(list(cache.questions())), list(cache.visits_after())
    assert {visit.slot for visit in visits} == {OWN, 1}
    wrong = [places[1] for places in slots.values() if 1 in places]
    assert wrong and all(path.score == 0 for path in wrong)
    assert all(places[0].score > 0 for places in slots.values() if 0 in places)
