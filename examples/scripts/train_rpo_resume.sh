#!/usr/bin/env bash
# Go on with an interrupted train_rpo_grpo_1.5b.sh: the same command and --ckpt.load_enable (docs/resume.md). It works for
# every recipe in the same way.
#
# Needs: what train_rpo_grpo_1.5b.sh needs, and its folder, $HOME/runs/rpo-grpo-1.5b or RUN. Further flags are passed on.
# Not run on GPUs in this release.
set -euo pipefail

"$(dirname "${BASH_SOURCE[0]}")/train_rpo_grpo_1.5b.sh" --ckpt.load_enable "$@"
