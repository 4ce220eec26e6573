"""OpenRLHF's estimators, losses and extras keep working with RPO on, and with methods from files."""

import json
import math
from pathlib import Path

import pytest

from lab.testbed import model_dir

from .conftest import TrainingRun, kill_one, run_acting, run_training

METHODS = Path(__file__).parents[2] / "examples" / "methods"


REWARD_FILE = """
import json

def reward_func(queries, prompts, labels):
    with open({seen!r}, "a") as file:
        file.write(json.dumps([queries, prompts, labels]) + "\\n")
    score = float(labels[0] in queries[0])
    return {{"rewards": score, "scores": score, "extra_logs": {{}}}}
"""


@pytest.mark.long
def test_gae_with_a_critic_a_kl_penalty_ema_overlong_penalty_a_python_reward_file_and_adaptive_cuts(tmp_path) -> None:
    """The file is called as OpenRLHF calls it; it writes down what it sees."""
    file, seen = tmp_path / "reward.py", tmp_path / "seen.jsonl"
    file.write_text(REWARD_FILE.format(seen=str(seen)))
    run = run_training(
        tmp_path,
        2,
        train__num_episodes=2,
        algo__advantage__estimator="gae",
        algo__kl__init_coef=0.01,
        train__enable_ema=True,
        reward__overlong_buffer_len=100,
        rollout__max_new_tokens=400,
        rpo__reward__functions=None,
        reward__remote_url=file,
        rpo__replay__share=0.5,
        rpo__method=METHODS / "adaptive.py:Adaptive",
    )
    assert run.status == 0, run.output[-3000:]
    assert "DAPO Overlong Penalty" in run.output
    for model in ("policy", "reference", "critic"):
        assert f"Shared prefix, {model}: on: " in run.output
    with run.cache() as cache:
        records = cache.records()
    assert [r.step for r in records] == [1, 2, 3, 4]
    assert records[0].metrics["rpo/groups_from_bare_question"] == 1
    assert records[-1].metrics["rpo/groups_from_bare_question"] <= 0.5 and records[-1].metrics["rpo/cut"] > 0
    calls = [json.loads(line) for line in seen.read_text().splitlines()]
    assert len(calls) == 4 * 16
    assert all(queries[0].startswith(prompts[0]) for queries, prompts, _ in calls)


@pytest.mark.long
def test_the_paper_fills_the_cache_first_and_dynamic_sampling_trains_on_groups_that_differ(tmp_path) -> None:
    """Bulk initial cache, the whole path in the loss, the response capped at the cut, any path admitted.

    32 questions for steps of 4: those without signal are replaced, and what was turned down is counted. Of the cache, the
    versions that a step before the last one reads are let go. Prefixes are shared by two ranks of partitioned weights (ZeRO
    stage 3) and a reference, in micro-batches of half groups; ``on`` stops the run if anything falls back.
    """
    run = run_training(
        tmp_path,
        8,
        rpo__method="paper",
        rpo__preset="grpo",
        algo__kl__init_coef=0.01,
        algo__kl__use_loss=True,
        algo__kl__estimator="k3",
        rpo__shared_prefix="on",
        actor__num_gpus_per_node=2,
        ds__zero_stage=3,
        train__micro_batch_size=2,
        algo__dynamic_filtering_enable=True,
        rpo__cache__keep_versions=1,
        ckpt__save_steps=1,
        ckpt__max_num=1,
    )
    assert run.status == 0, run.output[-3000:]
    with run.cache() as cache:
        records, n_questions = cache.records(), cache.count()
        initial = cache.initial_tokens
        assert cache.kept_from == cache.latest_step - 1  # two versions: the checkpoint's, and the one before
    assert n_questions == 32 and initial > 0
    assert records[0].metrics["rpo/tokens_generated_total"] > initial
    assert all(r.metrics["rpo/cache/replaced"] == 1.0 for r in records)
    assert all(r.metrics["rpo/prefix_tokens"] > r.metrics["rpo/generated_tokens"] for r in records)
    assert any(r.metrics["dynamic_filtering_pass_rate"] < 100 for r in records)
    assert records[-1].consumed > 4 * len(records)
    assert all(math.isfinite(value) for r in records for value in r.metrics.values())
    assert max(r.metrics["rpo/rollout_log_prob_gap"] for r in records) < 1e-3  # the engine has the weights
    assert run.output.count("Shared prefix, ") == 2  # policy and reference


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory, same_options) -> TrainingRun:
    """As the finished run, with partitioned weights (ZeRO stage 3). A reward worker dies in step 2, a rank in step 4."""
    options = {**same_options, "rpo__reward__max_failure_share": 0.1}  # one of 16: the worker may be killed at work
    options |= {"actor__num_gpus_per_node": 2, "ds__zero_stage": 3, "train__micro_batch_size": 4}
    acts = {"step 1/6": kill_one("reward_worker"), "step 3/6": kill_one("PolicyActor")}
    return run_acting(tmp_path_factory.mktemp("ranks"), 3, acts, **options)


