#!/usr/bin/env bash
# The paper to the letter, 7B: --rpo.method paper makes every choice of its text and its reference code at once: a cache
# sampled before training, any path admitted, responses capped at the cut, the whole path in the loss, and shaping of wrong
# answers too. For reproduction; docs/methods.md says where these choices fail.
#
# Needs: what train_rpo_grpo_7b.sh needs.
# Folder: $HOME/runs/rpo-paper-7b, or RUN. Further flags are passed on. Not run on GPUs in this release.
set -euo pipefail
export RUN="${RUN:-$HOME/runs/rpo-paper-7b}"

"$(dirname "${BASH_SOURCE[0]}")/train_rpo_grpo_7b.sh" --rpo.method paper "$@"
