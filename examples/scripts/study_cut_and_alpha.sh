#!/usr/bin/env bash
# The paper's heat map "Impact of L and alpha on model accuracy", 1.5B: L 300 tokens, half and all of the shortest path;
# alpha 0, 0.01, 0.1, 1; two epochs, 336 samples a step (56 questions x 6). Twelve runs.
#
# Needs: what train_rpo_grpo_1.5b.sh needs.
# Folders: one a pair in $HOME/runs/cut-and-alpha, or RUNS. Further flags are passed on to each run. Not run on GPUs in
# this release.
set -euo pipefail
RUNS="${RUNS:-$HOME/runs/cut-and-alpha}"

for cut in fixed:300 ratio:0.5 ratio:1; do
    for alpha in 0 0.01 0.1 1; do
        RUN="$RUNS/${cut/:/-}-alpha-$alpha" "$(dirname "${BASH_SOURCE[0]}")/train_rpo_grpo_1.5b.sh" \
            --rpo.cut.max "$cut" \
            --rpo.shaping.alpha "$alpha" \
            --rollout.batch_size 56 \
            --train.batch_size 336 \
            --train.num_episodes 2 \
            "$@"
    done
done
