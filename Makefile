# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PEERS  := .venv-peers

.PHONY: help demo test bare test-integrations types pytest docs mutants attack chromium postgresql bench clean
.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes, which compiled sources make faster

help:  ## list what there is to make
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## */  make \1\t/'

# The stamp makes installation happen once, and again when what is asked for changes.
$(VENV)/installed: pyproject.toml lab/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]" -e "lab[tensorboard]"
	touch $@

demo: $(VENV)/installed  ## train the losses of the paper's first table on scikit-learn's digits, put them in a table, mend one, report
	$(BIN)/dualfocal study --out demo
	$(BIN)/dualfocal evaluate demo/runs/cross_entropy-seed0 --calibrate all --plot demo/calibrated.png
	$(BIN)/dualfocal report demo/runs/cross_entropy-seed0 demo/runs/dual_focal-seed0 -o demo/report.html
	@echo "Next: open demo/report.html; $(BIN)/dualfocal compare demo/runs/cross_entropy-seed0 demo/runs/dual_focal-seed0; $(BIN)/dualfocal train digits"

test: $(VENV)/installed  ## lint, types, tests and doctests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory -j2 types pytest

types: $(VENV)/installed
	$(BIN)/mypy

pytest: $(VENV)/installed
	$(BIN)/pytest -n auto --dist worksteal -m "not slow" --durations=15 --ignore=tests/integrations --ignore=tests/browser --ignore=tests/site --ignore=lab/tests/integrations

# build/ is where setuptools puts the package together; files of an earlier one would become part of this one.
bare:  ## install the package alone, with torch, numpy and scipy, into an empty environment, and use it there
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder" build' EXIT && rm -rf build && \
	$(PYTHON) -m venv "$$folder" && \
	"$$folder/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt . && \
	"$$folder/bin/python" tests/bare_install.py

test-integrations: $(VENV)/integrations postgresql chromium  ## slow tests, and tests with a browser, other frameworks and databases, which are installed first
	DUALFOCAL_INTEGRATIONS=required $(BIN)/pytest tests/integrations tests/browser lab/tests/integrations
	$(BIN)/pytest -m slow --ignore=tests/integrations --ignore=tests/browser --ignore=tests/site --ignore=lab/tests/integrations

$(VENV)/integrations: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,integrations]" -e "lab[ray,tensorboard]"
	touch $@

docs: $(VENV)/docs chromium  ## run the examples of all pages, build the documentation into site/ and open every page in a browser
	$(BIN)/python docs/tools/run_pages.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/pytest tests/site tests/browser
	@echo "Next: open site/index.html"

$(VENV)/docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,integrations,docs]" -e "lab[ray,tensorboard]"
	touch $@

mutants: $(VENV)/installed  ## check that the tests notice each mistake of tests/mutants/mutants.toml (ten minutes)
	$(BIN)/python tests/mutants/run.py --baseline
	$(BIN)/python tests/mutants/run.py

ATTACK := 100

attack: $(VENV)/installed  ## bad files, bit flips, kills, stops and absurd options, many times more than in make test (ten minutes); prints counts
	DUALFOCAL_ATTACK=$(ATTACK) $(BIN)/pytest tests/hostile lab/tests/hostile -n auto --dist worksteal -rP --durations=5

# $(1): test whether it is there  $(2): Debian's packages  $(3): what is not tested without it. Installed where that can be done.
define apt_install
@if { $(1); } > /dev/null 2>&1; then exit 0; fi; \
if [ "$$(id -u)" = 0 ]; then as_root=; elif sudo -n true 2> /dev/null; then as_root='sudo -n'; else as_root=no; fi; \
echo "Installing $(2) with apt-get, for the tests"; \
get="apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3"; \
if ! command -v apt-get > /dev/null || [ "$$as_root" = no ] || ! { $$as_root $$get update && $$as_root env \
DEBIAN_FRONTEND=noninteractive $$get install -y --no-install-recommends $(2); } > /dev/null; then \
echo "No $(firstword $(2)), and it cannot be installed here: $(3)"; fi
endef

# The HTML report and the site are tested in a real browser, looked for in PATH or $CHROMIUM.
chromium:
	$(call apt_install,command -v "$${CHROMIUM:-chromium}",chromium fonts-dejavu-core,nothing is tested in a browser)

