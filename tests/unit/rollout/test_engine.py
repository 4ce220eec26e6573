"""What an engine is started with, and what it hands back of a token that was drawn with another token's weight."""

import math
from types import SimpleNamespace

import pytest
from vllm.engine import arg_utils

from openrlhf_rpo.rollout.engine import offline_limits, without_weight
from openrlhf_rpo.types import Rejected

POLICY = {3: 0.5, 4: 0.3, 5: 0.2}


@pytest.mark.parametrize("weight", [0.0, 0.25, 0.9])
@pytest.mark.parametrize("token", POLICY)
def test_log_probs_are_the_policys_whichever_the_engine_reports(token, weight):
    rejected = Rejected(3, math.log(POLICY[3]), weight)
    drawn_with = {t: p * (weight if t == 3 else 1.0) for t, p in POLICY.items()}
    reported = drawn_with[token] / sum(drawn_with.values())
    before, after = math.log(POLICY[token]), math.log(reported) if reported else -math.inf
    assert without_weight(token, before, rejected, processed=False) == pytest.approx(before)
    assert without_weight(token, after, rejected, processed=True) == pytest.approx(before)


GPUS = {
    "NVIDIA H100 80GB HBM3": (80, 1024, 16384),
    "NVIDIA A100-SXM4-80GB": (80, 256, 8192),
    "NVIDIA A10G": (24, 256, 8192),
}


@pytest.mark.parametrize(("name", "sizes"), GPUS.items(), ids=GPUS.keys())
def test_an_engine_has_the_limits_of_offline_work(name, sizes, monkeypatch):
    memory, sequences, tokens = sizes
    gpu = {"get_device_total_memory": lambda: memory * 2**30, "get_device_name": lambda: name}
    monkeypatch.setattr(arg_utils, "current_platform", SimpleNamespace(**gpu, is_tpu=lambda: False, is_cpu=lambda: False))
    assert offline_limits(4096, 1) == {"max_num_seqs": sequences, "max_num_batched_tokens": tokens}
    assert offline_limits(32768, 1)["max_num_batched_tokens"] == 32768
