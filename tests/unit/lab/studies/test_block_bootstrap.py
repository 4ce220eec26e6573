"""The interval of a ratio of variances over steps."""

import random

import pytest

from lab.studies.block_bootstrap import pooled, resample, variance_ratio


def test_the_ratio_is_of_variances_pooled_over_runs():
    assert pooled([[1.0, 3.0], [0.0, 4.0]]) == (2.0 + 8.0) / 2
    ratio, low, high = variance_ratio([[1.0, 3.0] * 8, [0.0, 4.0] * 8], [[0.0, 2.0] * 8])
    assert ratio == pytest.approx((1.0 + 4.0) / 2) and low <= ratio <= high


def test_blocks_are_of_neighbours():
    drawn = resample(list(range(16)), random.Random(1))
    assert len(drawn) == 16
    assert all(drawn[i + 1] == drawn[i] + 1 for start in range(0, 16, 4) for i in range(start, start + 3))


def test_two_samples_of_one_distribution_are_not_told_apart_and_two_of_different_ones_are():
    rng = random.Random(0)
    a, b, wide = ([rng.gauss(0, sd) for _ in range(200)] for sd in (1, 1, 3))
    _, low, high = variance_ratio([a], [b])
    assert low < 1 < high
    assert variance_ratio([wide], [a])[1] > 1


def test_the_same_seed_gives_the_same_interval():
    rng = random.Random(0)
    series = [[rng.random() for _ in range(50)]]
    assert variance_ratio(series, series) == variance_ratio(series, series)
    assert variance_ratio(series, series)[0] == 1.0


def test_a_series_that_never_changes_has_no_ratio():
    with pytest.raises(ValueError, match="never changes"):
        variance_ratio([[1.0, 2.0]], [[1.0, 1.0]])
