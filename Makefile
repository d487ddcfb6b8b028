# Everything sets up its own .venv from nothing. For another Python: make test PYTHON=python3.13 VENV=.venv-3.13
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 3
# Each worker begins with a part of the files, as tests of a file share what they set up.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test parity reference manifests lint format bench wild rollout leadership simulate chaos fuzz docs clean

help: ## Show what there is to make.
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

$(VENV)/.installed: pyproject.toml
	@echo "Setting up $(VENV) (a minute or two, once) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "webop needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(VENV)/.installed ## Play the main story on a real API server; ARGS=--once ends after it.
	@$(BIN)/python examples/ephemeral_volume_claims/demo $(ARGS)

test: $(VENV)/.installed ## Run all tests, on a real etcd and kube-apiserver.
	@$(PYTEST) $(ARGS)

parity: $(VENV)/.installed ## Run all tests, and write what they show into docs/parity.md.
	@$(PYTEST) -p tests.parity.plugin --parity docs/parity.md $(ARGS)

reference: $(VENV)/.installed ## Write what the code knows into the pages of settings and commands.
	@$(BIN)/python -m tests.docs.reference

manifests: $(VENV)/.installed ## Write the manifests and the Dockerfile of the examples, by webop's own commands.
	@$(BIN)/python -m tests.manifests.made

lint: $(VENV)/.installed ## Check the style, the types, the layers.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed ## Bring the code into shape.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed ## Measure beside kopf and a Go controller on the same API server; ARGS=--help shows how.
	@$(BIN)/python -m bench $(ARGS)

wild: $(VENV)/.installed ## Play public operators under kopf and webop, compare the objects; ARGS=--help.
	@$(BIN)/python -m bench.wild $(ARGS)

rollout: $(VENV)/.installed ## Replace replicas and rotate certificates under load; count what fails.
	@$(BIN)/python -m tests.rollout $(ARGS)

leadership: $(VENV)/.installed ## Kill, stop and cut off the replica that acts; see who acts then.
	@$(BIN)/python -m tests.leadership $(ARGS)

simulate: $(VENV)/.installed ## Run a minute of random histories in a simulated cluster; SEED=N replays one.
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(ARGS)

chaos: $(VENV)/.installed ## Half an hour of random faults on a real API server; see what breaks.
	@$(BIN)/python -m tests.chaos $(ARGS)

fuzz: $(VENV)/.installed ## Send 100 000 hostile reviews; ARGS=--help shows how.
	@$(BIN)/python -m tests.admission.fuzzing --count 100000 $(ARGS)

$(VENV)/.documented: $(VENV)/.installed
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

docs: $(VENV)/.documented ## Build the documentation into site/; broken links are errors.
	@$(BIN)/mkdocs build --strict $(ARGS)

clean: ## Remove what was made here (not the cached control plane).
	rm -rf $(VENV) .venv-newest .mypy_cache .pytest_cache .ruff_cache .import_linter_cache dist site
