"""Groups that are stopped on their way: to let the other side train, or because enough others are done."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from openrlhf_rpo.rollout.requests import Generated, GeneratedGroup, VerifyRequest
from openrlhf_rpo.rollout.selection import Asked
from openrlhf_rpo.types import Part, Prefix, Rejected, Sample
from tests.unit.rollout.step.conftest import ASKED, END, ONE, QUESTIONS, VERIFY, Engines, Rewards


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
    made = stopping(rollout, **ONE)
    group = made.roll_out(ASKED[:1], 2)[0]
    assert made.generator.left == [[0]]
    [first], [second] = made.generator.first, made.generator.second
    assert isinstance(first, VerifyRequest) and isinstance(second, VerifyRequest)
    assert second.paths == first.paths and group.version == 2
    assert {len(sample.prefix) for sample in group.samples} == {10}


def test_what_was_accepted_of_a_path_is_not_verified_again(rollout):
    """Whether a group was stopped must not depend on what was rejected, or rejections would be rarer than they should."""
    made = stopping(rollout, **ONE)
    made.generator.generate = partial(after_verifying, made.generator)
    [group] = made.roll_out(ASKED[:1], 2)
    [request] = made.generator.groups
    assert {len(sample.prefix) for sample in group.samples} == {10} and len(request) == 1
    assert all(sample.parts == (Part(2, 3),) for sample in group.samples)


def after_verifying(engines, groups, enough=None, gate=None, stopped=None) -> Iterator:
    """Every group is verified, and stopped before its first token."""
    begun = [engines.scored(group) for group in groups]
    rest = [stopped(i, GeneratedGroup([Generated((), (), "unfinished")] * len(group))) for i, group in enumerate(begun)]
    engines.gate.version = 2
    yield from Engines.generate(engines, [ask() for ask in rest])


@pytest.mark.parametrize(
    ("options", "n", "fits"),
    [
        ({}, 4, True),
        ({"rollout__n_samples_per_prompt": 8}, 4, False),
        ({"rollout__max_new_tokens": 10}, 4, False),
        ({"rollout__max_new_tokens": 11}, 4, True),
        ({"data__max_len": 17}, 4, False),
    ],
)
def test_begun_samples_go_on_where_the_options_of_now_leave_them_room(rollout, options, n, fits):
    """Three hold 10 tokens, and the last one more than any may have."""
    made, begun = rollout(**options), Sample(Prefix(), (7,) * 10, (-1.0,) * 10, "unfinished")
    done = replace(begun, response_ids=(7,) * 99, response_log_probs=(-1.0,) * 99, finish_reason="stop")
    assert made.fits(QUESTIONS[0], (begun,) * (n - 1) + (done,)) == fits


# ── The tail ──


class Lengths(Engines):
    """The samples of the groups have so many tokens; the last sample of each group has one."""

    def __init__(self, *lengths):
        super().__init__()
        self.lengths = lengths

    def generate(self, groups, enough=None, gate=None, stopped=None) -> Iterator:
        self.enough, self.groups = enough, [group.samples for group in groups]
        for i, group in reversed(list(enumerate(groups))):
            lengths = [*[self.lengths[i]] * (len(group) - 1), 1]
            yield i, GeneratedGroup([Generated((7,) * n, (-1.0,) * n, "stop") for n in lengths])


@pytest.fixture
def with_a_tail(rollout):
    def make(*lengths):
        made = rollout(Rewards(), rpo__tail=0.7)
        made.generator = Lengths(*lengths)
        return made

    return make


def test_with_a_tail_the_late_group_waits_cut_to_the_longest_wanted(with_a_tail):
    made = with_a_tail(3, 9, 5)
    groups = made.roll_out(ASKED, 2, enough=2)
    assert made.generator.enough == 2
    assert [group.waits for group in groups] == [False, True, False]
    *late, short = groups[1].samples
    assert {(len(s.response_ids), s.finish_reason) for s in late} == {(5, "unfinished")}
    assert (len(short.response_ids), short.finish_reason) == (1, "stop")
    assert {len(s.response_ids) for s in groups[2].samples[:3]} == {5}


def test_only_groups_that_do_not_wait_have_scores(with_a_tail):
    groups = with_a_tail(3, 9, 5).roll_out(ASKED, 2, enough=2)
    assert [[s.reward_logs.get("of") for s in group.samples] for group in groups] == [
        [ord("a")] * 4,
        [None] * 4,
        [ord("c")] * 4,
    ]
    assert {s.score for s in groups[1].samples} == {None}


def test_tokens_of_earlier_steps_are_told_from_those_of_this_one(with_a_tail):
    """Two samples have 3 and 2 tokens, one of them was done; the two that go on get 4 and 1 more."""
    begun = (Sample(Prefix(), (5,) * 3, (-0.5,) * 3, "unfinished"), Sample(Prefix(), (5,) * 2, (-0.5,) * 2, "stop"))
    begun += (Sample(Prefix(), (), (), "unfinished"),)
    asked = [Asked(QUESTIONS[0], "unfinished", begun=begun), ASKED[2]]
    first, second = with_a_tail(4, 4).roll_out(asked, 2, enough=2)
    assert (first.n_before, first.n_tokens) == (5, 5 + 4 + 1)
    assert (second.n_before, second.n_tokens) == (0, 3 * 4 + 1)


def test_what_was_rejected_is_weighed_in_the_first_draw_alone(rollout):
    """A sample that has a token already is past the place where the stored path was rejected."""
    prefix = Prefix((2, 3), (-0.5, -0.5), rejected=Rejected(12, -9.0, 0.0))
    begun = tuple(Sample(prefix, ids, (-0.5,) * len(ids), "unfinished") for ids in ((5,), ()))
    made = rollout(**VERIFY)
    made.roll_out([Asked(QUESTIONS[0], "unfinished", begun=begun)], 2)
    [[later, first]] = made.generator.groups
    assert later.rejected is None and first.rejected == prefix.rejected
