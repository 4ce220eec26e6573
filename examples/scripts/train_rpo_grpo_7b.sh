#!/usr/bin/env bash
# RPO on GRPO, DeepSeek-R1-Distill-Qwen-7B: table 1 of the paper, "+ GRPO (w/ R) + RPO". As train_rpo_grpo_1.5b.sh, with
# less of the GPUs for the engines. Training takes 53 GiB of each by the sum of --dry-run, with every path at its longest and
# unshared. What a group shares is run once (docs/shared_prefix.md), also under --ds.zero_stage 3, which takes less memory.
#
# Needs: a node with 8 GPUs of 80 GB (the paper: H20 with 96 GB), otherwise what train_rpo_grpo_1.5b.sh needs.
# Folder: $HOME/runs/rpo-grpo-7b, or RUN. Further flags are passed on. Not run on GPUs in this release.
set -euo pipefail
export RUN="${RUN:-$HOME/runs/rpo-grpo-7b}"

"$(dirname "${BASH_SOURCE[0]}")/train_rpo_grpo_1.5b.sh" \
    --actor.model_name_or_path deepseek-ai/DeepSeek-R1-Distill-Qwen-7B \
    --vllm.gpu_memory_utilization 0.5 \
    "$@"
