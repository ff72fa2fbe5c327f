# Everything a contributor runs. `make` alone explains itself.
# Works on a fresh Debian machine with Python 3.11, make and git.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PROTO_OUT := src/penstock/_generated
PYTEST := $(BIN)/python -m pytest

# The machine's own certificates, as pip uses: a company's package mirror is signed by its own.
export UV_SYSTEM_CERTS ?= 1

# Modules are compiled once, whatever the environment says of bytecode: tests start hundreds of
# processes, which would spend half of their start on it. It is kept out of the tree.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/bytecode

# The fast loop: no database, no Spark, nothing that takes seconds, no hour-long runs.
FAST := not server and not spark and not soak and not slow

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z%-]+):.*## /\1\t/' | expand -t 14

# ---------------------------------------------------------------- environment

.PHONY: setup
setup: $(STAMP) ## Create .venv with exactly what requirements.lock says

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Penstock needs Python 3.11 or newer as '$(PYTHON)': install it (apt-get install python3) or run 'make PYTHON=/path/to/python3.11'." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot create virtual environments without python3-venv." >&2; \
	  scripts/debian-packages python3-venv; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# uv comes from the lock too, so that its version and its hash have one home.
	@test -x $(BIN)/uv || { sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > $(VENV)/uv.txt; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(VENV)/uv.txt; }
	$(BIN)/uv pip sync --python $(BIN)/python --require-hashes requirements.lock
	$(BIN)/uv pip install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: lock
lock: setup ## Resolve requirements.lock again (UPGRADE=1 takes newer versions)
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group dev \
	  --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' \
	  $(if $(UPGRADE),--upgrade) --quiet --output-file requirements.lock

.PHONY: proto
proto: setup ## Generate code from proto/ (committed, so that users need no compiler)
	mkdir -p $(PROTO_OUT)
	@# Messages only: services are registered by name, over bytes that are encoded already, and a
	@# generated stub would tie users to the grpcio that generated it.
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=$(PROTO_OUT) --pyi_out=$(PROTO_OUT) \
	  $$(cd proto && find . -name '*.proto' -printf '%P\n' | sort)

# -------------------------------------------------------------------- checking

.PHONY: check
check: setup ## The fast loop: static checks, unit tests, properties with few cases
	PENSTOCK_CHANGED_SINCE=HEAD PENSTOCK_QUICK=true $(PYTEST) -n 3 --dist worksteal -m "$(FAST)"

.PHONY: static
static: test-static ## Lint, format, layers, mypy, pyright

.PHONY: lint layers mypy pyright
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
layers: setup
	$(BIN)/lint-imports --no-cache --no-logo
mypy: setup
	$(BIN)/mypy
pyright: setup
	$(BIN)/pyright

# By the file: what a module starts is started once.
BY_FILE := PENSTOCK_SERVERS_REQUIRED=true $(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder

# The parts of the tests, each with the folders of tests/ that are in it. A folder is in one part; the
# tests of the tests themselves are in core.
PARTS := core capture audit captures mongodb mysql service spark static store zero
FOLDERS_core := core deploy flight log state subscribe
FILES_core := $(wildcard tests/test_*.py)
FOLDERS_capture := archive capture checkpoints
FOLDERS_audit := audit
FOLDERS_captures := access captures
FOLDERS_mongodb := mongodb servers
FOLDERS_mysql := mysql
FOLDERS_service := cli client e2e serve trigger
FOLDERS_spark := spark
FOLDERS_static := static
FOLDERS_store := sources_store store
FOLDERS_zero := sources_zero zero

.PHONY: test
test: parts-complete ## Everything: static checks and all tests on real servers
	@since=$$(date +%s); $(MAKE) --no-print-directory --jobs=2 servers $(COMPILED); \
	export PENSTOCK_SETUP_SECONDS=$$(( $$(date +%s) - since )); \
	$(BY_FILE) -m "not soak"

test-%: parts-complete ## The tests of one part: see make parts
	@test -n "$(FOLDERS_$*)" || { echo "No part $*: the parts are $(PARTS)." >&2; exit 1; }
	@since=$$(date +%s); $(MAKE) --no-print-directory $(if $(filter static,$*),setup,servers); \
	export PENSTOCK_SETUP_SECONDS=$$(( $$(date +%s) - since )); \
	$(BY_FILE) -m "not soak" $(FOLDERS_$*:%=tests/%) $(FILES_$*)

.PHONY: parts
parts: parts-complete ## List the parts and their folders
	@$(foreach part,$(PARTS),echo 'make test-$(part): $(FOLDERS_$(part):%=tests/%) $(FILES_$(part))';)

.PHONY: parts-complete
parts-complete:
	@diff <(printf '%s\n' $(foreach part,$(PARTS),$(FOLDERS_$(part))) | sort) \
	  <(for file in tests/*/*.py; do basename "$$(dirname "$$file")"; done | sort -u) >&2 || { \
	  echo "The Makefile must have each folder of tests/ in one part: < is in a part, > exists." >&2; exit 1; }

# What a branch changes: its commits since main, and the working tree.
BASE ?= $(shell git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)

.PHONY: test-changed
test-changed: servers ## Tests that import a module changed since BASE=main; not enough for a merge
	@files="$$($(BIN)/python scripts/changed_tests.py $(BASE))"; \
	PENSTOCK_CHANGED_SINCE=$(BASE) $(BY_FILE) -m "not soak" tests/static $$files

# One process compiles modules and tests, or each that runs tests would.
COMPILED := $(PYTHONPYCACHEPREFIX)/.compiled
$(COMPILED): $(STAMP)
	@$(PYTEST) --collect-only -qq -p no:cacheprovider > /dev/null || true
	@touch $@

.PHONY: coverage
coverage: servers ## The same tests, and which lines they run; takes half as long again
	$(BY_FILE) -m "not soak and not static" --cov --cov-report=term

.PHONY: servers
servers: setup ## Install the database servers that the tests start
	$(BIN)/python -m tests_support.servers install

.PHONY: soak
soak: servers ## The long runs: faults injected for hours
	PENSTOCK_SERVERS_REQUIRED=true $(PYTEST) -m "soak or hypothesis" --timeout=0 -o faulthandler_timeout=0

.PHONY: bench
bench: servers ## Every benchmark under bench/
	@for bench in bench/*/run.py bench/audit/query.py bench/zero/cache.py; do echo "== $$bench"; PYTHONPATH=. $(BIN)/python "$$bench"; done

# ------------------------------------------------------------------- using it

.PHONY: quickstart
quickstart: setup ## A shop in an embedded store, captured, followed and merged into Delta tables
	$(BIN)/penstock quickstart

.PHONY: fmt
fmt: setup ## Format the code and fix what can be fixed without thought
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: clean
clean: ## Remove caches and build output (keeps .venv and .servers)
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist htmlcov .coverage .coverage.*
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf $(PYTHONPYCACHEPREFIX)
