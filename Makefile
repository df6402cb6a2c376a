# make demo | check | test | lint | browser-test | faults | lab | app | bench | results | report | notebooks — each sets everything up first. `make setup` alone does only that.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.set-up
EXTRAS := .venv/.extras
GRIDS := mini_crop mini_long mini_jitter mini_cifar10 mini_tau mini_tau_cifar10 mini_tau_cifar100 mini_accuracy mini_projection mini_front mini_architecture mini_cifar100 mini_mini_imagenet mini_ggf mini_tail
CORE := clamkit/__init__.py,clamkit/errors.py,clamkit/paths.py,clamkit/files.py,clamkit/checks.py,clamkit/metrics/*,clamkit/theory/*,clamkit/methods/*,clamkit/data/*,clamkit/engine/*
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help setup extras demo check lint test browser-test faults lab app bench results report notebooks clean

help:
	@sed -n '1s/^# //p' Makefile

setup: $(STAMP)

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "clamkit needs Python 3.11 or newer; call make PYTHON=/path/to/python3.11 setup"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setting up .venv from requirements.txt (some minutes the first time)"
	@$(INSTALL) -r requirements.txt
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# what only the tests, the browser, the app and clusters need
extras: $(EXTRAS)

$(EXTRAS): $(STAMP) requirements-extras.txt
	@echo "adding the extras from requirements-extras.txt"
	@$(INSTALL) -r requirements.txt -r requirements-extras.txt
	@touch $@

demo: setup
	@$(BIN)/clamkit demo

# what to run before every commit: style, types, the quick tests (plain `pytest`)
check: lint
	@$(BIN)/python -m pytest

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# everything but the browser: slow tests, Dask, faults and every notebook; then how much of the core was reached
test: extras
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --nbval -m "not browser" \
		--cov=clamkit --cov-report=term:skip-covered
	@echo "coverage of the core:"
	@$(BIN)/coverage report --include='$(CORE)' --skip-covered --fail-under=90

# the explorers in a real browser; skipped with a reason where there is none
browser-test: extras
	@$(BIN)/python -m pytest -rs -m browser tests/browser

# kills, full disks, damaged files: what was lost, torn or wrong (some minutes)
faults: extras
	@$(BIN)/python -m tests.faults.report

lab: setup
	@$(BIN)/jupyter lab --notebook-dir=notebooks

# the two explorers as pages; the address it prints carries the token they ask for
app: extras
	@mkdir -p build/app && cp -r notebooks/30_explore_game.ipynb notebooks/31_explore_runs.ipynb notebooks/helpers build/app
	@$(BIN)/voila build/app --token

# how near training is to this machine's limit
bench: setup
	@$(BIN)/python benchmarks/bench.py --json data/results/bench.json

# the mini paper's runs, as far as they are missing, into data/results; DATA=folder is where CIFAR-100 and
# Mini-ImageNet lie. What one grid lacks does not keep the next from running.
results: setup
	@for grid in $(GRIDS); do \
		$(BIN)/clamkit sweep $$grid $(if $(DATA),--data-dir "$(DATA)") \
			|| { test $$? -lt 128 || exit 1; failed="$$failed $$grid"; }; \
		$(BIN)/clamkit results $$grid || exit 1; \
	done; \
	$(BIN)/python notebooks/refresh.py 05_what_we_found && \
	{ test -z "$$failed" || { echo "not complete:$$failed"; exit 1; }; }

# the analysis notebooks on all runs at hand: figures/*.png, *.pdf and report.html
report: setup
	@$(BIN)/clamkit report

# execute the notebooks in place, outputs and all
notebooks: setup
	@$(BIN)/python notebooks/refresh.py

clean:
	rm -rf .venv
