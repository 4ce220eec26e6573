#!/usr/bin/env bash
# The paper's appendix "The impact of cache pool update strategies", 1.5B: epsilon 0, 0.1, 0.5, 0.9 (its table; the text
# says 1 for the last), and a cache that is never updated. A cache that is never updated must be filled beforehand, so all
# five start as the paper's runs do, from a cache sampled before training.
#
# Needs: what train_rpo_grpo_1.5b.sh needs, five times its time.
# Folders: epsilon-0 to no-update in $HOME/runs/epsilon, or RUNS. Further flags are passed on to each run. Not run on GPUs
# in this release.
set -euo pipefail
TRAIN="$(dirname "${BASH_SOURCE[0]}")/train_rpo_grpo_1.5b.sh"
RUNS="${RUNS:-$HOME/runs/epsilon}"

for epsilon in 0 0.1 0.5 0.9; do
    RUN="$RUNS/epsilon-$epsilon" "$TRAIN" --rpo.init.mode bulk --rpo.update.epsilon "$epsilon" "$@"
done
RUN="$RUNS/no-update" "$TRAIN" --rpo.init.mode bulk --rpo.update.epsilon off "$@"
