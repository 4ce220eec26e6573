"""How many questions of a batch replay the cache (no counterpart in the paper).

A step lasts as long as its longest response. Mixed into every batch, a few answers from the bare question make every rollout
as long as a full path, however short the others are. Gathered in steps of their own they hold up those steps alone.
"""

import math


def n_replayed(n: int, share: float, by: str, step: int) -> int:
    """How many of ``n`` questions step ``step`` (1, 2, ...) replays, if that many have a path.

    ``by batch``: ``share`` of them, rounded down. ``by step``: all or none, so that of any first k steps
    ceil(k (1 - share)) start from the bare question, the first step always among them.
    """
    if by == "batch" or not share:
        return int(share * n)
    bare_until = [math.ceil(round(k * (1 - share), 9)) for k in (step - 1, step)]
    return n if bare_until[0] == bare_until[1] else 0
