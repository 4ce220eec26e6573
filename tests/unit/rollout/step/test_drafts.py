"""Stored paths as drafts."""

from openrlhf_rpo.types import CacheDecision, Path, StepRecord, Visit
from tests.unit.rollout.step.conftest import ASKED, QUESTIONS


def test_every_stored_path_is_a_draft_the_newest_first(rollout, cache):
    """Question c has the paths 5 6, 7 and 8 in the slots 0, 1 and 2, written in the steps 3, 2 and 4."""
    for step, slot, token_ids in ((2, 1, (7,)), (3, 0, (5, 6)), (4, 2, (8,))):
        path = Path("c", token_ids, (-0.5,) * len(token_ids), "stop", 1.0, 1.0, step=step, slot=slot)
        visit = Visit("c", step, 0, 0, 9, 4, 1, "best")
        cache.commit_step(StepRecord(step, 0, step, {}), [CacheDecision(None, visit, (path,))])
    made = rollout(rpo__drafts="on", rpo__drafts__tokens="6")
    assert made.config.drafts.mode == "on" and made.config.drafts.tokens == 6
    made.roll_out(ASKED[2:], 5)
    [asked] = made.generator.asked
    assert asked.drafts == [b"\x08\0\0\0", b"\x05\0\0\0\x06\0\0\0", b"\x07\0\0\0"]
    assert asked.prompt_length == len(QUESTIONS[2].prompt_ids)


def test_every_group_gets_the_drafts_of_its_own_question(rollout, cache):
    made = rollout(rpo__drafts="on")
    stored = Path("b", (9,), (-0.5,), "stop", 1.0, 1.0, step=2)
    cache.commit_step(StepRecord(2, 0, 2, {}), [CacheDecision(stored, Visit("b", 2, 0, 0, 9, 4, 1, "best"))])
    made.roll_out(ASKED, 3)
    assert [[len(draft) // 4 for draft in asked.drafts] for asked in made.generator.asked] == [[20], [1], []]


def test_drafted_and_accepted_tokens_are_counted_over_a_step(rollout):
    made = rollout(rpo__drafts="on")
    groups = made.roll_out(ASKED, 2)
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
