"""A sample as upstream's Experience: what stands where, and that upstream's batching keeps it."""

import math
from dataclasses import fields, replace

import pytest
import torch

from openrlhf_rpo.algo.methods import RPO, Paper
from openrlhf_rpo.rollout.experience import eval_logs, to_experiences
from openrlhf_rpo.types import Group, Path, Prefix, Question, Sample
from openrlhf_rpo.upstream import Experience, balance_experiences

PROMPT = (10, 11, 12)
QUESTION = Question("q", "1+1?", "2", prompt_ids=PROMPT)
PATH = Path("q", (20, 21, 22, 23, 1), (-0.1, -0.2, -0.3, -0.4, -0.5), "stop", 1.0, 1.0)


def prefix(length=4, log_probs=True):
    return Prefix(PATH.token_ids[:length], PATH.log_probs[:length] if log_probs else None, 5 - length, PATH)


def sample(prefix, response=(30, 31, 1), finish="stop", score=1.0, shaped=0.75):
    log_probs = tuple(-1.0 - i for i in range(len(response)))
    return Sample(prefix, response, log_probs, finish, score, shaped)


RESPONSE, WHOLE_PATH = RPO(), Paper()


def experience(prefix, method=RESPONSE, **fields):
    [made] = to_experiences(Group(QUESTION, (sample(prefix, **fields),)), method)
    return made


def test_worked_example():
    """3 prompt tokens, 4 of the prefix, 3 of the response: entry t belongs to token t + 1."""
    e = experience(prefix())
    assert e.sequences.tolist() == [[10, 11, 12, 20, 21, 22, 23, 30, 31, 1]]
    assert e.attention_mask.tolist() == [[1] * 10]
    #                                     p1 p2 |a  b  c  d |x  y  <end>
    assert e.action_mask.tolist() == [[0, 0, 0, 0, 0, 0, 1, 1, 1]]
    assert e.rollout_log_probs.tolist() == [[0.0] * 6 + [-1.0, -2.0, -3.0]]
    expected = [[0.0, 0.0, -0.1, -0.2, -0.3, -0.4, -1.0, -2.0, -3.0]]
    torch.testing.assert_close(experience(prefix(), WHOLE_PATH).rollout_log_probs, torch.tensor(expected))


def test_where_there_is_no_loss_the_log_probs_are_none():
    """-inf may stand in an imported path, and is NaN in a masked sum."""
    impossible = replace(prefix(), log_probs=(-0.1, -math.inf, -0.3, -0.4))
    assert experience(impossible).rollout_log_probs[0, 2:6].tolist() == [0.0] * 4
    assert experience(impossible, WHOLE_PATH).rollout_log_probs[0, 3] == -math.inf


def test_the_whole_path_carries_loss_where_the_method_says_so():
    assert experience(prefix(), WHOLE_PATH).action_mask.tolist() == [[0, 0, 1, 1, 1, 1, 1, 1, 1]]


@pytest.mark.parametrize("method", [RESPONSE, WHOLE_PATH], ids=["response", "path"])
def test_with_an_empty_prefix_the_methods_agree(method):
    e = experience(Prefix(), method)
    assert e.sequences.tolist() == [[10, 11, 12, 30, 31, 1]]
    assert e.action_mask.tolist() == [[0, 0, 1, 1, 1]]
    assert e.rollout_log_probs.tolist() == [[0.0, 0.0, -1.0, -2.0, -3.0]]


@pytest.mark.parametrize("method", [RESPONSE, WHOLE_PATH], ids=["response", "path"])
def test_where_a_path_has_no_log_probs_its_prefix_is_masked(method):
    e = experience(prefix(log_probs=False), method)
    assert e.action_mask.tolist() == [[0, 0, 0, 0, 0, 0, 1, 1, 1]]
    assert e.rollout_log_probs.tolist() == [[0.0] * 6 + [-1.0, -2.0, -3.0]]


@pytest.mark.parametrize("method", [RESPONSE, WHOLE_PATH], ids=["response", "path"])
@pytest.mark.parametrize("log_probs", [True, False])
def test_a_token_with_loss_never_has_a_rollout_log_prob_of_zero(method, log_probs):
    e = experience(prefix(log_probs=log_probs), method)
    assert (e.rollout_log_probs[e.action_mask.bool()] != 0).all()


def test_a_prompt_of_one_token_loses_its_only_entry():
    [e] = to_experiences(Group(Question("q", "1", "2", prompt_ids=(10,)), (sample(prefix(2)),)), WHOLE_PATH)
    assert e.action_mask.tolist() == [[1, 1, 1, 1, 1]]


