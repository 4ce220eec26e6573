"""What a step's rollout asks of the engines and the rewards, and what comes of it."""

from dataclasses import replace

import pytest

from openrlhf_rpo.types import Prefix
from tests.unit.rollout.step.conftest import ASKED, END, QUESTIONS, TOKENIZER, Rewards


def test_groups_come_in_the_order_of_the_questions_whatever_finishes_first(rollout):
    made = rollout()
    groups = made.roll_out(ASKED, 2)
    assert [g.question.question_id for g in groups] == ["a", "b", "c"]
    assert all(len(g.samples) == 4 for g in groups)


def test_the_engine_gets_prompt_and_prefix_as_the_ids_that_were_stored(rollout):
    made = rollout()
    group = made.roll_out(ASKED[:1], 2)[0]
    prefix = group.samples[0].prefix
    assert 0 < len(prefix) < 20 and tuple(prefix.token_ids) == tuple(range(2, 2 + len(prefix)))
    assert all(request.token_ids == QUESTIONS[0].prompt_ids + prefix.token_ids for request in made.generator.groups[0])


def test_the_members_of_a_group_share_their_prefix(rollout):
    group = rollout().roll_out(ASKED[:1], 2)[0]
    assert len({tuple(sample.prefix.token_ids) for sample in group.samples}) == 1


def test_a_question_without_a_path_or_after_a_reset_starts_from_the_bare_prompt(rollout):
    made = rollout()
    _, after_reset, without_path = made.roll_out(ASKED, 2)
    assert all(s.prefix == Prefix() for s in (*after_reset.samples, *without_path.samples))
    assert made.generator.groups[2][0].token_ids == QUESTIONS[2].prompt_ids


def test_prefix_and_response_make_up_the_new_path(rollout):
    sample = rollout().roll_out(ASKED[:1], 2)[0].samples[1]
    assert (tuple(sample.response_ids), tuple(sample.response_log_probs)) == ((7, 9, END), (-1.0, -2.0, -3.0))
    assert sample.path_length == len(sample.prefix) + 3
    assert len(sample.prefix.log_probs) == len(sample.prefix)


def test_the_budget_is_what_the_prefix_leaves(rollout):
    made = rollout(rollout__max_new_tokens=30)
    group = made.roll_out(ASKED[:1], 2)[0]
    assert {r.max_tokens for r in made.generator.groups[0]} == {30 - len(group.samples[0].prefix)}


def test_without_a_longest_answer_the_budget_is_what_max_len_leaves(rollout):
    made = rollout()
    group = made.roll_out(ASKED[:1], 2)[0]
    assert made.generator.groups[0][0].max_tokens == 100 - 7 - len(group.samples[0].prefix)  # the prompt has 7 tokens


def test_a_factor_of_the_cut_bounds_the_budget(rollout):
    made = rollout(rpo__budget__rule="factor:1", rpo__cut__max="fixed:10")
    group = made.roll_out(ASKED[:1], 2)[0]
    assert {r.max_tokens for r in made.generator.groups[0]} == {group.samples[0].prefix.cut}


def test_a_bare_group_has_no_cut_to_be_a_factor_of(rollout):
    made = rollout(rpo__budget__rule="factor:1")
    made.roll_out([replace(ASKED[0], bare=True)], 2)
    assert {r.max_tokens for r in made.generator.groups[0]} == {100 - 7}


def test_a_path_that_fills_the_limit_still_leaves_room_for_a_token(rollout):
    made = rollout(rollout__max_new_tokens=5, rpo__cut__max="fixed:0")
    group = made.roll_out(ASKED[:1], 2)[0]
    assert (len(group.samples[0].prefix), made.generator.groups[0][0].max_tokens) == (4, 1)


def test_every_request_has_its_own_seed_and_a_resumed_run_the_same_ones(rollout):
    def seeds(step):
        made = rollout()
        made.roll_out(ASKED, step)
        return [r.seed for group in made.generator.groups for r in group]

    assert len(set(seeds(2))) == 12
    assert seeds(2) == seeds(2)
    assert not set(seeds(2)) & set(seeds(3))


