# Everything starts here: `make train`, `make test`; `make help` names the rest.
# Each target does the set-up that it needs, in .venv; delete that folder (`make clean`) to start anew.

PYTHON      ?= python3
CONSTRAINTS ?= constraints.txt
EXTRA       ?= dev
ARGS        ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/installed
DEV   := $(VENV)/installed-$(EXTRA)
LOCK  := $(if $(shell command -v flock),flock pyproject.toml)
PIP   := -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev train test test-alone test-grid test-oldest lint check bench gpu-check docs constraints clean

help: ## What there is
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | awk -F'|' '{ printf "make %-12s %s\n", $$1, $$2 }'

setup: ## Make .venv and install jaxpipe into it (CONSTRAINTS= for the newest versions)
	@$(LOCK) $(MAKE) --no-print-directory --silent $(STAMP)

setup-dev: ## The same with what tests, linters and documentation need, PyTorch among it
	@$(LOCK) $(MAKE) --no-print-directory --silent $(DEV)

train: setup ## Pre-train the tiny Llama on four emulated devices (ARGS='--train.num_steps 20')
	$(BIN)/python train.py configs/tiny.yaml $(ARGS)

test: setup-dev ## All tests that need no GPU, but those of test-alone and test-grid (ARGS='-k zb_h1')
	$(BIN)/python -m pytest -m 'not gpu and not grid and not alone' -n 2 --dist worksteal $(ARGS)

test-alone: setup-dev ## Hold predicted times against measured ones (minutes; wants a machine with nothing else to do)
	$(BIN)/python -m pytest -m alone $(ARGS)

test-grid: setup-dev ## Prove every schedule for all sizes up to 8 ranks, 24 microbatches, 4 chunks (minutes)
	$(BIN)/python -m pytest -m grid -n 2 --dist worksteal $(ARGS)

# An old Flax uses what its JAX deprecates; a newer Python is: make test PYTHON=python3.13 VENV=.venv-newest CONSTRAINTS=
test-oldest: ## What leans most on JAX, on the oldest releases that pyproject.toml allows
	@$(MAKE) --no-print-directory test VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt EXTRA=test \
	  ARGS="-W ignore::DeprecationWarning tests/pipeline/test_split_vjp.py tests/training/test_state.py \
	  tests/training/test_optimizer.py tests/checkpoint tests/data"

lint: setup-dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: ## lint, then test: what CI runs
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test

bench: setup-dev ## All schedules on emulated devices, in turn with PyTorch's 1F1B (ARGS='--picture bench.svg --check')
	$(BIN)/python -m benchmarks.bench $(ARGS)

gpu-check: setup ## Check and time the executor on one GPU
	$(BIN)/python -m benchmarks.gpu_check $(ARGS)

docs: setup-dev ## Write the generated pages of docs/ anew, and all of them as a site to site/
	$(BIN)/python docs/schedules_page.py
	$(BIN)/python docs/ticks_page.py
	$(BIN)/python docs/configuration_page.py
	$(BIN)/python docs/recipes_page.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

constraints: ## Write constraints.txt anew: the newest versions that fit pyproject.toml
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(PYTHON) -m venv $$folder && \
	$$folder/bin/python $(PIP) install --no-cache-dir -e '.[dev]' && \
	{ echo "# Versions that the checks run with; written by \`make constraints\` with Python" \
	  "$$($(PYTHON) -c 'import sys; print(*sys.version_info[:2], sep=".")')."; \
	  $$folder/bin/python $(PIP) freeze --exclude-editable; } > constraints.txt

clean: ## Remove .venv, caches and what tools left; runs/ stays
	rm -rf $(VENV) .venv-* site .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Only `setup` and `setup-dev` ask for these, one make at a time, so that two of them at once install once.
$(STAMP) $(DEV): pyproject.toml $(wildcard $(CONSTRAINTS))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "jaxpipe needs Python 3.11 or newer, but $(PYTHON) is" \
	       "$$($(PYTHON) --version 2>/dev/null || echo missing); name another: make setup PYTHON=python3.12" >&2; exit 1; }
	@echo "setting up $(VENV), once"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP) install $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -e '.[$(if $(filter $@,$(DEV)),$(EXTRA),text,plot)]'
	@touch $@
