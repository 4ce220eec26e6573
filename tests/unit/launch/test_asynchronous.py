"""The options of asynchronous training."""

import pytest

from openrlhf_rpo.errors import UsageError

ASYNC = {"train__async_enable": True}
LEVEL, MODE = "algo.advantage.is_correction_level", "algo.advantage.is_correction_mode"


def correction(args):
    ours = args.algo.advantage
    return ours.is_correction_level, ours.is_correction_mode, ours.is_correction_threshold


def test_batches_made_ahead_are_corrected_token_by_token_whatever_the_method_says(parse):
    for method in ("rpo", "verify", "paper", "off"):
        top_p = {"rollout__top_p": 1} if method == "verify" else {}
        assert correction(parse(**ASYNC, **top_p, rpo__method=method)) == ("token", "clip", [0.0, 2.0])


def test_what_is_given_by_hand_stays(parse):
    given = {"algo__advantage__is_correction_level": "off", "algo__advantage__is_correction_threshold": 3.0}
    assert correction(parse(**ASYNC, **given)) == ("off", "clip", [0.0, 3.0])


def test_another_gate_keeps_its_own_bounds(parse):
    assert correction(parse(**ASYNC, algo__advantage__is_correction_level="seq")) == ("seq", "mask", [0.5, 5.0])
    gate = {"algo__advantage__is_correction_gating": "tv", "algo__advantage__is_correction_threshold": 0.1}
    assert correction(parse(**ASYNC, **gate)) == ("token", "mask", [0.0, 0.1])


@pytest.mark.parametrize("options", [{}, ASYNC | {"train__async_queue_size": 0}, ASYNC | {"rpo__enable": "false"}])
def test_nothing_is_corrected_where_no_batch_is_made_ahead(parse, options):
    if options.get("rpo__enable"):
        assert correction(parse(**options))[1] == "mask"
    else:
        assert correction(parse(**options)) == ("auto", "mask", [0.5, 5.0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"train__async_queue_size": 5}, "max_age 4 is less than --train.async_queue_size 5"),
        ({"rpo__async__max_age": 0}, "max_age 0 is less than --train.async_queue_size 1"),
        ({"rpo__tail": 0.5}, "--rpo.tail 0.5 is for steps that wait"),
        ({"train__async_queue_size": 0, "rpo__enable": "false"}, "OpenRLHF needs at least 1"),
    ],
)
def test_what_cannot_work_is_refused(parse, options, said):
    with pytest.raises(UsageError, match=said):
        parse(**ASYNC, **options)


def test_a_tail_goes_with_a_queue_of_none(parse):
    assert parse(**ASYNC, train__async_queue_size=0, rpo__tail=0.5).rpo.tail == 0.5
