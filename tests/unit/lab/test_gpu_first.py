"""What verified reuse counts on in half precision: reading an answer again gives the same log-probs; drawing it does not."""

import pytest

from lab import gpu_first


@pytest.mark.timeout(300)
def test_a_policy_rejects_what_it_has_drawn_in_half_precision_and_not_what_it_has_read():
    found = gpu_first.rounding(gpu_first.Place(quick=True))
    drawn, read = (found[f"bfloat16, {way}"]["rejected"]["1.0"] for way in ("drawn", "read"))
    assert drawn > 1e-3, "with so little noise this test shows nothing"
    assert read < 1e-5
