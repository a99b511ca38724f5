# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: help demo test bench clean
.DEFAULT_GOAL := help

help:  ## list what there is to make
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):.*## */  make \1\t/'

# The stamp makes installation happen once, and again when what is asked for changes.
$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(VENV)/installed  ## train three losses on scikit-learn's digits, print the table, draw demo/reliability.png
	$(BIN)/python examples/digits.py --out demo

test: $(VENV)/installed  ## lint, types, tests and doctests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto --dist worksteal --durations=15

bench: $(VENV)/installed  ## every script of benchmarks/; results go to benchmarks/results/
	$(BIN)/python benchmarks/loss_cpu.py --csv benchmarks/results/loss_cpu.csv

clean:  ## remove what was installed and made
	rm -rf $(VENV) demo build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
