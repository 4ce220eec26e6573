"""No reuse: every sample starts from the bare question; paths are stored but never continued.

This is GRPO, DAPO or RAFT as in OpenRLHF, plus shared prompts in training and exact resumption.
"""

from openrlhf_rpo.algo.methods.method import Method


class Off(Method):
    """Start every group from the bare question."""
