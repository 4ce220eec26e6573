"""The only source of the loss mask.

The method chooses the first token of a sample's path that carries loss (``Method.loss_from``). Example: a prompt of 3
tokens, a prefix of 4 and a response of 3, so a path of 7 tokens and a sequence of 10::

    token            p0 p1 p2 | a  b  c  d | x  y  <end>
    loss_from = 4     0  0  0 | 0  0  0  0 | 1  1  1        only what this step's policy sampled (rpo)
    loss_from = 0     0  0  0 | 1  1  1  1 | 1  1  1        the whole path (paper, verify)
    loss_from = 2     0  0  0 | 0  0  1  1 | 1  1  1        from a point where another sample of the group starts

Upstream's ``action_mask`` is this mask without its first entry: entry t of ``action_mask`` belongs to token t + 1,
which is predicted from token t. Here, with ``loss_from`` 4: ``0 0 0 0 0 0 1 1 1``.
"""


def loss_mask(prompt_length: int, path_length: int, loss_from: int) -> bytes:
    """One byte per token of prompt and path, 1 where the token carries loss. Lengths are in tokens.

    Raises ValueError unless 0 <= ``loss_from`` < ``path_length``.
    """
    if not 0 <= loss_from < path_length:
        raise ValueError(f"loss from token {loss_from} of a path of {path_length}")
    return bytes(prompt_length + loss_from) + b"\1" * (path_length - loss_from)
