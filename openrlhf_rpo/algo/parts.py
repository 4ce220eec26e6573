"""Which policy sampled which tokens: ``Part``s in token order, neighbours with different versions.

A path is cut and continued, and a sample may be stopped and continued, so either can have tokens of several policies.
Example: a path of the initial policy, cut to 4 tokens and continued by the policy after step 8, replaced midway by step 9::

    path's parts                (0, 6)
    head(parts, 4)              (0, 4)
    response's parts            (8, 2), (9, 5)
    joined(head, response)      (0, 4), (8, 2), (9, 5)
"""

from collections.abc import Iterable

from openrlhf_rpo.types import UNKNOWN, Part


def extended(parts: tuple[Part, ...], version: int, n_tokens: int) -> tuple[Part, ...]:
    """``parts`` plus ``n_tokens`` more of ``version``; unchanged if 0."""
    if n_tokens == 0:
        return parts
    if parts and parts[-1].version == version:
        return (*parts[:-1], Part(version, parts[-1].n_tokens + n_tokens))
    return (*parts, Part(version, n_tokens))


def head(parts: Iterable[Part], n_tokens: int) -> tuple[Part, ...]:
    """The parts of the first ``n_tokens`` tokens. What ``parts`` do not cover is of unknown origin."""
    found: tuple[Part, ...] = ()
    for part in parts:
        taken = min(part.n_tokens, n_tokens)
        found, n_tokens = extended(found, part.version, taken), n_tokens - taken
    return extended(found, UNKNOWN, n_tokens)


def joined(first: tuple[Part, ...], second: Iterable[Part]) -> tuple[Part, ...]:
    """The parts of two consecutive stretches of tokens."""
    for part in second:
        first = extended(first, *part)
    return first
