# Everything that a fresh machine with python3 (3.11 to 3.13), git and make needs. Tools live in .tools/, packages in .venv/.
.DEFAULT_GOAL := help
SHELL := /bin/bash

REPO ?= .
PYTEST_ARGS ?=
NEO4J_PORT ?= 7687
CHUNKS ?= 100000
PYTHON ?= python3
UV := .tools/bin/uv
VENV := .venv
BIN := $(VENV)/bin
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
# Through the environment, and unexpanded: no character of a folder's name means anything to make or to the shell.
export INDEX_FOLDER := $(value REPO)

.PHONY: help install run test test-unit test-contract test-integration test-acceptance check format docs golden bench bench-peers bench-growth bench-conformance lock clean neo4j

help: ## Show this help
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(UV):
	@command -v "$(PYTHON)" >/dev/null || \
		{ echo "raycall: $(PYTHON) was not found; install Python 3.11, 3.12 or 3.13, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
		{ echo "raycall: Python 3.11, 3.12 or 3.13 is needed, $(PYTHON) is $$("$(PYTHON)" --version 2>&1); name another: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "raycall: $(PYTHON) comes without venv; install it (Debian and Ubuntu: sudo apt-get install python3-venv)" >&2; exit 1; }
	"$(PYTHON)" -m venv .tools
	.tools/bin/python -m pip install --quiet uv

$(VENV)/.installed: requirements.lock pyproject.toml | $(UV)
	$(UV) venv --quiet --allow-existing --python "$(PYTHON)" $(VENV)
	$(UV) pip sync --quiet requirements.lock
	$(UV) pip install --quiet --no-deps --editable .
	@touch $@

install: $(VENV)/.installed ## Install into .venv from requirements.lock

run: install ## Index REPO (default: this folder), serve it, answer one question; Ctrl-C stops everything
	@$(BIN)/raycall serve "--index=$$INDEX_FOLDER"

test: install ## All tests: unit, contract, integration, acceptance (PYTEST_ARGS are passed on)
	$(BIN)/python -m pytest tests $(PYTEST_ARGS)

test-unit: install ## Unit tests only: no Ray, no JVM, no socket
	$(BIN)/python -m pytest tests/unit $(PYTEST_ARGS)

test-contract: install ## One behaviour suite over every implementation of a port
	$(BIN)/python -m pytest tests/contract $(PYTEST_ARGS)

test-integration: install ## Tests on real Ray, a real JVM and a real Neo4j
	$(BIN)/python -m pytest tests/integration $(PYTEST_ARGS)

test-acceptance: install ## Tests of the whole stack, as a user would
	$(BIN)/python -m pytest tests/acceptance $(PYTEST_ARGS)

check: install ## Format, lint, types and the import rule
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: install ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install ## Renew configs/local.yaml and the README's table from the settings
	$(BIN)/python -m tests.support.settings_docs

golden: install ## Write the files of tests/golden that are written by tests anew; review the difference
	$(BIN)/python -m pytest tests/unit tests/contract tests/integration -k golden --update-golden $(PYTEST_ARGS)

bench: install ## Measure, and print one JSON object of ratios
	$(BIN)/python -m benchmarks.run

# CHUNKS: rows that all are given.
bench-peers: install benchmarks/peers/.venv/.installed ## Measure CHUNKS rows beside LanceDB, Chroma, Qdrant, bm25s and Tantivy
	$(BIN)/python -m benchmarks.peers.run benchmarks/peers/.venv/bin/python --chunks $(CHUNKS)

benchmarks/peers/.venv/.installed: benchmarks/peers/requirements.lock | $(UV)
	$(UV) venv --quiet --allow-existing --python 3.11 benchmarks/peers/.venv
	VIRTUAL_ENV=benchmarks/peers/.venv $(UV) pip sync --no-config --quiet benchmarks/peers/requirements.lock
	@touch $@

bench-growth: install ## Time and memory of 10,000 to a million rows, plotted to benchmarks/growth.svg (an hour)
	$(BIN)/python -m benchmarks.growth

# COLLECTIONS: folders with corpus.jsonl, queries.jsonl and qrels.tsv.
bench-conformance: install benchmarks/conformance/.venv/.installed ## Compare rankings with pyserini's LuceneSearcher on COLLECTIONS
	$(BIN)/python -m benchmarks.conformance.run benchmarks/conformance/.venv/bin/python $(COLLECTIONS)

benchmarks/conformance/.venv/.installed: benchmarks/conformance/requirements.lock | $(UV)
	$(UV) venv --quiet --allow-existing --python 3.11 benchmarks/conformance/.venv
	VIRTUAL_ENV=benchmarks/conformance/.venv $(UV) pip sync --no-config --quiet benchmarks/conformance/requirements.lock
	@touch $@

lock: | $(UV) ## Renew requirements.lock from pyproject.toml
	$(UV) pip compile --quiet --universal --generate-hashes --extra dev --custom-compile-command "make lock" \
		pyproject.toml --output-file requirements.lock
	$(UV) pip compile --no-config --quiet --universal --generate-hashes --python-version 3.11 --custom-compile-command "make lock" \
		benchmarks/conformance/requirements.in --output-file benchmarks/conformance/requirements.lock
	$(UV) pip compile --no-config --quiet --universal --generate-hashes --python-version 3.11 --custom-compile-command "make lock" \
		benchmarks/peers/requirements.in --output-file benchmarks/peers/requirements.lock

neo4j: install ## Fetch Neo4j Community (Java 17 or 21, Maven) and run it on NEO4J_PORT (7687); Ctrl-C stops it
	@$(BIN)/python -m deploy.neo4j.server "--port=$(NEO4J_PORT)"

clean: ## Remove what was installed, cached and indexed here
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info .raycall
