#!/usr/bin/env bash
# The baseline of a recipe: every answer generated from the question (paths are stored and never used), no length reward.
# Model, data, batch, reward and learning rate are the recipe's. Table 1 of the paper, "+ GRPO (w/o R)" and "+ DAPO (w/o R)".
#
# Not --rpo.enable false: plain OpenRLHF trains on a last batch that does not fill its updates (under DAPO it may hang),
# holds the logits of a whole micro-batch (70 GiB here), and does not correct for how engines round, as the other runs do.
#
#     RECIPE=rpo_dapo_7b examples/scripts/variant_without_rpo.sh
#
# DAPO: here every group that dynamic sampling drops uses up a question of the data (a replay uses none), so this run ends
# after about the kept share of its steps. Compare it at equal generated tokens, or with --train.num_episodes above 4.
#
# Needs: what train_$RECIPE.sh needs; RECIPE is rpo_grpo_1.5b unless given.
# Folder: $HOME/runs/$RECIPE-without-rpo, or RUN. Further flags are passed on. Not run on GPUs in this release.
set -euo pipefail
RECIPE="${RECIPE:-rpo_grpo_1.5b}"
export RUN="${RUN:-$HOME/runs/$RECIPE-without-rpo}"

"$(dirname "${BASH_SOURCE[0]}")/train_$RECIPE.sh" --rpo.method off --rpo.shaping.alpha 0 "$@"
