#!/usr/bin/env bash
# The baseline of a recipe: plain OpenRLHF, every answer generated from the question, no path cache, no length reward.
# Model, data, batch, reward and learning rate are the recipe's. Table 1 of the paper, "+ GRPO (w/o R)" and "+ DAPO (w/o R)".
#
#     RECIPE=rpo_dapo_7b examples/scripts/variant_without_rpo.sh
#
# Needs: what train_$RECIPE.sh needs; RECIPE is rpo_grpo_1.5b unless given.
# Folder: $HOME/runs/$RECIPE-without-rpo, or RUN. Further flags are passed on. Not run on GPUs in this release.
set -euo pipefail
RECIPE="${RECIPE:-rpo_grpo_1.5b}"
export RUN="${RUN:-$HOME/runs/$RECIPE-without-rpo}"

"$(dirname "${BASH_SOURCE[0]}")/train_$RECIPE.sh" --rpo.enable false "$@"
