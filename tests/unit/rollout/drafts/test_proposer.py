"""What a thrifty proposer drafts and counts."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import vllm.v1.worker.gpu_model_runner as runner_module
from vllm.v1.sample.logits_processor import LogitBiasLogitsProcessor

from openrlhf_rpo.rollout.drafts import proposer as proposer_module
from openrlhf_rpo.rollout.drafts.proposer import ThriftyProposer

CONFIG = SimpleNamespace(
    speculative_config=SimpleNamespace(num_speculative_tokens=2),
    model_config=SimpleNamespace(max_model_len=64, get_vocab_size=lambda: 256),
    scheduler_config=SimpleNamespace(max_num_seqs=8),
)


@pytest.fixture
def proposer(monkeypatch):
    """It has a group with the path 5 6 7 8 and one request, which has its first token."""
    for name in ("RejectionSampler", "build_logitsprocs"):  # it replaces them
        monkeypatch.setattr(runner_module, name, getattr(runner_module, name))
    made = ThriftyProposer(CONFIG)
    request = SimpleNamespace(sampling_params=SimpleNamespace(extra_args={"openrlhf_rpo_drafts": ["g", 1]}))
    runner = SimpleNamespace(requests={"r": request}, input_batch=SimpleNamespace(req_ids=["r"]))
    made.remember(runner, "g", [np.array([5, 6, 7, 8], np.int32).tobytes()])
    return made


@pytest.fixture
def clock(monkeypatch):
    def tell(*seconds):
        monkeypatch.setattr(proposer_module.time, "perf_counter", iter(seconds).__next__)

    return tell


def test_engines_that_draft_weight_rejected_tokens(proposer):
    """vLLM builds no processor of ``logit_bias`` where there are drafts."""
    made = runner_module.build_logitsprocs(CONFIG, torch.device("cpu"), False, False)
    assert LogitBiasLogitsProcessor in map(type, made.all) and CONFIG.speculative_config is not None


def ask(proposer, sampled, tokens):
    return proposer.propose([sampled], np.array([len(tokens)]), np.array([tokens]))


@pytest.mark.parametrize(("requests", "drafts"), [(1, [6, 7]), (5, [6, 7]), (6, [6]), (8, [6])])
def test_many_requests_get_shorter_drafts_so_that_their_logits_fit(proposer, monkeypatch, requests, drafts):
    monkeypatch.setattr(proposer_module, "LOGITS", 11 * 4 * 256)
    made = ThriftyProposer(CONFIG)
    made.remember(proposer.runner, "g", [np.array([5, 6, 7, 8], np.int32).tobytes()])
    proposer.runner.input_batch.req_ids = ["r"] * requests
    proposed = made.propose([[5]] * requests, np.full(requests, 2), np.full((requests, 2), [1, 5]))
    assert proposed == [drafts] * requests


def test_what_a_plain_pass_follows_is_counted_and_nothing_is_looked_for(proposer):
    assert ask(proposer, [5], [1, 5]) == [[6, 7]]
    proposer.pace.pays = lambda requests: False
    proposer.groups["g"].paths = None  # looking would fail
    assert ask(proposer, [6, 9], [1, 5, 6, 9]) == [[]]  # one of two was accepted
    assert ask(proposer, [4], [1, 5, 6, 9, 4]) == [[]]
    assert proposer.forget("g") == {"drafted": 2, "accepted": 1, "saved": 0.0}


def test_seconds_saved_are_told_when_no_group_is_left(proposer, clock):
    clock(0, 1, 2, 3)
    proposer.remember(proposer.runner, "h", [np.array([5], np.int32).tobytes()])
    for tokens in ([5], [6, 7], [8, 9], [4]):
        ask(proposer, tokens, [1, 5, 6, 7, 8, 9, 4])
    proposer.pace.timings.clear()
    proposer.pace.add(1, False, 1, 2.0)  # a pass without drafts takes 2 s, those above had a second each
    assert proposer.forget("g")["saved"] == 0
    assert proposer.forget("h")["saved"] == 5 * 2 - 3
    proposer.remember(proposer.runner, "i", [])
    assert proposer.forget("i")["saved"] == 0


def test_without_a_pass_to_compare_with_nothing_is_said_to_be_saved(proposer):
    ask(proposer, [5], [1, 5])
    ask(proposer, [6], [1, 5, 6])
    proposer.pace.timings.clear()
    assert proposer.forget("g")["saved"] == 0


def test_passes_are_timed_with_the_tokens_that_they_gave(proposer):
    ask(proposer, [5], [1, 5])
    ask(proposer, [6, 9], [1, 5, 6, 9])
    [timing] = [timing for timing in proposer.pace.timings.values() if timing.passes]
    assert (timing.tokens, timing.passes) == (2, 1) and timing.seconds > 0


def test_the_first_pass_of_the_other_way_hands_out_what_the_one_before_gave_and_is_not_timed(proposer):
    passes = iter([True, False, False, False])
    proposer.pace.pays = lambda requests: next(passes)
    for i in range(4):
        ask(proposer, [5], [1, *[5] * (i + 1)])
    assert {key: timing.passes for key, timing in proposer.pace.timings.items()} == {(1, True): 1, (1, False): 1}


def test_a_pass_that_read_a_prompt_is_not_timed(proposer):
    ask(proposer, [5], [1, 5])
    proposer.runner.input_batch.req_ids.append("s")
    proposer.runner.requests["s"] = proposer.runner.requests["r"]
    proposer.propose([[6], [5]], np.array([3, 2]), np.array([[1, 5, 6], [1, 5, 0]]))
    assert all(timing.passes == 0 for timing in proposer.pace.timings.values())


def test_a_pass_that_read_the_rest_of_a_prompt_is_not_timed(proposer):
    """With chunked prefill, as on a GPU: a request in the midst of its prompt runs in every pass, and is given no token."""
    proposer.runner.input_batch.req_ids.append("s")
    proposer.runner.requests["s"] = proposer.runner.requests["r"]
    for sampled in ([[5], []], [[6], []], [[7], [5]]):
        proposer.propose(sampled, np.array([2, 1]), np.array([[1, 5], [1, 0]]))
    assert all(timing.passes == 0 for timing in proposer.pace.timings.values()) and proposer.spent == 0
    proposer.propose([[8], [6]], np.array([2, 1]), np.array([[1, 5], [1, 0]]))
    assert sum(timing.passes for timing in proposer.pace.timings.values()) == 1
