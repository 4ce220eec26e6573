#!/usr/bin/env bash
# train_rpo_one_gpu_1.5b.sh with a LoRA adapter of rank 32 on every linear layer instead of all weights: the optimizer's
# states are small enough to stay on the GPU, and the learning rate is a hundred times the other's: in bfloat16 an adapter's
# smaller steps hardly reach the engines (docs/tuning.md). The model folder then holds the adapter, which peft loads beside
# the base model. There is no KL term, so no reference model.
#
# Needs: one GPU of 80 GB, otherwise what train_rpo_grpo_1.5b.sh needs.
# Folder: $HOME/runs/rpo-lora-1.5b, or RUN. Further flags are passed on. Not run on GPUs in this release.
set -euo pipefail
export RUN="${RUN:-$HOME/runs/rpo-lora-1.5b}"

"$(dirname "${BASH_SOURCE[0]}")/train_rpo_grpo_1.5b.sh" \
    --ds.lora.rank 32 \
    --ds.lora.alpha 64 \
    --ds.zero_stage 2 \
    --actor.adam.lr 1e-4 \
    --algo.kl.init_coef 0 \
    --actor.num_gpus_per_node 1 \
    --ref.num_gpus_per_node 1 \
    --vllm.num_engines 1 \
    --rollout.batch_size 16 \
    --train.batch_size 96 \
    --ckpt.save_steps 100 \
    --eval.steps 200 \
    "$@"
