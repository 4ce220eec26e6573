"""pass@k: the chance that at least one of k answers is right, estimated without bias from n >= k answers, c of them right.

    pass@k = 1 - C(n - c, k) / C(n, k)

the share of k-subsets of the n answers that hold a right one (Chen et al. 2021, "Evaluating Large Language Models Trained
on Code", eq. 1). The best of the first k answers is unbiased too, but varies more; 1 - (1 - c/n)^k is biased downwards.

Degenerate cases: k = 1 is c / n; c = 0 is 0; c > n - k is 1.
"""

from math import comb


def pass_at_k(n: int, right: int, k: int) -> float:
    """pass@k if ``right`` of ``n`` answers are right. Raises ValueError unless 0 <= right <= n and 1 <= k <= n."""
    if not 0 <= right <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {n} answers with {right} right: needs 0 <= right <= n and 1 <= k <= n")
    return 1.0 - comb(n - right, k) / comb(n, k)
