#!/usr/bin/env bash
# RPO on DAPO, 7B: table 1 of the paper, "+ DAPO (w/ R) + RPO". train_rpo_grpo_7b.sh with DAPO's settings, which
# train_rpo_dapo_1.5b.sh explains.
#
# Needs: what train_rpo_grpo_7b.sh needs.
# Folder: $HOME/runs/rpo-dapo-7b, or RUN. Further flags are passed on. Not run on GPUs in this release.
set -euo pipefail
export RUN="${RUN:-$HOME/runs/rpo-dapo-7b}"

"$(dirname "${BASH_SOURCE[0]}")/train_rpo_grpo_7b.sh" \
    --rpo.preset dapo \
    --rpo.dynamic.max_batches 10 \
    "$@"