def test_lengths_and_scores():
    e = experience(prefix(), score=1.0, shaped=0.75, finish="length")
    assert (e.response_length.tolist(), e.total_length.tolist()) == ([3], [10.0])
    assert (e.info["prefix_length"].tolist(), e.info["path_length"].tolist()) == ([4.0], [7.0])
    assert (e.scores.tolist(), e.info["score"].tolist()) == ([1.0], [1.0])
    assert (e.rewards.tolist(), e.info["reward"].tolist()) == ([0.75], [0.75])
    assert e.truncated.tolist() == [True]
    assert (e.prompts, e.labels) == (["1+1?"], ["2"])


def test_the_logged_reward_is_not_the_one_that_penalties_change():
    e = experience(prefix())
    e.rewards -= 1
    assert e.info["reward"].tolist() == [0.75]


def test_samples_without_a_score_wait_for_the_reward_model():
    e = experience(prefix(), score=None, shaped=None)
    assert (e.rewards, e.scores) == (None, None)
    assert "reward" not in e.info


def test_one_experience_a_sample_in_the_order_of_the_group():
    group = Group(QUESTION, (sample(prefix(), (30, 1)), sample(prefix(), (31, 1))))
    assert [e.sequences[0, -2].item() for e in to_experiences(group, RESPONSE)] == [30, 31]


# ── Through upstream's batching ──


def group():
    members = (
        sample(prefix(), (30, 31, 1)),
        sample(prefix(), (32, 1), score=0.0, shaped=0.0),
        sample(prefix(), (33,), "length"),
    )
    return to_experiences(Group(QUESTION, members), WHOLE_PATH)


def batching():
    from openrlhf.trainer.ppo_utils import experience as upstream

    return upstream


def test_concatenated_and_split_again_nothing_is_lost():
    """What the experience maker, and then the replay buffer, do with the samples."""
    originals = group()
    for i, e in enumerate(originals):
        e.index = [i]
    batch = Experience.concat_experiences(originals, 0)
    assert batch.sequences.shape == (3, 10)
    assert batch.index == [0, 1, 2]
    items = batching().remove_padding_in_sequences(batching().split_experience_batch(batch))
    for item, original in zip(items, originals, strict=True):
        for f in fields(Experience):
            before, after = getattr(original, f.name), getattr(item, f.name)
            if f.name == "index":
                continue
            if isinstance(before, torch.Tensor):
                torch.testing.assert_close(after, before[0], msg=f.name)
            elif isinstance(before, dict):
                assert {k: v.item() for k, v in after.items()} == {k: v.item() for k, v in before.items()}
            else:
                assert after == before, f.name


def test_a_training_batch_pads_on_the_right_and_keeps_the_masks():
    items = batching().remove_padding_in_sequences(
        batching().split_experience_batch(Experience.concat_experiences(group(), 0))
    )
    batch = batching().make_experience_batch(items)
    assert batch.action_mask.tolist() == [
        [0, 0, 1, 1, 1, 1, 1, 1, 1],
        [0, 0, 1, 1, 1, 1, 1, 1, 0],
        [0, 0, 1, 1, 1, 1, 1, 0, 0],
    ]
    assert batch.action_mask.dtype == torch.long and batch.rollout_log_probs.dtype == torch.float32
    assert batch.response_length.tolist() == [3, 2, 1]
    assert torch.stack(list(batch.info["prefix_length"])).tolist() == [4.0, 4.0, 4.0]


def test_balancing_over_two_actors_keeps_every_sample():
    from types import SimpleNamespace as Options

    args = Options(actor=Options(num_nodes=1, num_gpus_per_node=2), ds=Options(ring_attn_size=1, tensor_parallel_size=1))
    batch = Experience.concat_experiences([*group(), *group()[:1]], 0)
    balanced = balance_experiences([batch], args)
    assert sorted(n for e in balanced for n in e.response_length.tolist()) == [1, 2, 3, 3]


def test_a_question_of_two_data_sources_counts_for_both():
    """Upstream finds the source by the prompt, and the last one won."""
    right, wrong = (Group(QUESTION, (sample(Prefix(), score=score),) * 2) for score in (1.0, 0.0))
    groups = [replace(group, question=replace(QUESTION, datasource=name)) for name, group in (("a", right), ("b", wrong))]
    logs = eval_logs(groups, 2)
    assert (logs["eval_a_pass1"], logs["eval_a_pass2"], logs["eval_b_pass1"]) == (1.0, 1.0, 0.0)