postgresql:
	$(call apt_install,command -v initdb || ls /usr/lib/postgresql/*/bin/initdb,postgresql,SQL is tested with DuckDB only)

bench: $(VENV)/integrations $(PEERS)/installed  ## every script of benchmarks/; results go to benchmarks/results/ (several hours)
	$(BIN)/python benchmarks/startup.py --csv benchmarks/results/startup.csv
	$(BIN)/python benchmarks/loss_cpu.py --csv benchmarks/results/loss_cpu.csv
	$(BIN)/python benchmarks/inference_coverage.py --csv benchmarks/results/inference_coverage.csv
	$(BIN)/python benchmarks/cluster_coverage.py --csv benchmarks/results/cluster_coverage.csv
	$(BIN)/python benchmarks/shift_coverage.py --csv benchmarks/results/shift_coverage.csv
	$(BIN)/python benchmarks/model_choice.py --csv benchmarks/results/model_choice.csv
	$(BIN)/python benchmarks/few_errors.py --csv benchmarks/results/few_errors.csv
	$(BIN)/python benchmarks/class_totals.py --csv benchmarks/results/class_totals.csv
	$(BIN)/python benchmarks/report_speed.py --csv benchmarks/results/report_speed.csv
	$(BIN)/python benchmarks/weight_coverage.py --csv benchmarks/results/weight_coverage.csv
	$(BIN)/python benchmarks/rounded_probabilities.py --csv benchmarks/results/rounded_probabilities.csv
	$(BIN)/python benchmarks/multilabel_alarms.py --csv benchmarks/results/multilabel_alarms.csv
	$(BIN)/python benchmarks/choice_tasks.py --csv benchmarks/results/choice_tasks.csv
	$(BIN)/python benchmarks/token_groups.py --csv benchmarks/results/token_groups.csv
	$(BIN)/python benchmarks/token_calibration.py --csv benchmarks/results/token_calibration.csv
	$(BIN)/python benchmarks/dense_predictions.py --csv benchmarks/results/dense_predictions.csv
	$(BIN)/python benchmarks/group_intervals.py --csv benchmarks/results/group_intervals.csv
	$(BIN)/python benchmarks/learned_prior.py --csv benchmarks/results/learned_prior.csv
	$(BIN)/python benchmarks/cross_fit_coverage.py --csv benchmarks/results/cross_fit_coverage.csv
	$(BIN)/python benchmarks/data_cpu.py --csv benchmarks/results/data_cpu.csv
	$(BIN)/python benchmarks/train_step_cpu.py --csv benchmarks/results/train_step_cpu.csv
	$(BIN)/python benchmarks/predictions_at_scale.py --csv benchmarks/results/predictions_at_scale.csv
	$(BIN)/python benchmarks/binned_inference.py --csv benchmarks/results/binned_inference.csv
	$(BIN)/python benchmarks/theory_claims.py --csv benchmarks/results/theory_claims.csv
	$(BIN)/python benchmarks/monitor.py --csv benchmarks/results/monitor.csv
	$(BIN)/python benchmarks/onnx_agreement.py --csv benchmarks/results/onnx_agreement.csv
	$(BIN)/python benchmarks/onnx_agreement.py --times --csv benchmarks/results/onnx_times.csv
	$(PEERS)/bin/python benchmarks/metrics_cpu.py --csv benchmarks/results/metrics_cpu.csv
	$(PEERS)/bin/python benchmarks/metrics_cpu.py --stream --csv benchmarks/results/metrics_stream.csv
	$(PEERS)/bin/python benchmarks/metrics_cpu.py --cli --csv benchmarks/results/metrics_cli.csv
	$(PEERS)/bin/python benchmarks/calibrators_cpu.py --csv benchmarks/results/calibrators_cpu.csv
	$(PEERS)/bin/python benchmarks/calibrators_cpu.py --methods --csv benchmarks/results/calibrators_methods.csv
	$(PEERS)/bin/python benchmarks/calibrators_cpu.py --robust --csv benchmarks/results/calibrators_robust.csv

# The peers of the metrics bring dependencies of their own.
$(PEERS)/installed: pyproject.toml constraints.txt benchmarks/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/peers.txt -e . -e lab
	touch $@

clean:  ## remove what was installed and made
	rm -rf $(VENV) $(PEERS) demo build dist site .cache src/*.egg-info lab/src/*.egg-info lab/build lab/dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
