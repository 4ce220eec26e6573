"""Format reward: 1.0 for one closed thinking block followed by an answer, else 0.0.

    [<think>] thought </think> answer

The reference recipe (open-rs, ``format_reward``) requires exactly one ``</think>``. Chat templates of reasoning models open
the block in the prompt, so ``<think>`` is optional here, and only allowed at the beginning. ``<answer>`` tags are accepted
but are not an answer by themselves.

Degenerate cases: a second block, an unclosed block (truncated) or nothing after the block gives 0.0; an empty thought is
allowed.
"""

import re

_TAGS = re.compile(r"</?answer>")


def format_reward(response: str) -> float:
    """1.0 if ``response`` (a whole decoded path) thinks once and then answers, else 0.0."""
    thought, end, answer = response.partition("</think>")
    well_formed = (
        end
        and "<think>" not in thought.strip().removeprefix("<think>")
        and "<think>" not in answer
        and "</think>" not in answer
        and _TAGS.sub("", answer).strip()
    )
    return 1.0 if well_formed else 0.0
