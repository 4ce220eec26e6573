"""Where verified starts of the benches end."""

import random

from lab.law import verified


def test_nothing_is_generated_after_the_end_token_of_a_path_that_is_accepted_whole():
    paths = [((1, 2, 9), (-0.5, -0.5, -0.5)), ((3, 4, 9), (-0.5, -0.5, -0.5))]
    starts = verified(paths, [(-0.25, -0.25, -0.25), (-0.25, -1000.0, -0.25)], random.Random(0))
    assert [start.token_ids.tolist() for start in starts] == [[1, 2], [3]]
