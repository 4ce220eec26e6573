#!/usr/bin/env bash
# The paper's stability study (section "Stability Analysis"): 18 samples a step (3 questions x 6), four epochs, hence 9,333
# small steps, with RPO and then with plain GRPO, which collapsed around step 200 there.
#
#     RECIPE=rpo_grpo_7b examples/scripts/study_stability.sh
#
# 18 does not divide among 8 devices: 6 GPUs train and generate, two stay idle.
# Needs: what train_$RECIPE.sh needs; RECIPE is rpo_grpo_1.5b unless given.
# Folders: rpo-true and rpo-false in $HOME/runs/stability-$RECIPE, or RUNS. Further flags are passed on to both. Not run on
# GPUs in this release.
set -euo pipefail
RECIPE="${RECIPE:-rpo_grpo_1.5b}"
RUNS="${RUNS:-$HOME/runs/stability-$RECIPE}"

for enable in true false; do
    RUN="$RUNS/rpo-$enable" "$(dirname "${BASH_SOURCE[0]}")/train_$RECIPE.sh" \
        --rpo.enable "$enable" \
        --rollout.batch_size 3 \
        --rollout.micro_batch_size 3 \
        --train.batch_size 18 \
        --train.micro_batch_size 3 \
        --actor.num_gpus_per_node 6 \
        --ref.num_gpus_per_node 6 \
        --vllm.num_engines 6 \
        --ckpt.save_steps 200 \
        --eval.steps 100 \
        "$@"
done
