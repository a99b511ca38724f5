# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test bench clean
.DEFAULT_GOAL := test

# The stamp makes installation happen once, and again when what is asked for changes.
$(VENV)/installed: pyproject.toml constraints.txt
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

clean:
	rm -rf $(VENV) demo build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
