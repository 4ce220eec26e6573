"""Command lines of training runs, from options without dashes."""

import sys
from collections.abc import Mapping

MODULE = "openrlhf_rpo.cli.train_rpo_ray"
TASK = {
    "data.input_key": "question",
    "data.label_key": "answer",
    "data.max_len": 768,
    "rpo.reward.functions": "math",
    "vllm.num_engines": 1,
}
"""Options of training and evaluation on the testbed."""
GRPO = {
    "algo.advantage.estimator": "group_norm",
    "algo.kl.init_coef": 0,
    "actor.num_gpus_per_node": 1,
}
"""Options of training on any task."""
TRAINING = {**TASK, **GRPO}
"""Options of training on the testbed."""


def option_words(options: Mapping[str, object]) -> list[str]:
    """``--name value`` for each option; a flag alone for True."""
    words = []
    for name, value in options.items():
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def train_command(options: Mapping[str, object]) -> list[str]:
    """The training command with these options, in this Python."""
    return [sys.executable, "-m", MODULE, *option_words(options)]
