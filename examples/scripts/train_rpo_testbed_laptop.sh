#!/usr/bin/env bash
# RPO on two CPU cores, nothing to download: the harder of the two shipped base models on 128 questions of the testbed,
# four visits each, 16 questions x 4 samples a step. To try options and to debug; `make demo` is the shorter look.
#
# Needs: the environment of `make env`, active (source .venv/bin/activate). No GPU.
# Folder: runs/laptop in the repository, or RUN. Further flags are passed on. The one recipe here that runs without GPUs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
RUN="${RUN:-$PWD/runs/laptop}"

python -c 'import sys; from lab.testbed import write_dataset; write_dataset("hard", sys.argv[1], 128, 64, seed=0)' \
    "$RUN/data"
python -m openrlhf_rpo.cli.train_rpo_ray \
    --actor.model_name_or_path "$PWD/lab/testbed/weights/hard" \
    --data.prompt_dataset "$RUN/data/train.jsonl" \
    --data.input_key question \
    --data.label_key answer \
    --data.max_len 768 \
    --rollout.batch_size 16 \
    --rollout.n_samples_per_prompt 4 \
    --rollout.micro_batch_size 16 \
    --train.batch_size 64 \
    --train.micro_batch_size 16 \
    --train.num_episodes 4 \
    --algo.advantage.estimator group_norm \
    --rpo.reward.functions math \
    --algo.kl.init_coef 0 \
    --eval.dataset "$RUN/data/heldout.jsonl" \
    --eval.steps 8 \
    --eval.temperature 1.0 \
    --eval.n_samples_per_prompt 2 \
    --actor.adam.lr 3e-4 \
    --actor.lr_scheduler constant \
    --actor.num_gpus_per_node 1 \
    --vllm.num_engines 1 \
    --ckpt.path "$RUN/checkpoints" \
    --ckpt.output_dir "$RUN/model" \
    --ckpt.save_steps 16 \
    --logger.tensorboard_dir "$RUN/tensorboard" \
    "$@"
