# All targets create .venv if it is missing. For another Python: make test PYTHON=python3.13 VENV=.venv-3.13
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 3
# Tests of a file share fixtures, so each worker starts with its own part of the files.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test parity reference manifests lint format bench wild rollout leadership simulate chaos fuzz docs clean

help: ## List the targets.
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 20

$(VENV)/.installed: pyproject.toml
	@echo "Setting up $(VENV) (a minute or two, once) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "webop needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(VENV)/.installed ## Run the example operator on a real API server; ARGS=--once stops after the checks.
	@$(BIN)/python examples/ephemeral_volume_claims/demo $(ARGS)

test: $(VENV)/.installed ## Run all tests, on a real etcd and kube-apiserver.
	@$(PYTEST) $(ARGS)

parity: $(VENV)/.installed ## Run all tests, and write their results to docs/parity.md.
	@$(PYTEST) -p tests.parity.plugin --parity docs/parity.md $(ARGS)

reference: $(VENV)/.installed ## Generate the reference pages from the code (settings, commands, messages).
	@$(BIN)/python -m tests.docs.reference

manifests: $(VENV)/.installed ## Generate the manifests and Dockerfiles of the examples.
	@$(BIN)/python -m tests.manifests.made

lint: $(VENV)/.installed ## Check style, types and import layers.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed ## Compare CPU, memory and latency with Kopf and a Go controller; ARGS=--help lists options.
	@$(BIN)/python -m bench $(ARGS)

wild: $(VENV)/.installed ## Run public Kopf operators under Kopf and webop, and compare the objects.
	@$(BIN)/python -m bench.wild $(ARGS)

rollout: $(VENV)/.installed ## Replace replicas and rotate certificates under load; count failures.
	@$(BIN)/python -m tests.rollout $(ARGS)

leadership: $(VENV)/.installed ## Stop, kill, freeze and disconnect leaders; check that one replica acts.
	@$(BIN)/python -m tests.leadership $(ARGS)

simulate: $(VENV)/.installed ## Simulate random histories for a minute; SEED=N replays one.
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(ARGS)

chaos: $(VENV)/.installed ## Inject random faults for half an hour on a real API server.
	@$(BIN)/python -m tests.chaos $(ARGS)

fuzz: $(VENV)/.installed ## Send 100 000 hostile admission reviews; ARGS=--help lists options.
	@$(BIN)/python -m tests.admission.fuzzing --count 100000 $(ARGS)

$(VENV)/.documented: $(VENV)/.installed
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

docs: $(VENV)/.documented ## Build the documentation in site/; broken links are errors.
	@$(BIN)/mkdocs build --strict $(ARGS)

clean: ## Remove generated files (not the cached control plane).
	rm -rf $(VENV) .venv-newest .mypy_cache .pytest_cache .ruff_cache .import_linter_cache dist site
