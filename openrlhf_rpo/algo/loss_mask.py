"""Which tokens carry loss: the one place the loss gets its mask from (spec section 5).

A prompt of 3 tokens, a prefix of 4 and a response of 3, so a path of 7 tokens and a sequence of 10::

    token       p0 p1 p2 | a  b  c  d | x  y  <end>
    mask         0  0  0 | 0  0  0  0 | 1  1  1        only what this step's policy sampled
    include      0  0  0 | 1  1  1  1 | 1  1  1        the whole path, as the paper's |o_i|
    weighted     0  0  0 | 1  1  1  1 | 1  1  1        the whole path, prefix tokens scaled by min(cap, pi_theta / mu)
    segment      0  0  0 | 0  0  1  1 | 1  1  1        from where another sample of the group starts, here c (``segments``)

Upstream's ``action_mask`` is this mask without its first entry: entry t of ``action_mask`` belongs to token t + 1,
which is predicted from token t. Here, with ``mask``: ``0 0 0 0 0 0 1 1 1``.

Degenerate cases: with an empty prefix the modes agree, and it is plain GRPO. ``weighted`` needs mu; a path stored
without log-probs has none, so its prefix is masked.
"""

MODES = ("mask", "include", "weighted", "segment")


def loss_mask(
    prompt_length: int,
    prefix_length: int,
    response_length: int,
    mode: str,
    segment_start: int = 0,
) -> list[int]:
    """One entry a token of prompt + prefix + response, 1 where the token carries loss. Lengths are in tokens.

    ``segment_start`` counts the prefix tokens that ``segment`` leaves out. Raises ValueError for an unknown mode.
    """
    if mode not in MODES:
        raise ValueError(f"prefix loss {mode!r}: expected {', '.join(MODES)}")
    without = {"mask": prefix_length, "segment": segment_start}.get(mode, 0)
    return [0] * (prompt_length + without) + [1] * (prefix_length - without + response_length)
