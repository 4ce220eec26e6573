#!/usr/bin/env bash
# A recipe with its length reward and without replay: every answer is generated from the question (paths are stored and
# never used). Table 1 of the paper, "+ GRPO (w/ R)" and "+ DAPO (w/ R)".
#
#     RECIPE=rpo_dapo_7b examples/scripts/variant_without_replay.sh
#
# DAPO: here every group that dynamic sampling drops uses up a question of the data (a replay uses none), so this run ends
# after about the kept share of its steps. Compare it at equal generated tokens, or with --train.num_episodes above 4.
#
# Needs: what train_$RECIPE.sh needs; RECIPE is rpo_grpo_1.5b unless given.
# Folder: $HOME/runs/$RECIPE-without-replay, or RUN. Further flags are passed on. Not run on GPUs in this release.
set -euo pipefail
RECIPE="${RECIPE:-rpo_grpo_1.5b}"
export RUN="${RUN:-$HOME/runs/$RECIPE-without-replay}"

"$(dirname "${BASH_SOURCE[0]}")/train_$RECIPE.sh" --rpo.method off "$@"
