#!/usr/bin/env bash
# RPO on DAPO, 1.5B: table 1 of the paper, "+ DAPO (w/ R) + RPO". As train_rpo_grpo_1.5b.sh, with clipping 0.2/0.28, token
# mean, no KL, the soft overlong penalty, and dynamic sampling: groups whose scores agree are replaced by further
# questions. The run stops with a count of what it tried when 10 batches of questions do not fill one step.
#
# Needs: what train_rpo_grpo_1.5b.sh needs.
# Folder: $HOME/runs/rpo-dapo-1.5b, or RUN. Further flags are passed on. Not run on GPUs in this release.
set -euo pipefail
export RUN="${RUN:-$HOME/runs/rpo-dapo-1.5b}"

"$(dirname "${BASH_SOURCE[0]}")/train_rpo_grpo_1.5b.sh" \
    --rpo.preset dapo \
    --rpo.dynamic.max_batches 10 \
    "$@"
