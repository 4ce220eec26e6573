#!/usr/bin/env bash
# RPO on GRPO, DeepSeek-R1-Distill-Qwen-1.5B: table 1 of the paper, "+ GRPO (w/ R) + RPO". The other recipes for GPUs are
# this one and the flags in which they differ.
#
# From the paper: the 7,000 questions of open-rs, 576 samples a step (96 questions x 6), temperature 0.7, answers of at
# most 4096 tokens, 4 epochs, alpha 0.01; uniform cuts with L half of the shortest path and epsilon 0.1 are the defaults of
# --rpo.method rpo. The paper does not state the learning rate and the KL weight: they are OpenRLHF's. The rest are this
# project's defaults (docs/methods.md); for the paper's literal choices add --rpo.method paper.
#
# Needs: a node with 8 GPUs of 80 GB, the GPU environment (docs/quickstart.md), and Ray: ray start --head
# Folder: $HOME/runs/rpo-grpo-1.5b, or RUN. Further flags are passed on. Not run on GPUs in this release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
RUN="${RUN:-$HOME/runs/rpo-grpo-1.5b}"

ray job submit --address=http://127.0.0.1:8265 --runtime-env-json '{"working_dir": "."}' -- \
    python -m openrlhf_rpo.cli.train_rpo_ray \
    --actor.model_name_or_path deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B \
    --data.prompt_dataset knoveleng/open-rs \
    --data.input_key problem \
    --data.label_key answer \
    --data.apply_chat_template \
    --data.max_len 5120 \
    --rollout.max_new_tokens 4096 \
    --rollout.temperature 0.7 \
    --rollout.batch_size 96 \
    --rollout.n_samples_per_prompt 6 \
    --rollout.micro_batch_size 6 \
    --train.batch_size 576 \
    --train.micro_batch_size 6 \
    --train.num_episodes 4 \
    --rpo.preset grpo \
    --rpo.reward.functions math \
    --rpo.reward.workers 8 \
    --rpo.shaping.alpha 0.01 \
    --eval.dataset HuggingFaceH4/MATH-500 \
    --eval.split test \
    --eval.steps 48 \
    --eval.n_samples_per_prompt 1 \
    --actor.num_gpus_per_node 8 \
    --ref.num_gpus_per_node 8 \
    --vllm.num_engines 8 \
    --vllm.gpu_memory_utilization 0.6 \
    --vllm.enable_sleep \
    --ds.enable_sleep \
    --train.colocate_all \
    --actor.gradient_checkpointing_enable \
    --ckpt.path "$RUN/checkpoints" \
    --ckpt.output_dir "$RUN/model" \
    --ckpt.save_steps 24 \
    --logger.tensorboard_dir "$RUN/tensorboard" \
    "$@"