@pytest.mark.long
def test_two_ranks_take_the_step_of_one_where_both_leave_samples_out(two_ranks, finished_run) -> None:
    """Dealt out anew once the advantages are known."""
    with two_ranks.cache() as cache, finished_run.cache() as other:
        steps, wanted = cache.records(), other.records()[0].metrics
    first = steps[0].metrics
    assert min(record.metrics["rpo/trained_share"] for record in steps) < 1
    assert max(record.metrics["rpo/rollout_log_prob_gap"] for record in steps) < 2e-5  # the engine has the weights of both
    for name in ("rpo/trained_share", "actor_grad_norm", "reward", "response_length"):
        assert first[name] == pytest.approx(wanted[name], rel=1e-3, abs=1e-6), name


@pytest.mark.long
def test_a_dead_reward_worker_is_replaced_and_a_dead_rank_ends_the_run(two_ranks) -> None:
    assert "step 3/6" in two_ranks.output
    said = two_ranks.last_words()
    assert said.startswith("error: a process of the policy (actor) died")
    assert f"3 committed steps in {two_ranks.folder}/checkpoints/rpo_cache.db" in said
    assert "checkpoint: global_step2" in said
    assert "the same command with --ckpt.load_enable; what came after step 2 is run again" in said


@pytest.mark.release
def test_a_reward_model_scores_its_scores_steer_the_cache_and_a_history_is_the_baseline(tmp_path) -> None:
    run = run_training(
        tmp_path,
        2,
        train__num_episodes=2,
        rpo__reward__functions=None,
        reward__model_name_or_path=model_dir("main"),
        rpo__method=METHODS / "history.py:History",
        algo__advantage__estimator="reinforce",
    )
    assert run.status == 0, run.output[-3000:]
    with run.cache() as cache:
        ids = cache.question_ids()
        scores = [path.score for path in cache.paths(ids).values()]
        records = cache.records()
    assert len(records) == 4
    assert all(score > 0 for score in scores)
    assert len({round(score, 4) for score in scores} - {0.0, 1.0}) > 0


@pytest.mark.release
def test_rewards_that_fail_stop_the_run_by_name_and_save_no_model(tmp_path) -> None:
    """Half of them raise and half hang. Nothing is caught and saved as if it had finished; the causes are named."""
    file = tmp_path / "reward.py"
    file.write_text(
        "import time\n"
        "def reward_func(queries, prompts, labels):\n"
        "    if len(queries[0]) % 2:\n"
        "        raise ValueError('no such answer')\n"
        "    time.sleep(60)\n"
    )
    run = run_training(tmp_path, 2, rpo__reward__functions=None, reward__remote_url=file, rpo__reward__timeout=2)
    assert run.status == 1
    assert "rewards failed" in run.output
    assert "no such answer" in run.output and "no answer within 2 s" in run.output
    assert not (tmp_path / "model" / "model.safetensors").exists()
