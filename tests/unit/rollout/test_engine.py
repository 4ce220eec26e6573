"""What the engine hands back of a token that was drawn with another token's weight."""

import math

import pytest

from openrlhf_rpo.rollout.engine import without_weight
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
