"""A step's rollout with stand-ins for the engines and the rewards: what is asked of them, and what comes of it."""

from collections.abc import Iterator

import numpy as np
import pytest
from transformers import AutoTokenizer

from lab.testbed import model_dir
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.launch import cluster, options
from openrlhf_rpo.rollout.requests import Generated, GeneratedGroup, GroupRequest, VerifyRequest
from openrlhf_rpo.rollout.reward_call import RewardResult
from openrlhf_rpo.rollout.rollout import EVAL_STEP, Rollout
from openrlhf_rpo.rollout.scoring import Scorer
from openrlhf_rpo.rollout.selection import Asked
from openrlhf_rpo.types import (
    CacheDecision,
    LogProbs,
    Part,
    Path,
    Prefix,
    Question,
    Rejected,
    StepRecord,
    Visit,
    as_log_probs,
)

TOKENIZER = AutoTokenizer.from_pretrained(model_dir("main"))
QUESTIONS = [
    Question(name, prompt, label, prompt_ids=tuple(TOKENIZER(prompt, add_special_tokens=False)["input_ids"]))
    for name, prompt, label in (("a", "a12+34?", "46"), ("b", "a1+2?", "3"), ("c", "b7-3?", "4"))
]
ASKED = [Asked(question, "turn") for question in QUESTIONS]
END = 1
VERIFY = {"rpo__method": "verify", "rollout__top_p": 1}
COUNTS = {"drafted": 10, "accepted": 4, "saved": 0.5, "read": 12, "gap": 0.6, "noise": 0.24}


class Engines:
    """Answers every request with two tokens and the end, the last group first."""

    def __init__(self):
        self.groups, self.drafts = [], []

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def generate(self, groups, enough=None, gate=None, stopped=None) -> Iterator:
        groups = [self.scored(group) if isinstance(group, VerifyRequest) else group for group in groups]
        self.asked, self.groups = groups, [group.samples for group in groups]
        for i in reversed(range(len(groups))):
            tokens = [(7, 8 + j % 2, END) for j in range(len(groups[i]))]
            yield i, GeneratedGroup([Generated(ids, (-1.0, -2.0, -3.0), "stop") for ids in tokens], COUNTS)

    def scored(self, group) -> GroupRequest:
        self.drafts.append(group.paths)
        return group.begin([self.score(path) for path in group.paths])

    def score(self, path) -> LogProbs:
        """The policy of now is sure of the first ten tokens of a path, and has forgotten the eleventh."""
        return as_log_probs([-0.01] * 10 + [-1000.0] * (path.n_tokens - 10))


class Rewards:
    """1 for every even call, with a reward that is not the score."""

    def __init__(self):
        self.requests = []

    def score(self, requests, max_failures):
        first, self.requests = len(self.requests), self.requests + requests
        calls = enumerate(requests, first)
        return [RewardResult((1 - i % 2) * 0.5, float(1 - i % 2), {"call": i, "of": ord(r.question_id)}) for i, r in calls]


@pytest.fixture
def cache(tmp_path):
    """Question a has a path of 20 tokens; b has one, but its last group was all wrong; c has none."""
    with PathCache.open(f"sqlite:///{tmp_path}/cache.db", {}) as made:
        log_probs = tuple(-0.25 * (i % 4) - 0.25 for i in range(20))
        made.commit_initial([Path(q, (*range(2, 21), END), log_probs, "stop", 1.0, 1.0) for q in "ab"])
        made.mark_initialised()
        visit = Visit("b", 1, 0, 0, 20, 2, 0, "reset", start_bare=True)
        made.commit_step(StepRecord(1, 0, 1, {}), [CacheDecision(None, visit)])
        yield made


@pytest.fixture
def rollout(cache):
    def make(rewards=None, **changes):
        words = {
            "actor.model_name_or_path": "model",
            "rpo.reward.functions": "math",
            "rpo.preset": "grpo",
            "data.max_len": 100,
            "rollout.batch_size": 2,
            "rollout.n_samples_per_prompt": 4,
            "rollout.micro_batch_size": 4,
            "actor.num_gpus_per_node": 1,
            "train.batch_size": 8,
            "vllm.num_engines": 1,
            "rollout.top_p": 0.9,
        } | {name.replace("__", "."): value for name, value in changes.items()}
        args = options.parse([word for name, value in words.items() for word in (f"--{name}", str(value))])
        cluster.adapt_options(args, "cpu")
        scorer = rewards and Scorer(rewards, max_failure_share=0.0)
        return Rollout(Engines(), scorer, cache, TOKENIZER, RPOConfig.from_namespace(args.rpo), args)

    return make


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


