#!/usr/bin/env bash
# RPO with PPO instead of GRPO: a critic, which starts from the policy's model, and generalized advantage estimation; KL
# in the reward, as in OpenRLHF without a preset. Not in the paper. The data are those of train_rpo_grpo_1.5b.sh.
#
# Needs: what train_rpo_grpo_1.5b.sh needs.
# Folder: $HOME/runs/rpo-ppo-1.5b, or RUN. Further flags are passed on. Not run on GPUs in this release.
set -euo pipefail
export RUN="${RUN:-$HOME/runs/rpo-ppo-1.5b}"

"$(dirname "${BASH_SOURCE[0]}")/train_rpo_grpo_1.5b.sh" \
    --rpo.preset "" \
    --algo.advantage.estimator gae \
    --critic.model_name_or_path deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B \
    --critic.num_gpus_per_node 8 \
    "$@"
