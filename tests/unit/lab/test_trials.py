"""How many runs of a sweep go at a time."""

import pytest

from lab.runs import StudyError
from lab.trials import at_a_time


@pytest.mark.parametrize(
    ("room", "needs", "parallel", "expected"),
    [
        ({"GPU": 8.0, "CPU": 64.0}, 8, None, 1),  # the others wait
        ({"GPU": 16.0, "CPU": 8.0}, 8, None, 2),  # CPUs do not count where there are GPUs
        ({"GPU": 16.0, "CPU": 64.0}, 8, 1, 1),
        ({"CPU": 5.0}, 2, 9, 2),
    ],
)
def test_as_many_as_there_are_devices_for_and_no_more_than_asked(room, needs, parallel, expected):
    assert at_a_time(room, needs, parallel) == expected


def test_a_run_that_never_fits_is_refused_instead_of_waiting_for_ever():
    with pytest.raises(StudyError, match="a run asks for 8 GPUs, and the Ray cluster has 4"):
        at_a_time({"GPU": 4.0, "CPU": 64.0}, 8, None)