@pytest.mark.parametrize("tail", [1.0, 0.7])
def test_every_group_gets_its_own_rewards_whichever_is_done_first(rollout, tail):
    groups = rollout(Rewards(), rpo__tail=tail).roll_out(ASKED, 2, enough=3)
    assert [[s.reward_logs["of"] for s in group.samples] for group in groups] == [[ord(name)] * 4 for name in "abc"]
    calls = [[s.reward_logs["call"] for s in group.samples] for group in groups]
    in_turn = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert calls == (in_turn[::-1] if tail == 1 else in_turn)  # as they were done; with a tail when all are


def test_with_a_reward_model_scores_come_later(rollout):
    samples = rollout().roll_out(ASKED, 2)[0].samples
    assert {(s.score, s.shaped_reward) for s in samples} == {(None, None)}


def test_seconds_are_counted_by_phase(rollout):
    made = rollout(Rewards())
    made.roll_out(ASKED, 2)
    seconds = made.clock.seconds
    assert set(seconds) == {"rollout", "reward", "cache"} and all(s > 0 for s in seconds.values())


# ── Verified reuse ──


def test_stored_paths_are_scored_once_each_and_cut_at_the_first_rejected_token(rollout):
    made = rollout(rpo__method="verify", rollout__top_p=1)
    verified, after_reset, _ = made.roll_out(ASKED, 2)
    [[draft]] = made.generator.drafts  # question a; its one path serves all samples
    assert draft.token_ids.tolist() == [*QUESTIONS[0].prompt_ids, *range(2, 21), END] and draft.n_tokens == 20
    assert [s.prefix.log_probs for s in verified.samples] == [as_log_probs([-0.01] * 10)] * 4
    assert {len(s.prefix) for s in after_reset.samples} == {0}
    assert made.clock.seconds["verify"] > 0
    eleventh = Rejected(12, -1000.0, 0.0)
    assert [[r.rejected for r in group] for group in made.generator.groups] == [[eleventh] * 4, [None] * 4, [None] * 4]


def test_of_a_path_that_fills_the_context_the_last_token_is_not_scored_and_cut(rollout):
    made = rollout(rpo__method="verify", rollout__top_p=1, data__max_len=27)  # 7 of the prompt, 20 of the path
    made.generator.score = lambda path: as_log_probs([-0.01]) * path.n_tokens
    [group] = made.roll_out(ASKED[:1], 2)
    assert {len(s.prefix) for s in group.samples} == {19}
    assert [request.rejected for request in made.generator.groups[0]] == [None] * 4


def test_the_last_place_of_a_path_cut_off_at_the_limit_is_drawn_from_the_policy_whatever_was_there(rollout, cache):
    """Accepted, rejected or not scored, it is written anew."""
    cut_off = Path("a", tuple(range(2, 22)), (-0.01,) * 20, "length", 1.0, 1.0, step=2)
    visit = Visit("a", 2, 0, 0, 20, 4, 1, "best")
    cache.commit_step(StepRecord(2, 0, 2, {}), [CacheDecision(cut_off, visit)])
    for changes in ({"rollout__max_new_tokens": 20}, {"data__max_len": 27}):
        made = rollout(rpo__method="verify", rollout__top_p=1, **changes)
        made.generator.score = lambda path: as_log_probs([-0.01] * 19 + [-9.0] * (path.n_tokens - 19))
        [group] = made.roll_out(ASKED[:1], 3)
        assert {len(s.prefix) for s in group.samples} == {19}
        assert [request.rejected for request in made.generator.groups[0]] == [None] * 4


def test_a_cut_for_the_length_limit_s_sake_rejects_nothing(rollout):
    made = rollout(rpo__method="verify", rollout__top_p=1, rollout__max_new_tokens=8)
    [group] = made.roll_out(ASKED[:1], 2)
    assert {len(s.prefix) for s in group.samples} == {7}
    assert [request.rejected for request in made.generator.groups[0]] == [None] * 4


# ── Drafts ──


def test_stored_paths_are_drafts_the_newest_first_and_are_counted_over_a_step(rollout):
    made = rollout(rpo__drafts="on", rpo__drafts__tokens="6")
    assert made.config.drafts.mode == "on" and made.config.drafts.tokens == 6
    groups = made.roll_out(ASKED, 2)
    stored = made.stored([q.question_id for q in QUESTIONS])
    for asked, question, known in zip(made.generator.asked, QUESTIONS, stored, strict=True):
        newest = sorted(known.paths.values(), key=lambda path: -path.step)
        assert asked.drafts == [np.array(path.token_ids, np.int32).tobytes() for path in newest]
        assert asked.prompt_length == len(question.prompt_ids)
    assert any(asked.drafts for asked in made.generator.asked)
    found = made.engine_metrics(groups)
    assert (found["rpo/drafts/tokens"], found["rpo/drafts/accepted"]) == (30 / 12, 0.4)
    assert made.engine_metrics(groups) == {"rpo/drafts/tokens": 0.0, "rpo/drafts/accepted": 0.0}


