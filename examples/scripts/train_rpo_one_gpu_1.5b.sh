#!/usr/bin/env bash
# train_rpo_grpo_1.5b.sh on one GPU: the optimizer's states in main memory, and a sixth of the questions a step (16 x 6
# samples), so four epochs are 1,750 smaller steps. Not the paper's batch. All weights are trained; an adapter is in
# train_rpo_lora_one_gpu_1.5b.sh.
#
# Needs: one GPU of 80 GB, 64 GB of main memory and nvcc of CUDA 13, with which DeepSpeed compiles this optimizer; otherwise
# what train_rpo_grpo_1.5b.sh needs.
# Folder: $HOME/runs/rpo-one-gpu-1.5b, or RUN. Further flags are passed on. Not run on GPUs in this release.
set -euo pipefail
export RUN="${RUN:-$HOME/runs/rpo-one-gpu-1.5b}"

"$(dirname "${BASH_SOURCE[0]}")/train_rpo_grpo_1.5b.sh" \
    --actor.num_gpus_per_node 1 \
    --ref.num_gpus_per_node 1 \
    --vllm.num_engines 1 \
    --ds.adam_offload \
    --rollout.batch_size 16 \
    --train.batch_size 96 \
    --ckpt.save_steps 100 \
    --eval.steps 200 \
    "$@"
