"""OpenRLHF's supervised fine-tuning in one process: ``python -m lab.real.sft`` with the options of its ``train_sft``.

OpenRLHF's GPU assumptions are worked around as in training (``openrlhf_rpo.platform``). A CPU without bfloat16 instructions
computes in float32.
"""

import os
import sys

from lab.real import fast_bfloat16
from openrlhf_rpo import platform, upstream
from openrlhf_rpo.platform.cpu import FLOAT32, free_port


def main(words: list[str]) -> None:
    """Train; the model goes to ``--ckpt.output_dir``."""
    on_cpu = platform.choose("auto", 0) == "cpu"
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(free_port())
    parser = upstream.build_parser("train_sft")
    next(action for action in parser._actions if action.dest == "ds.param_dtype").choices.append(FLOAT32)
    attention = "flash_attention_2" if platform.has_flash_attn() else "sdpa"
    dtype = FLOAT32 if on_cpu and not fast_bfloat16() else "bf16"
    parser.set_defaults(**{"ds.attn_implementation": attention, "ds.param_dtype": dtype})
    upstream.fine_tune(upstream.nest(parser.parse_args(words)))


if __name__ == "__main__":
    main(sys.argv[1:])
