"""Format reward: 1.0 for one closed block of thought followed by an answer, else 0.0.

    [<think>] thought </think> answer

The reference recipe (open-rs, ``format_reward``) asks for exactly one ``</think>``; the templates of reasoning models
already open the block in the prompt, so ``<think>`` itself is optional here, and may only stand at the beginning.
``<answer>`` tags around the answer are accepted and do not count as an answer.

Degenerate cases: a second block, an unclosed block (a truncated thought) and nothing after the block are 0.0; an empty
thought is allowed.
"""

import re

_TAGS = re.compile(r"</?answer>")


def format_reward(response: str) -> float:
    """1.0 if ``response`` (a whole path, decoded) thinks once and then answers, else 0.0."""
    thought, end, answer = response.partition("</think>")
    well_formed = (
        end
        and "<think>" not in thought.strip().removeprefix("<think>")
        and "<think>" not in answer
        and "</think>" not in answer
        and _TAGS.sub("", answer).strip()
    )
    return 1.0 if well_formed else 0.0
