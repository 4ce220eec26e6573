#!/usr/bin/env bash
# The paper's appendix "Using a large model's cache pool to guide small model training": the 1.5B starts from the paths that
# the 7B sampled before its training, two epochs. SOURCE names them; by default it is step 0 of
# train_rpo_paper_7b.sh, which may be stopped once its initial cache is complete. A file of paths or worked solutions
# will do as well (docs/cache_command.md, "An initial cache from elsewhere").
#
# Needs: what train_rpo_grpo_1.5b.sh needs, and the source.
# Folder: $HOME/runs/rpo-large-to-small, or RUN. Further flags are passed on. Not run on GPUs in this release.
set -euo pipefail
export RUN="${RUN:-$HOME/runs/rpo-large-to-small}"

"$(dirname "${BASH_SOURCE[0]}")/train_rpo_grpo_1.5b.sh" \
    --rpo.init.mode import \
    --rpo.init.source "${SOURCE:-$HOME/runs/rpo-paper-7b/checkpoints@0}" \
    --train.num_episodes 2 \
    "$@"
