#!/usr/bin/env bash
# A recipe with replay and without its length reward. Table 1 of the paper, "+ RPO" below "+ GRPO (w/o R)" and
# "+ DAPO (w/o R)".
#
#     RECIPE=rpo_dapo_7b examples/scripts/variant_without_length_reward.sh
#
# Needs: what train_$RECIPE.sh needs; RECIPE is rpo_grpo_1.5b unless given.
# Folder: $HOME/runs/$RECIPE-without-length-reward, or RUN. Further flags are passed on. Not run on GPUs in this release.
set -euo pipefail
RECIPE="${RECIPE:-rpo_grpo_1.5b}"
export RUN="${RUN:-$HOME/runs/$RECIPE-without-length-reward}"

"$(dirname "${BASH_SOURCE[0]}")/train_$RECIPE.sh" --rpo.shaping.alpha 0 "$@"
