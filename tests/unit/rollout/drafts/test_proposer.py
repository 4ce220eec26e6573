"""What a thrifty proposer drafts and counts."""

from types import SimpleNamespace

import numpy as np
import pytest
import vllm.v1.worker.gpu_model_runner as runner_module

from openrlhf_rpo.rollout.drafts.proposer import ThriftyProposer


@pytest.fixture
def proposer(monkeypatch):
    """It has a group with the path 5 6 7 8 and one request, which has its first token."""
    for name in ("RejectionSampler", "build_logitsprocs"):  # it replaces them
        monkeypatch.setattr(runner_module, name, getattr(runner_module, name))
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=2), model_config=SimpleNamespace(max_model_len=64)
    )
    made = ThriftyProposer(config)
    request = SimpleNamespace(sampling_params=SimpleNamespace(extra_args={"openrlhf_rpo_drafts": ["g", 1]}))
    runner = SimpleNamespace(requests={"r": request}, input_batch=SimpleNamespace(req_ids=["r"]))
    made.remember(runner, "g", [np.array([5, 6, 7, 8], np.int32).tobytes()])
    return made


def ask(proposer, sampled, tokens):
    return proposer.propose([sampled], np.array([len(tokens)]), np.array([tokens]))


def test_what_a_plain_pass_follows_is_counted_and_nothing_is_looked_for(proposer):
    assert ask(proposer, [5], [1, 5]) == [[6, 7]]
    proposer.pace.pays = lambda requests: False
    proposer.groups["g"].paths = None  # looking would fail
    assert ask(proposer, [6, 9], [1, 5, 6, 9]) == [[]]  # one of two was accepted
    assert ask(proposer, [4], [1, 5, 6, 9, 4]) == [[]]
    assert proposer.forget("g") == (2, 1, 0.0)


def test_seconds_saved_are_told_once(proposer):
    proposer.pace.saved = 3.0
    proposer.remember(proposer.runner, "h", [np.array([5], np.int32).tobytes()])
    assert proposer.forget("g") == (0, 0, 3.0) and proposer.forget("h") == (0, 0, 0.0)


def test_passes_are_timed_with_the_tokens_that_they_gave(proposer):
    ask(proposer, [5], [1, 5])
    ask(proposer, [6, 9], [1, 5, 6, 9])
    [timing] = [timing for timing in proposer.pace.timings.values() if timing.passes]
    assert (timing.tokens, timing.passes) == (2, 1) and timing.seconds > 0


def test_a_pass_that_read_a_prompt_is_not_timed(proposer):
    ask(proposer, [5], [1, 5])
    proposer.runner.input_batch.req_ids.append("s")
    proposer.runner.requests["s"] = proposer.runner.requests["r"]
    proposer.propose([[6], [5]], np.array([3, 2]), np.array([[1, 5, 6], [1, 5, 0]]))
    assert all(timing.passes == 0 for timing in proposer.pace.timings.values())
