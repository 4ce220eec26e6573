#!/usr/bin/env bash
# requirements/gpu.lock: what the gpu and postgres extras need on Linux x86_64 with Python 3.12, without flash-attn, which has
# no wheel. Every other package has one, but for two in pure Python.
#
#   tools/gpu_lock.sh          resolve it again: pins that still fit setup.py stay
#   tools/gpu_lock.sh --check  fail if that changes it; nothing is installed
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
lock=requirements/gpu.lock

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
[[ ! -f $lock ]] || cp "$lock" "$folder/lock"
echo 'flash-attn; sys_platform == "none"' >"$folder/override"
.venv/bin/python - >"$folder/wanted" <<'PYTHON'
from importlib.metadata import requires

for requirement in requires("openrlhf-rpo"):
    what, _, condition = requirement.partition(";")
    if not condition or 'extra == "gpu"' in condition or 'extra == "postgres"' in condition:
        print(what)
PYTHON
.venv/bin/uv pip compile "$folder/wanted" --override "$folder/override" --output-file "$folder/lock" \
    --quiet --no-config --no-annotate --no-header --python-version 3.12 --python-platform x86_64-manylinux_2_35 \
    --only-binary :all: --no-binary deepspeed --no-binary transformers-stream-generator
{
    echo "# The GPU environment on Linux x86_64, Python 3.12, CUDA 13, but for flash-attn. Made by tools/gpu_lock.sh."
    grep -v '^#' "$folder/lock"
} >"$folder/new"
if [[ ${1-} != --check ]]; then
    cp "$folder/new" "$lock"
elif ! diff "$lock" "$folder/new"; then
    echo "$lock does not fit setup.py: run tools/gpu_lock.sh" >&2
    exit 1
fi
