#!/usr/bin/env bash
# The paper's tables of generated tokens a sample and of training time: L 300, 500 and 800 tokens, and plain GRPO. Its
# counts (146 tokens at L 300) come from a reference code that caps a response at the cut: --rpo.budget.rule factor:1, as
# here; the project's default lets a response finish. rpo/generated_tokens beside rpo/truncated_rate is what to read.
#
#     RECIPE=rpo_grpo_7b examples/scripts/study_generated_tokens.sh
#
# Needs: what train_$RECIPE.sh needs; RECIPE is rpo_grpo_1.5b unless given.
# Folders: fixed-300 to plain in $HOME/runs/tokens-$RECIPE, or RUNS. Further flags are passed on to each run. Not run on
# GPUs in this release.
set -euo pipefail
RECIPE="${RECIPE:-rpo_grpo_1.5b}"
TRAIN="$(dirname "${BASH_SOURCE[0]}")/train_$RECIPE.sh"
RUNS="${RUNS:-$HOME/runs/tokens-$RECIPE}"

for cut in 300 500 800; do
    RUN="$RUNS/fixed-$cut" "$TRAIN" --rpo.cut.max "fixed:$cut" --rpo.budget.rule factor:1 "$@"
done
RUN="$RUNS/plain" "$TRAIN" --rpo.enable false "$@"
