#!/usr/bin/env bash
# The paper to the letter, on DeepSeek-R1-Distill-Qwen-7B: --rpo.preset paper takes every literal choice of its text
# and its reference code at once (docs/options.md lists them): a cache sampled before training, any path admitted,
# responses capped at the cut, the whole path in the loss, and shaping of wrong answers too. For reproduction;
# docs/concepts.md says what speaks against it.
#
# Needs: one node with 8 GPUs (the paper: H20 with 96 GB), the package with its gpu extra (see setup.py), and Ray:
# ray start --head
# Folders: $HOME/runs/rpo-paper-7b. Further flags are passed on. Not run on GPUs yet in this release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

ray job submit --address=http://127.0.0.1:8265 --runtime-env-json '{"working_dir": "."}' -- \
    python -m openrlhf_rpo.cli.train_rpo_ray \
    --actor.model_name_or_path deepseek-ai/DeepSeek-R1-Distill-Qwen-7B \
    --data.prompt_dataset knoveleng/open-rs \
    --data.input_key problem \
    --data.label_key answer \
    --data.apply_chat_template \
    --data.max_len 5120 \
    --rollout.max_new_tokens 4096 \
    --rollout.temperature 0.7 \
    --rollout.batch_size 96 \
    --rollout.n_samples_per_prompt 6 \
    --rollout.micro_batch_size 2 \
    --train.batch_size 576 \
    --train.micro_batch_size 1 \
    --train.num_episodes 4 \
    --rpo.preset paper,grpo \
    --rpo.reward.functions math \
    --rpo.reward.workers 8 \
    --eval.dataset HuggingFaceH4/MATH-500 \
    --eval.split test \
    --eval.steps 48 \
    --eval.n_samples_per_prompt 1 \
    --actor.num_gpus_per_node 8 \
    --ref.num_gpus_per_node 8 \
    --vllm.num_engines 8 \
    --vllm.gpu_memory_utilization 0.5 \
    --vllm.enable_sleep \
    --ds.enable_sleep \
    --ds.zero_stage 3 \
    --train.colocate_all \
    --actor.gradient_checkpointing_enable \
    --ckpt.path "$HOME/runs/rpo-paper-7b/checkpoints" \
    --ckpt.output_dir "$HOME/runs/rpo-paper-7b/model" \
    --ckpt.save_steps 24 \
    --logger.tensorboard_dir "$HOME/runs/rpo-paper-7b/tensorboard" \
    "$@"
