#!/usr/bin/env bash
# train_rpo_grpo_7b.sh on two nodes. More of them: the number of nodes, and 8 engines for each.
#
# Needs: two nodes with 8 GPUs of 80 GB and this package on each; ray start --head on the first, and on the second
# ray start --address=FIRST:6379. RUN, which every node writes to, is on storage that they share. The path cache is not: as
# an SQLite file it needs a local disk of the node on which the job's driver runs (the first node, unless Ray was told
# otherwise; a PostgreSQL database is reached from any: docs/cache.md).
# Folders: $HOME/runs/rpo-grpo-7b-2-nodes, or RUN; the cache is /var/tmp/rpo-grpo-7b-2-nodes.db (RUN's last name), or CACHE,
# an absolute file name; remove a left-over one before resuming on a node that ran this before (docs/cluster.md). Further
# flags are passed on. Not run on GPUs in this release.
set -euo pipefail
export RUN="${RUN:-$HOME/runs/rpo-grpo-7b-2-nodes}"

"$(dirname "${BASH_SOURCE[0]}")/train_rpo_grpo_7b.sh" \
    --actor.num_nodes 2 \
    --ref.num_nodes 2 \
    --vllm.num_engines 16 \
    --rpo.cache.url "sqlite:///${CACHE:-/var/tmp/$(basename "$RUN").db}" \
    "$@"
