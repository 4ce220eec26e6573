# docker build -t openrlhf-rpo .                             the GPU image (CUDA 13.0, as torch 2.13.0 is built)
# docker build -t openrlhf-rpo-cpu --target cpu .            the demo and the tests without a GPU
# The cpu target takes what pip's index gives for torch; an index with CPU builds saves several GB:
#     --build-arg PIP_EXTRA_INDEX_URL=...

FROM python:3.11-slim-bookworm AS cpu
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential git libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home rpo
USER rpo
WORKDIR /home/rpo/openrlhf_rpo
COPY --chown=rpo . .
ARG PIP_EXTRA_INDEX_URL
RUN PIP_NO_CACHE_DIR=1 tools/setup_env.sh
HEALTHCHECK --interval=60s --timeout=30s CMD .venv/bin/python -c "import openrlhf_rpo"
CMD ["make", "demo"]

FROM nvidia/cuda:13.0.2-devel-ubuntu24.04 AS gpu
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential git libnuma1 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home rpo \
    && install -d -o rpo /opt/venv
USER rpo
WORKDIR /home/rpo/openrlhf_rpo
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/venv \
    && pip install torch==2.13.0 setuptools==77.0.3 wheel packaging ninja psutil
# A layer of its own: without a ready wheel it compiles for up to an hour. MAX_JOBS bounds its memory.
RUN MAX_JOBS=8 pip install --no-build-isolation flash-attn==2.8.3
COPY --chown=rpo . .
RUN DS_BUILD_OPS=0 pip install ".[gpu]"
HEALTHCHECK --interval=60s --timeout=60s --start-period=60s \
    CMD python -c "import openrlhf_rpo, torch; raise SystemExit(not torch.cuda.is_available())"
CMD ["openrlhf-rpo", "--help"]
