#!/usr/bin/env bash
# RPO with a reward model in place of a rule: Llama 3 8B on prompts without a label, judged by OpenRLHF's reward model of the
# same tokenizer. Not in the paper. Rewards are normalized by the model's own mean and deviation, and an answer above the
# mean counts as rewarded; every answer is stored, and later reused as far as the policy still agrees with it
# (--rpo.method verify). A reward model scores after the rollout: no dynamic sampling, no --eval.dataset (docs/rewards.md).
#
# Needs: a node with 8 GPUs of 80 GB, the GPU environment (docs/quickstart.md), and Ray: ray start --head
# Folder: $HOME/runs/rpo-reward-model, or RUN. Further flags are passed on. Not run on GPUs in this release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
RUN="${RUN:-$HOME/runs/rpo-reward-model}"

ray job submit --address=http://127.0.0.1:8265 --runtime-env-json '{"working_dir": "."}' -- \
    python -m openrlhf_rpo.cli.train_rpo_ray \
    --actor.model_name_or_path OpenRLHF/Llama-3-8b-sft-mixture \
    --reward.model_name_or_path OpenRLHF/Llama-3-8b-rm-700k \
    --reward.normalize_enable \
    --data.prompt_dataset OpenRLHF/prompt-collection-v0.1 \
    --data.input_key context_messages \
    --data.apply_chat_template \
    --data.max_samples 20000 \
    --data.max_len 3072 \
    --rollout.max_new_tokens 1024 \
    --rollout.batch_size 64 \
    --rollout.n_samples_per_prompt 8 \
    --rollout.micro_batch_size 8 \
    --train.batch_size 512 \
    --train.micro_batch_size 8 \
    --train.num_episodes 2 \
    --actor.adam.lr 5e-7 \
    --rpo.preset grpo \
    --rpo.method verify \
    --actor.num_gpus_per_node 8 \
    --ref.num_gpus_per_node 8 \
    --reward.num_gpus_per_node 8 \
    --vllm.num_engines 8 \
    --vllm.gpu_memory_utilization 0.35 \
    --vllm.enable_sleep \
    --ds.enable_sleep \
    --train.colocate_all \
    --actor.gradient_checkpointing_enable \
    --ckpt.path "$RUN/checkpoints" \
    --ckpt.output_dir "$RUN/model" \
    --ckpt.save_steps 50 \
    --logger.tensorboard_dir "$RUN/tensorboard" \
    "$@"
