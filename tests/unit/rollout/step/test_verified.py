"""Groups whose start the policy of now decides, and what rounding does to that."""

import pytest

from openrlhf_rpo.rollout.rollout import EVAL_STEP
from openrlhf_rpo.types import CacheDecision, Part, Path, Rejected, StepRecord, Visit, as_log_probs
from tests.unit.rollout.step.conftest import ASKED, END, ONE, QUESTIONS, VERIFY


def test_a_stored_path_is_scored_and_cut_at_the_first_rejected_token(rollout):
    made = rollout(**ONE)
    verified, after_reset, _ = made.roll_out(ASKED, 2)
    [[draft]] = made.generator.drafts  # question a
    assert draft.token_ids.tolist() == [*QUESTIONS[0].prompt_ids, *range(2, 21), END] and draft.n_tokens == 20
    assert [s.prefix.log_probs for s in verified.samples] == [as_log_probs([-0.01] * 10)]
    assert {len(s.prefix) for s in after_reset.samples} == {0}
    assert made.clock.seconds["verify"] > 0
    eleventh = Rejected(12, -1000.0, 0.0)
    assert [[r.rejected for r in group] for group in made.generator.groups] == [[eleventh], [None], [None]]


def test_of_a_path_that_fills_the_context_the_last_token_is_not_scored_and_cut(rollout):
    made = rollout(**ONE, data__max_len=27)  # 7 of the prompt, 20 of the path
    made.generator.score = lambda path: as_log_probs([-0.01]) * path.n_tokens
    [group] = made.roll_out(ASKED[:1], 2)
    assert {len(s.prefix) for s in group.samples} == {19}
    assert [request.rejected for request in made.generator.groups[0]] == [None]


def test_the_last_place_of_a_path_cut_off_at_the_limit_is_drawn_from_the_policy_whatever_was_there(rollout, cache):
    """Accepted, rejected or not scored, it is written anew."""
    cut_off = Path("a", tuple(range(2, 22)), (-0.01,) * 20, "length", 1.0, 1.0, step=2)
    visit = Visit("a", 2, 0, 0, 20, 4, 1, "best")
    cache.commit_step(StepRecord(2, 0, 2, {}), [CacheDecision(cut_off, visit)])
    for changes in ({"rollout__max_new_tokens": 20}, {"data__max_len": 27}):
        made = rollout(**ONE, **changes)
        made.generator.score = lambda path: as_log_probs([-0.01] * 19 + [-9.0] * (path.n_tokens - 19))
        [group] = made.roll_out(ASKED[:1], 3)
        assert {len(s.prefix) for s in group.samples} == {19}
        assert [request.rejected for request in made.generator.groups[0]] == [None]


def test_a_cut_for_the_length_limit_s_sake_rejects_nothing(rollout):
    made = rollout(**ONE, rollout__max_new_tokens=8)
    [group] = made.roll_out(ASKED[:1], 2)
    assert {len(s.prefix) for s in group.samples} == {7}
    assert [request.rejected for request in made.generator.groups[0]] == [None]


@pytest.mark.parametrize("share", [1, 4])
def test_a_path_that_is_accepted_to_its_end_is_a_sample_and_nothing_is_generated(rollout, cache, share):
    """Each sample has its own path, and ``share`` of the four are as likely as they were."""
    paths = [Path("a", (*range(2, 21), END), (-0.25,) * 20, "stop", 1.0, 1.0, step=2, slot=slot) for slot in range(4)]
    cache.commit_step(StepRecord(2, 0, 2, {}), [CacheDecision(paths[0], Visit("a", 2, 0, 0, 20, 4, 1, "every"), paths[1:])])
    made = rollout(**VERIFY)
    made.gate.version = 2
    scores = iter([[-0.125] * 20] * share + [[-0.125] * 10 + [-1000.0] * 10] * (4 - share))
    made.generator.score = lambda path: as_log_probs(next(scores))
    [group] = made.roll_out(ASKED[:1], 3)
    assert len(made.generator.groups[0]) == 4 - share
    for sample in group.samples[:share]:
        assert sample.prefix.token_ids.tolist() == [*range(2, 21)] and sample.response_ids.tolist() == [END]
        assert sample.prefix.log_probs.tolist() == [-0.125] * 19 and sample.response_log_probs.tolist() == [-0.125]
        assert (sample.finish_reason, sample.prefix.cut, sample.parts) == ("stop", 1, (Part(2, 1),))
    assert {len(sample.prefix) for sample in group.samples[share:]} <= {10}
    assert {sample.response_ids.tolist()[-1] for sample in group.samples} == {END}


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
