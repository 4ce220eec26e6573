"""Fisher's exact test, one-sided: the chance of so few successes if both conditions are equally good.

    p = sum over x = 0..right of  C(n, x) C(m, R - x) / C(n + m, R),   R = right + others_right

the chance of at most ``right`` successes among n trials if the R successes are spread randomly over all n + m trials. Exact
for any size. Source: Fisher 1935, "The Design of Experiments".

Degenerate cases: no success in either condition, or only successes, is p = 1.
"""

from math import comb


def fewer_by_chance(right: int, n: int, others_right: int, m: int) -> float:
    """p for ``right`` of ``n`` against ``others_right`` of ``m``. Raises ValueError for impossible counts."""
    if not 0 <= right <= n or not 0 <= others_right <= m:
        raise ValueError(f"{right} of {n} and {others_right} of {m} are no counts of successes")
    total = right + others_right
    return sum(comb(n, x) * comb(m, total - x) for x in range(right + 1)) / comb(n + m, total)
