# Two commands need nothing but make, python3 (3.11 or newer) with venv, and the network once:
#   make demo    compare algorithms on the bundled data, and see the result
#   make test    lint, types and tests, in an environment of its own
.DELETE_ON_ERROR:
SHELL := /bin/sh

VENV ?= .venv
TEST_VENV ?= .venv-test
LOWEST_VENV ?= .venv-lowest
# The tested versions. `make demo CONSTRAINTS=` lets pip choose newer ones within pyproject.toml's bounds.
CONSTRAINTS ?= constraints.txt
TORCH ?= torch==2.13.0
TEST_EXTRAS ?= dev,ray,flower,dp
LOWEST_EXTRAS ?= ray,flower,dp,sinks
DEMO ?= compare fedavg fedntd fedseq --dataset digits --clients 20 --partition shards:2 --sample 5 \
	--rounds 10 --batch-size 10 --seeds 3
# Two test processes, a file's tests all in one of them (Ray clusters and federations are made once a file).
TEST_JOBS ?= 2
PYTEST ?= -m "not slow" --numprocesses $(TEST_JOBS) --dist loadfile --no-loadscope-reorder
# COVERAGE=--cov asks for nine of ten lines to be run as well, and takes a third longer: continuous integration does.
COVERAGE ?=

# Patient with slow networks, silent about pip's own version; wheels rather than builds.
PIP = -m pip --disable-pip-version-check install --quiet --prefer-binary --retries 10 --timeout 180
ONE_THREAD = OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
RUN = $(VENV)/bin
TEST = $(TEST_VENV)/bin
LOWEST = $(LOWEST_VENV)/bin
comma := ,

.PHONY: help setup demo setup-test test lowest lint format bench torture docs lock wheel clean distclean

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

setup: $(VENV)/.ready ## environment for using the package (.venv)

demo: setup ## compare algorithms on the bundled digits
	$(RUN)/fedrecall $(DEMO)

setup-test: $(TEST_VENV)/.ready ## environment for developing it (.venv-test)

test: lint ## lint, types and every quick test
	$(ONE_THREAD) $(TEST)/python -m pytest $(PYTEST) $(COVERAGE)

# Of what the package needs the lowest, of what that needs in turn and of the test tools the newest. PyPI's torch
# brings several GB of CUDA libraries.
lowest: ## the quick tests with the lowest versions that pyproject.toml admits, in .venv-lowest
	$(call environment,$(LOWEST_VENV))
	$(LOWEST)/python $(PIP) uv
	$(LOWEST)/uv pip compile --quiet --python $(LOWEST)/python --resolution lowest-direct pyproject.toml \
	  $(foreach extra,$(subst $(comma), ,$(LOWEST_EXTRAS)),--extra $(extra)) --output-file $(LOWEST_VENV)/lowest.txt
	$(LOWEST)/uv pip install --quiet --python $(LOWEST)/python --constraint $(LOWEST_VENV)/lowest.txt \
	  --editable '.[dev,$(LOWEST_EXTRAS)]'
	$(ONE_THREAD) $(LOWEST)/python -m pytest $(PYTEST)

lint: setup-test ## ruff and mypy
	$(TEST)/ruff check .
	$(TEST)/ruff format --check .
	$(TEST)/mypy

format: setup-test ## let ruff rewrite the code
	$(TEST)/ruff check --fix .
	$(TEST)/ruff format .

bench: setup-test ## measure the speed of the backends
	$(ONE_THREAD) $(TEST)/python -m benchmarks

torture: setup-test ## the long proofs: kills, bad input, harmed workers, long runs, a device that is no CPU
	$(ONE_THREAD) $(TEST)/python -m pytest -m slow --ignore tests/backends/test_elsewhere.py
	$(ONE_THREAD) $(TEST)/python -m pytest -m slow tests/backends/test_elsewhere.py
	$(TEST)/python -m tools.reliability

docs: setup-test ## write the generated pages of docs/
	$(TEST)/python -m tools.docs

lock: setup-test ## resolve anew: constraints.txt and requirements.lock
	$(TEST)/python tools/lock.py

wheel: setup-test ## build dist/*.whl
	$(TEST)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean: ## remove what tests and builds leave behind
	rm -rf $(TEST_VENV) $(LOWEST_VENV) build dist htmlcov .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## also the environment itself
	rm -rf $(VENV)

$(VENV)/.ready: pyproject.toml $(wildcard constraints.txt)
	$(call environment,$(VENV))
	$(call install,$(VENV),.)

# With LOCKED=1 every archive but torch's, and hatchling's which packs this package, must have the hash in
# requirements.lock (see there for which platform).
$(TEST_VENV)/.ready: Makefile pyproject.toml $(wildcard constraints.txt requirements.lock)
	$(call environment,$(TEST_VENV))
	$(if $(LOCKED),$(TEST_VENV)/bin/python $(PIP) --no-deps --require-hashes -r requirements.lock)
	$(call install,$(TEST_VENV),.[$(TEST_EXTRAS)])

# environment FOLDER: make it with the first Python that is new enough and has venv, unless it stands.
define environment
@test -x $(1)/bin/python && exit 0; \
for python in $(PYTHON) python3 python3.11 python3.12 python3.13 python3.14; do \
  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
  new=$$python; \
  "$$python" -c 'import ensurepip, venv' 2>/dev/null || continue; \
  echo "Making $(1) with $$("$$python" --version)."; \
  "$$python" -m venv $(1) && exit 0; \
  echo "$$python could not make the environment $(1) (see above)." >&2; exit 1; \
done; \
if test -n "$$new"; then \
  echo "$$new has no venv module. On Debian or Ubuntu: apt install python3-venv; then run make again." >&2; \
else \
  echo "fedrecall needs Python 3.11 or newer, and there is none (python3 is" \
    "$$(python3 --version 2>/dev/null || echo absent)). Install one, or name it: make PYTHON=/path/to/python3." >&2; \
fi; exit 1
endef

# install FOLDER WHAT: torch first and exactly, so that pip takes the CPU build where one is offered.
define install
@echo "Installing into $(1) (once; about 250 MB to download where pip finds a CPU build of torch, else several GB)."
$(1)/bin/python $(PIP) $(addprefix --constraint ,$(CONSTRAINTS)) $(TORCH)
$(1)/bin/python $(PIP) $(addprefix --constraint ,$(CONSTRAINTS)) --editable '$(2)'
@touch $(1)/.ready
endef
