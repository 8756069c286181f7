# `make quickstart` and `make test` are all a newcomer needs: both set up $(VENV) first, once.
VENV ?= .venv
PYTHON ?= $(shell tools/find_python.sh 3.11 3.12 3.13)
ARGS ?=
WORKERS ?= 2
# sys.monitoring makes coverage cheap from Python 3.12 on; before, it costs half as much again as the tests.
COV = COVERAGE_CORE=sysmon $(PYTEST) --cov=worldmodel --cov-report=term --cov-fail-under=85

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST = JAX_PLATFORMS=cpu $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test coverage test-all full lint format wheel lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(STAMP) ## create the virtual environment and install the locked packages

# Everything comes from requirements.lock, checked by hash; the project itself is linked in without resolving anything.
$(STAMP): requirements.lock pyproject.toml
	@if [ ! -x $(BIN)/python ] && [ -z "$(PYTHON)" ]; then \
	  echo "make: no Python 3.11, 3.12 or 3.13 was found; name one with PYTHON=/path/to/python" >&2; exit 1; fi
	@if [ ! -x $(BIN)/python ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  $(PYTHON) -m venv --clear $(VENV) || { \
	  echo "make: '$(PYTHON) -m venv' failed (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }; fi
	@echo "Installing into $(VENV) (once; about a minute) ..."
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --no-index --editable .
	@touch $@

quickstart: $(STAMP) ## from real logs to a policy and a report; make quickstart ARGS="--env Pendulum-v1"
	@$(BIN)/worldmodel quickstart $(ARGS)

test: $(STAMP) ## the test suite, without the slow tests
	$(PYTEST) $(ARGS)

coverage: $(STAMP) ## the test suite, and that it runs at least 85% of the lines
	$(COV) $(ARGS)

test-all: test ## the suite on the chosen Python, then with coverage on 3.12 where one is found
	@python=$$(tools/find_python.sh 3.12) \
	  && $(MAKE) coverage VENV=.venv312 PYTHON="$$python" ARGS="$(ARGS)" \
	  || { [ -z "$$python" ] && echo "no Python 3.12 found: suite not run on it"; }

full: $(STAMP) ## every test, the slow ones too, with coverage
	$(COV) -m "" $(ARGS)

lint: $(STAMP) ## formatting, lint, types, the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(STAMP) ## format and fix in place
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

wheel: $(STAMP) ## build dist/*.whl, check what is in it and that it imports outside the repository
	rm -rf build dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .
	rm -rf build
	$(BIN)/python tools/check_wheel.py dist/*.whl

lock: $(STAMP) ## rewrite requirements.lock from pyproject.toml (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --extra mujoco --extra beam --extra dev --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" pyproject.toml -o requirements.lock

clean: ## remove what building and testing left; keeps the virtual environment and runs/
	rm -rf build dist *.egg-info .cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.* htmlcov
	find worldmodel tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
