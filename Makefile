# make demo | check | test | lint | browser-test | faults | lab | app | bench | results | report | notebooks | docs | lock | audit — each sets everything up first. `make setup` alone does only that.
unexport PYTHONDONTWRITEBYTECODE  # what is compiled once need not be again in each process
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.set-up
EXTRAS := .venv/.extras
DOCS := .venv/docs/.installed
GRIDS := mini_crop mini_long mini_jitter mini_cifar10 mini_tau mini_tau_cifar10 mini_tau_cifar100 mini_accuracy mini_projection mini_front mini_architecture mini_cifar100 mini_mini_imagenet mini_ggf mini_tail mini_class_crops small_embedded small_effort small_chosen small_average
# `make demo REFRESH=1` and `make bench REFRESH=1` write the committed pictures and numbers anew; else below build/
ifdef REFRESH
export CLAMKIT_FIGURES := figures
endif
CORE := clamkit/__init__.py,clamkit/errors.py,clamkit/paths.py,clamkit/files.py,clamkit/checks.py,clamkit/metrics/*,clamkit/theory/*,clamkit/methods/*,clamkit/data/*,clamkit/engine/*
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCKED := $(INSTALL) --require-hashes --no-deps
TOOLS := build/tools/bin/python

.PHONY: help setup extras lock audit tools demo check lint test browser-test faults lab app bench results report notebooks docs clean

help:
	@sed -n '1s/^# //p' Makefile

# torch comes first: its CPU wheel where pip finds it, else the registry's (on Linux with CUDA). TORCH=torch==2.13.0+rocm7
# takes another build of it, or the CPU wheel of a Python or system whose hash is not known here
setup: $(STAMP)

$(STAMP): requirements.lock requirements-cpu.lock requirements-cuda.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "clamkit needs Python 3.11 or newer; call make PYTHON=/path/to/python3.11 setup"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "setting up .venv from requirements.lock (some minutes the first time)"
	@$(if $(TORCH),$(INSTALL) '$(TORCH)',$(LOCKED) -r requirements-cpu.lock 2>/dev/null || $(LOCKED) -r requirements-cuda.lock)
	@$(LOCKED) -r requirements.lock
	@$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# what only the tests, the browser, the app and clusters need
extras: $(EXTRAS)

$(EXTRAS): $(STAMP) requirements-extras.lock
	@echo "adding the extras from requirements-extras.lock"
	@$(LOCKED) -r requirements-extras.lock
	@touch $@

# hashes of all pins into requirements*.lock, and docs/licences.md; UPGRADE=1 first moves the pins to the newest versions
lock: tools
	@$(TOOLS) .github/lock.py $(if $(UPGRADE),--upgrade)
	@$(MAKE) --no-print-directory extras $(DOCS)
	@$(BIN)/python .github/licences.py

# known vulnerabilities of what is pinned (the CPU wheel is the same torch); asks the registry's own list, and fails
# where that does not know a package
audit: tools
	@for file in requirements.lock requirements-cuda.lock requirements-extras.lock requirements-docs.lock; do \
		build/tools/bin/pip-audit --strict --disable-pip --require-hashes --timeout 15 -r $$file || exit 1; done

tools:
	@$(PYTHON) -m venv build/tools
	@$(TOOLS) -m pip install --quiet --disable-pip-version-check uv==0.13.8 pip-audit==2.10.1

demo: setup
	@$(BIN)/clamkit demo $(if $(REFRESH),--history data/results/demo_history.csv)

# what to run before every commit: style, types, the quick tests (plain `pytest`)
check: lint
	@$(BIN)/python -m pytest

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# everything but the browser: slow tests, Dask, faults and every notebook; then how much of the core was reached
test: extras
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --nbval -m "not browser" \
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

# the explorers and the diagnosis as pages; the address it prints carries the token they ask for
app: extras
	@mkdir -p build/app && cp -r notebooks/3*.ipynb notebooks/helpers build/app
	@$(BIN)/voila build/app --token

# how near training is to this machine's limit
bench: setup
	@$(BIN)/python benchmarks/bench.py --json $(if $(REFRESH),data/results,build)/bench.json

# the runs of small networks, as far as they are missing, into data/results; DATA=folder is where CIFAR-100 and
# Mini-ImageNet lie. What one grid lacks does not keep the next from running. The others take hours to days of a CPU:
# make results GRIDS="long_embedded fast_fashion_mnist fast_cifar10 fast_cifar100 fast_mini_imagenet"
results: setup
	@for grid in $(GRIDS); do \
		$(BIN)/clamkit sweep $$grid $(if $(DATA),--data-dir "$(DATA)") \
			|| { test $$? -lt 128 || exit 1; failed="$$failed $$grid"; }; \
		$(BIN)/clamkit results $$grid || exit 1; \
	done; \
	$(BIN)/python notebooks/refresh.py 05_what_we_found && \
	{ test -z "$$failed" || { echo "not complete:$$failed"; exit 1; }; }

# the analysis notebooks on all runs at hand: report.html, its figures as PNG and PDF beside it, in build/figures
report: setup
	@$(BIN)/clamkit report

# execute the notebooks in place, outputs and all
notebooks: setup
	@$(BIN)/python notebooks/refresh.py

# the site into build/site; its packages have a folder of their own, as some are older than those of requirements.txt
docs: $(DOCS)
	@$(BIN)/python docs/build_site.py

$(DOCS): $(STAMP) requirements-docs.lock
	@echo "adding what the site needs from requirements-docs.lock"
	@rm -rf .venv/docs
	@$(LOCKED) --target .venv/docs -r requirements-docs.lock
	@touch $@

clean:
	rm -rf .venv
