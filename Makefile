# All targets create .venv if it is missing. For another Python: make test PYTHON=python3.13 VENV=.venv-3.13
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# More than there are cores, since most tests of the cluster wait.
WORKERS ?= 5
# Tests of a file share fixtures, so a file goes to one worker, in the order of tests/conftest.py.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# The pip of Python 3.11 cannot read dependency groups; uv can, and it installs exactly what uv.lock names.
UV := UV_PROJECT_ENVIRONMENT=$(VENV) UV_PYTHON_DOWNLOADS=never $(BIN)/uv
# The version of Kubernetes, for example: make test KUBERNETES=1.33
ifdef KUBERNETES
export WEBOP_KUBERNETES := $(KUBERNETES)
endif

# The API server of the tests collects garbage less often, which saves some of its CPU time.
export GOGC ?= 300

.DEFAULT_GOAL := help
.PHONY: help demo test journeys test-unit lowest coverage parity reference manifests lint format bench wild rollout simulate values chaos fuzz docs clean

help: ## List the targets.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

$(VENV)/.installed: pyproject.toml uv.lock
	@echo "Setting up $(VENV) (a minute or two, once) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "webop needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check 'uv>=0.9,<1'
	@$(UV) sync --quiet --inexact --locked --all-extras
	@touch $@

demo: $(VENV)/.installed ## Run the example operator on a real API server; ARGS=--once stops after the checks.
	@$(BIN)/python examples/ephemeral_volume_claims/demo $(ARGS)

test: $(VENV)/.installed ## Run the tests on a real etcd and kube-apiserver, all but the journeys.
	@$(PYTEST) $(ARGS)

journeys: $(VENV)/.installed ## Run the tests that "make test" leaves out: tutorial, README, long runs, browser.
	@$(PYTEST) -m journey $(ARGS)

test-unit: $(VENV)/.installed ## Run the tests that need no API server, in about a minute.
	@$(PYTEST) tests/unit $(ARGS)

lowest: ## Run a part of the tests on the oldest dependencies that pyproject.toml allows.
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check 'uv>=0.9,<1'
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --upgrade --resolution lowest-direct \
	  -e '.[builtins,full-auth,ngrok,reload,test,tracing,uvloop]' --group test
	@$(PYTEST) $(ARGS)

coverage: $(VENV)/.installed ## Run all tests, and print how much of webop/ they execute, in all processes.
	@$(BIN)/coverage erase
	-@$(PYTEST:%/python=%/coverage run) -m '' $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered --sort=miss

parity: $(VENV)/.installed ## Run all tests, and write their results to docs/parity.md.
	@$(PYTEST) -m '' -p tools.parity.plugin --parity docs/parity.md $(ARGS)

reference: $(VENV)/.installed ## Generate the reference pages from the code (settings, commands, messages).
	@$(BIN)/python -m tools.site.reference

manifests: $(VENV)/.installed ## Generate the manifests and Dockerfiles of the examples.
	@$(BIN)/python -m tools.manifests

lint: $(VENV)/.installed ## Check style, types and import layers.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet .github

format: $(VENV)/.installed ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed ## Compare CPU, memory and latency with Kopf and a Go controller; ARGS=--help lists options.
	@$(BIN)/python -m bench $(ARGS)

wild: $(VENV)/.installed ## Run public Kopf operators under Kopf and webop, and compare the objects.
	@$(BIN)/python -m bench.wild $(ARGS)

rollout: $(VENV)/.installed ## Replace replicas and rotate certificates under load; no request may fail.
	@$(BIN)/python -m tools.soak.chaos --plan rollouts $(ARGS)

simulate: $(VENV)/.installed ## Simulate random histories for a minute; SEED=N replays one.
	@$(BIN)/python -m tools.simulation $(if $(SEED),--seed $(SEED)) $(ARGS)

values: $(VENV)/.installed ## Compare pydantic and the API server on 10 000 values of each type; ARGS=--help lists options.
	@$(BIN)/python -m tools.values $(ARGS)

chaos: $(VENV)/.installed ## Inject random faults for half an hour on a real API server; ARGS="--way shards".
	@$(BIN)/python -m tools.soak.chaos $(ARGS)

fuzz: $(VENV)/.installed ## Send 100 000 hostile admission reviews; ARGS=--help lists options.
	@$(BIN)/python -m tools.fuzzing --count 100000 $(ARGS)

$(VENV)/.documented: $(VENV)/.installed
	@$(UV) sync --quiet --inexact --locked --all-extras --group docs
	@touch $@

docs: $(VENV)/.documented ## Build the documentation in site/, and ask its search questions; broken links are errors.
	@$(BIN)/mkdocs build --strict $(ARGS)
	@$(BIN)/python -m tools.site.searching

clean: ## Remove generated files (not the cached control plane).
	rm -rf $(VENV) .venv-newest .venv-lowest .mypy_cache .pytest_cache .ruff_cache .import_linter_cache dist site