def test_sampling_options_reach_the_engine(rollout):
    made = rollout(rollout__temperature=0.7)
    made.roll_out(ASKED[:1], 2)
    assert {(r.temperature, r.top_p) for r in made.generator.groups[0]} == {(0.7, 0.9)}


def test_evaluation_never_sees_a_prefix(rollout):
    made = rollout()
    groups = made.sample_bare(QUESTIONS, made.sampling, -1)
    assert all(s.prefix == Prefix() for group in groups for s in group.samples)
    assert [group[0].token_ids for group in made.generator.groups] == [q.prompt_ids for q in QUESTIONS]


def test_progress_is_told_group_by_group_as_they_finish(rollout):
    made, done = rollout(), []
    made.sample_bare(QUESTIONS, made.sampling, -1, lambda group: done.append(group.question.question_id))
    assert done == ["c", "b", "a"]


# ── Rewards ──


def test_a_reward_sees_prompt_and_whole_path_as_text(rollout):
    rewards = Rewards()
    made = rollout(rewards)
    group = made.roll_out(ASKED[:1], 2)[0]
    request, sample = rewards.requests[0], group.samples[0]
    path = [*sample.prefix.token_ids, *sample.response_ids]
    assert request.query == QUESTIONS[0].prompt + TOKENIZER.decode(path)
    assert request.query.endswith("<eos>") and not request.response.endswith("<eos>")
    assert request.response == TOKENIZER.decode(path, skip_special_tokens=True)
    assert (request.prompt, request.label, request.response_length) == ("a12+34?", "46", len(path))


def test_scores_stay_and_rewards_are_shaped_by_the_length_of_the_path(rollout):
    """Equal lengths: 1 / (1 + exp(0)) halves the reward 0.5 to 0.25, which m = 0.1 does not lift."""
    made = rollout(Rewards(), rpo__shaping__alpha=0.01, rpo__shaping__min=0.1)
    group = made.roll_out(ASKED[:1], 2)[0]
    assert [s.score for s in group.samples] == [1.0, 0.0, 1.0, 0.0]
    assert [s.shaped_reward for s in group.samples] == [0.25, 0.0, 0.25, 0.0]


def test_without_shaping_the_reward_is_as_the_function_gave_it(rollout):
    group = rollout(Rewards()).roll_out(ASKED[:1], 2)[0]
    assert [s.shaped_reward for s in group.samples] == [0.5, 0.0, 0.5, 0.0]
    assert [s.reward_logs["call"] for s in group.samples] == [0, 1, 2, 3]


@pytest.mark.parametrize("enough", [None, 3])
def test_every_group_gets_its_own_rewards_whichever_is_done_first(rollout, enough):
    groups = rollout(Rewards()).roll_out(ASKED, 2, enough)
    assert [[s.reward_logs["of"] for s in group.samples] for group in groups] == [[ord(name)] * 4 for name in "abc"]
    calls = [[s.reward_logs["call"] for s in group.samples] for group in groups]
    in_turn = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert calls == (in_turn[::-1] if enough is None else in_turn)  # as they were done; with a tail when all are


def test_with_a_reward_model_scores_come_later(rollout):
    samples = rollout().roll_out(ASKED, 2)[0].samples
    assert {(s.score, s.shaped_reward) for s in samples} == {(None, None)}


def test_seconds_are_counted_by_phase(rollout):
    made = rollout(Rewards())
    made.roll_out(ASKED, 2)
    seconds = made.clock.seconds
    assert set(seconds) == {"rollout", "reward", "cache"} and all(s > 0 for s in seconds.values())


def test_what_an_evaluation_takes_and_what_fails_in_it_are_not_of_the_step(rollout):
    made = rollout(Rewards())
    made.scorer.failures, clock = 3, made.clock
    with made.apart():
        made.scorer.failures += 2
        made.counts["drafted"] += 10
        assert made.clock is not clock
    assert (made.scorer.failures, made.clock, made.counts["drafted"]) == (3, clock, 0)
    with rollout().apart():  # a reward model scores later
        pass
