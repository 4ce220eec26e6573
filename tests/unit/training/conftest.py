"""What tests of training share."""

from argparse import Namespace

import pytest

from openrlhf_rpo.launch import options


@pytest.fixture
def parsed():
    """The options of a run of 2 questions x 4 samples; ``parsed(*flags, **changes)``, changes with __ for the dot."""

    def parse(*flags: str, **changes: object) -> Namespace:
        values = {
            "actor.model_name_or_path": "model",
            "actor.num_gpus_per_node": 1,
            "critic.num_gpus_per_node": 1,
            "ref.num_gpus_per_node": 1,
            "rpo.reward.functions": "math",
            "algo.advantage.estimator": "group_norm",
            "algo.advantage.is_correction_level": "off",  # as on a CPU
            "algo.kl.init_coef": 0,
            "rollout.batch_size": 2,
            "rollout.n_samples_per_prompt": 4,
            "rollout.temperature": 0.9,
            "train.batch_size": 8,
            "train.micro_batch_size": 4,
            "vllm.num_engines": 1,
        } | {name.replace("__", "."): value for name, value in changes.items()}
        return options.parse([*(w for name, value in values.items() for w in (f"--{name}", str(value))), *flags])

    return parse
