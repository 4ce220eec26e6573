#!/usr/bin/env bash
# The baseline of train_rpo_grpo_1.5b.sh: plain OpenRLHF, GRPO, every answer generated from the question. Model, data,
# batch, reward and learning rate are the same; without RPO there is no path cache and no length shaping.
#
# Needs: one node with 8 GPUs, the package with its gpu extra (see setup.py), and Ray: ray start --head
# Folders: $HOME/runs/grpo-1.5b. Further flags are passed on. Not run on GPUs yet in this release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

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
    --rollout.micro_batch_size 4 \
    --train.batch_size 576 \
    --train.micro_batch_size 2 \
    --train.num_episodes 4 \
    --rpo.enable false \
    --rpo.preset grpo \
    --rpo.reward.functions math \
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
    --ckpt.path "$HOME/runs/grpo-1.5b/checkpoints" \
    --ckpt.output_dir "$HOME/runs/grpo-1.5b/model" \
    --ckpt.save_steps 24 \
    --logger.tensorboard_dir "$HOME/runs/grpo-1.5b/tensorboard" \
    "$@"
