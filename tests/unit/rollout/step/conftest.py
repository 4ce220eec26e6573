"""A step's rollout with stand-ins for the engines and the rewards."""

from collections.abc import Iterator

import pytest
from transformers import AutoTokenizer

from lab.testbed import model_dir
from openrlhf_rpo.cache.store import PathCache
from openrlhf_rpo.config import RPOConfig
from openrlhf_rpo.launch import cluster, options
from openrlhf_rpo.rollout.requests import Generated, GeneratedGroup, GroupRequest, VerifyRequest
from openrlhf_rpo.rollout.reward_call import RewardResult
from openrlhf_rpo.rollout.rollout import Rollout
from openrlhf_rpo.rollout.scoring import Scorer
from openrlhf_rpo.rollout.selection import Asked
from openrlhf_rpo.types import (
    CacheDecision,
    LogProbs,
    Path,
    Question,
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
ONE = {
    **VERIFY,
    "algo__advantage__estimator": "reinforce",
    "rollout__n_samples_per_prompt": 1,
    "rollout__micro_batch_size": 1,
    "train__batch_size": 2,
    "train__micro_batch_size": 1,
}
"""The cache has one path of question a, enough for one sample."""
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
            "ref.num_gpus_per_node": 1,
            "train.batch_size": 8,
            "vllm.num_engines": 1,
            "rollout.top_p": 0.9,
        } | {name.replace("__", "."): value for name, value in changes.items()}
        args = options.parse([word for name, value in words.items() for word in (f"--{name}", str(value))])
        cluster.adapt_options(args, "cpu")
        scorer = rewards and Scorer(rewards, max_failure_share=0.0)
        return Rollout(Engines(), scorer, cache, TOKENIZER, RPOConfig.from_namespace(args.rpo), args)

    return make
