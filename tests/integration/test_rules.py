"""What needs more of a run than a path: the policy's view of stored tokens, several paths a question, own rules, LoRA."""

import pytest

from openrlhf_rpo.types import OWN, WRONG

from .conftest import TrainingRun, run_training

RULE = """
def shares(context):
    return tuple(max(1, len(context.path) * (i + 1) // (2 * context.n_samples)) for i in range(context.n_samples))
"""


def test_a_policy_that_did_not_change_accepts_what_it_wrote(tmp_path) -> None:
    """The default rule at learning rate 0: of a replayed path the last token is written anew, the others but for the
    rounding of a half."""
    run = run_training(
        tmp_path,
        2,
        train__num_episodes=2,
        actor__adam__lr=0,
        rpo__cut__rule=None,
        rpo__replay__share=0.5,
        rpo__advantage__baseline="history",
        algo__advantage__estimator="reinforce",
    )
    assert run.status == 0, run.output[-3000:]
    with run.cache() as cache:
        records, slots = cache.records(), cache.slots(cache.question_ids())
    assert records[-1].metrics["rpo/groups_from_bare_question"] == 0.5
    assert records[-1].metrics["rpo/cache/every"] == 1.0
    promised = [record.metrics["expected_score"] for record in records]
    assert promised[0] == 0.5 and all(0 < p < 1 and p != 0.5 for p in promised[2:])  # the first visits have no history
    assert all(s.metrics["timing/verify"] > 0 for s in records if s.metrics["rpo/groups_from_bare_question"] < 1)
    assert all(places.keys() == {0, 1, 2, 3} for places in slots.values())
    replayed = [path for places in slots.values() for path in places.values() if path.parent_id]
    assert len(replayed) >= 8
    fresh = sum(len(path) - path.prefix_length for path in replayed) / sum(len(path) for path in replayed)
    assert fresh < 0.1, f"{fresh:.0%} of the replayed paths' tokens were sampled again"


@pytest.fixture(scope="module")
def adapted(tmp_path_factory) -> TrainingRun:
    """An adapter, trained on what a rule in a file cuts at four depths and on what lies between them, and on wrong paths."""
    folder = tmp_path_factory.mktemp("adapted")
    (folder / "mine.py").write_text(RULE)
    run = run_training(
        folder,
        3,
        train__num_episodes=2,
        ds__lora__rank=8,
        ds__zero_stage=2,
        actor__adam__lr=0.01,
        actor__loss_agg_mode="seq-mean-token-mean",
        rpo__cut__rule=f"{folder}/mine.py:shares",
        rpo__cut__after_all_right="failure",
        rpo__cut__after_all_wrong="pivot",
        rpo__update__on_all_wrong="keep",
        rpo__update__rule="right_and_wrong",
        rpo__advantage__baseline="depth",
        rpo__advantage__weight="path",
        rpo__prefix_loss__mode="segment",
    )
    assert run.status == 0, run.output[-3000:]
    return run


def test_a_rule_of_ones_own_cuts_and_wrong_paths_are_kept_beside_right_ones(adapted) -> None:
    with adapted.cache() as cache:
        records, slots, visits = cache.records(), cache.slots(list(cache.questions())), list(cache.visits_after())
    assert any(r.metrics["rpo/cut"] > 0 for r in records)
    assert {visit.slot for visit in visits} == {OWN, WRONG}
    wrong = [places[1] for places in slots.values() if 1 in places]
    assert wrong and all(path.score == 0 for path in wrong)
    assert all(places[0].score > 0 for places in slots.values() if 0 in places)


def test_the_engines_have_the_adapter_that_was_trained(adapted) -> None:
    """After updates of a large step the log-probs of the engine and of the trainer still agree."""
    with adapted.cache() as cache:
        gaps = [record.metrics["rpo/rollout_log_prob_gap"] for record in cache.records()]
    assert len(gaps) == 6 and max(gaps) < 1e-3, gaps
    assert (adapted.folder / "model" / "adapter_model.safetensors").exists()
