# docker build -t openrlhf-rpo .                             the GPU image (CUDA 13.0, as torch 2.13.0 is built)
# docker build -t openrlhf-rpo-cpu --target cpu .            the demo and the tests without a GPU
#
# Bases are exact tags; to fix them to the byte, give a digest:  --build-arg CUDA=nvidia/cuda@sha256:...
# The cpu target takes what pip's index gives for torch; an index with CPU builds saves several GB:
#     --build-arg PIP_EXTRA_INDEX_URL=...
# flash-attn has no wheel: it is compiled for A100 and H100 (ARCHITECTURES), up to an hour, in about 5 GB of memory for each
# of MAX_JOBS. A wheel that fits Python 3.12, torch 2.13 and CUDA 13 saves that, and so does an image without it:
#     --build-arg FLASH_ATTN=https://.../flash_attn-2.8.3-...-cp312-cp312-linux_x86_64.whl
#     --build-arg FLASH_ATTN=
ARG PYTHON=python:3.11.14-slim-bookworm
ARG CUDA=nvidia/cuda:13.0.2-devel-ubuntu24.04

FROM ${PYTHON} AS cpu
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential git libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 rpo
USER 10001
WORKDIR /home/rpo/openrlhf_rpo
# What is installed, in a layer that a change of the code leaves alone.
COPY --chown=10001 setup.py pyproject.toml LICENSE ./
COPY --chown=10001 requirements requirements
COPY --chown=10001 tools/setup_env.sh tools/
COPY --chown=10001 alembic alembic
COPY --chown=10001 openrlhf_rpo/__init__.py openrlhf_rpo/
ARG PIP_EXTRA_INDEX_URL
RUN PIP_NO_CACHE_DIR=1 tools/setup_env.sh
COPY --chown=10001 . .
HEALTHCHECK --interval=60s --timeout=30s CMD [".venv/bin/openrlhf-rpo", "--version"]
CMD ["make", "demo"]

FROM ${CUDA} AS gpu
# ssh and rsync are what Ray's launcher reaches nodes with, from inside the head's container; KubeRay's probes call wget.
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        build-essential git libnuma1 openssh-client python3-dev python3-venv rsync wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 rpo \
    && install -d -o rpo /opt/venv
USER 10001
WORKDIR /home/rpo/openrlhf_rpo
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/venv && pip install pip==26.3
COPY --chown=10001 requirements/gpu.lock requirements/
# The lock is complete. DeepSpeed comes as source, and compiles nothing before it is used.
RUN DS_BUILD_OPS=0 pip install --no-deps --build-constraint requirements/gpu.lock -r requirements/gpu.lock
ARG FLASH_ATTN=flash-attn==2.8.3
ARG ARCHITECTURES="80;90"
ARG MAX_JOBS=4
# hadolint ignore=DL3013
RUN [ -z "${FLASH_ATTN}" ] \
    || FLASH_ATTN_CUDA_ARCHS="${ARCHITECTURES}" NVCC_THREADS=1 pip install --no-deps --no-build-isolation "${FLASH_ATTN}"
COPY --chown=10001 . .
RUN pip install --no-deps ./.
HEALTHCHECK --interval=60s --timeout=60s --start-period=60s \
    CMD ["python", "-c", "import openrlhf_rpo, torch; raise SystemExit(not torch.cuda.is_available())"]
CMD ["openrlhf-rpo", "--help"]