def test_with_auto_a_step_says_how_many_seconds_an_engine_saved(rollout):
    made = rollout(rpo__drafts="auto")
    made.generator.engines = ["first", "second"]
    groups = made.roll_out(ASKED, 2)
    assert made.engine_metrics(groups)["rpo/drafts/seconds_saved"] == 3 * 0.5 / 2
    assert made.engine_metrics(groups)["rpo/drafts/seconds_saved"] == 0


def test_without_drafts_no_path_travels_to_the_engines(rollout):
    made = rollout()
    groups = made.roll_out(ASKED, 2)
    assert [asked.drafts for asked in made.generator.asked] == [[]] * 3
    assert not [name for name in made.engine_metrics(groups) if "drafts" in name]


# ── Rounding ──


@pytest.mark.parametrize(
    ("changes", "reads"),
    [
        ({**VERIFY, "ds__param_dtype": "bf16"}, True),
        (VERIFY, False),
        ({"ds__param_dtype": "bf16"}, False),
    ],
)
def test_what_will_be_verified_is_read_where_reading_rounds_otherwise_than_drawing(rollout, changes, reads):
    made = rollout(**changes)
    made.roll_out(ASKED, 2)
    assert [asked.read for asked in made.generator.asked] == [reads] * 3
    made.sample_bare(QUESTIONS, made.sampling, EVAL_STEP)
    assert not any(asked.read for asked in made.generator.asked)


def test_a_step_says_what_rounding_would_have_rejected(rollout):
    made = rollout(**VERIFY, ds__param_dtype="bf16")
    found = made.engine_metrics(made.roll_out(ASKED, 2))
    assert (found["rpo/verify/gap"], found["rpo/verify/noise"]) == (pytest.approx(0.05), pytest.approx(0.02))
    assert made.engine_metrics([]) == {}


class Stopped(Engines):
    """Every group comes back with one token of its first sample, and is asked for again by the policy of two steps."""

    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def generate(self, groups, enough=None, gate=None, stopped=None) -> Iterator:
        self.first, rest = groups, []
        for i, group in enumerate(groups):
            samples = [Generated((5,), (-0.5,), "unfinished"), *[Generated((), (), "unfinished")] * (len(group) - 1)]
            verifies = isinstance(group, VerifyRequest)
            rest.append(stopped(i, None if verifies else GeneratedGroup(samples)))
        self.left = list(self.gate_work())
        self.gate.version = 2
        self.second = [ask() for ask in rest]
        yield from super().generate(self.second)

    def gate_work(self):
        """What a checkpoint would hold of each group: its samples' tokens."""
        return ([len(s.response_ids) for s in group.samples] for group in self.made.work.groups)


def stopping(rollout, **options):
    made = rollout(**options)
    made.gate.version = 1
    made.generator = Stopped(made.gate)
    made.generator.made = made
    return made


def test_a_stopped_sample_goes_on_with_its_tokens_under_the_new_policy(rollout):
    made = stopping(rollout)
    group = made.roll_out(ASKED[1:2], 2)[0]
    assert made.generator.left == [[1, 0, 0, 0]]
    before, after = made.generator.first[0].samples, made.generator.second[0].samples
    assert after[0].token_ids.tolist() == [*before[0].token_ids, 5] and after[1].token_ids == before[1].token_ids
    assert after[0].max_tokens == before[0].max_tokens - 1
    assert after[0].seed != before[0].seed and after[1].seed == before[1].seed
    assert group.samples[0].response_ids.tolist() == [5, 7, 8, END] and group.samples[0].parts == (Part(1, 1), Part(2, 3))
    assert group.samples[1].parts == (Part(2, 3),) and (group.version, group.due) == (1, 2)
    assert group.samples[0].response_log_probs.tolist() == [-0.5, -1.0, -2.0, -3.0]


def test_a_group_that_was_being_verified_is_verified_again(rollout):
    made = stopping(rollout, **VERIFY)
    group = made.roll_out(ASKED[:1], 2)[0]
    assert made.generator.left == [[0] * 4]
    [first], [second] = made.generator.first, made.generator.second
    assert isinstance(first, VerifyRequest) and isinstance(second, VerifyRequest)
    assert second.paths == first.paths and group.version == 2
    assert {len(sample.prefix) for sample in group.samples} == {10}
