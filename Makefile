# Targets that a person calls have a `## sentence` behind them; `make help` lists those.
# After any target `.venv/bin/oncebox` is there. Nothing is installed twice.

VENV := .venv
BIN := $(VENV)/bin
ONCEBOX := $(BIN)/oncebox
REDIS := $(VENV)/redis-server
HAPROXY := $(VENV)/haproxy
CHROMIUM := $(VENV)/chromium
HELM := $(VENV)/helm
SANDBOXES ?= 500
ADAPTERS := inspect mini-swe-agent swe-rex

CODE := oncebox.py service tests docs
SERVERS := ONCEBOX_TEST_REDIS_SERVER=$(CURDIR)/$(REDIS) ONCEBOX_TEST_HAPROXY=$(CURDIR)/$(HAPROXY)
# More workers than most machines of a CI have cores: the tests wait for processes more than they compute. Each begins
# with a share of its own, so that what a module shares is started once, and takes from another's in the end.
PYTEST_ARGS ?= -n 3 --dist worksteal
COVERAGE := --cov --cov-report=term
# One at a time: kills and deadlines are measured.
FAULTS_ARGS ?= -q
FAULTS := build/faults.jsonl
FUZZ_SECONDS ?= 900
CHAOS_SECONDS ?= 1800
SIMULATE_SECONDS ?= 3600

# Tests start hundreds of Python processes: each would compile all of the code anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test coverage chart faults chaos fuzz simulate check docs stack load bench bench-drop up down format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@$(MAKE) --no-print-directory -s $(ONCEBOX)

demo: $(ONCEBOX) ## Run a command of some seconds as a job, with nothing else set up
	@echo '$$ oncebox run -- sh -c "for i in 1 2 3 4 5; do ...; sleep 1; done; exit 3"'
	@$(ONCEBOX) run -- sh -c \
	  'for i in 1 2 3 4 5; do echo "step $$i of 5, $$(date +%T)"; sleep 1; done; echo "giving up" >&2; exit 3'; \
	code=$$?; \
	echo "The command's own exit code, which oncebox passed on: $$code"; \
	test $$code -eq 3

test: $(ONCEBOX) ## Run all tests, on a real Redis server and in a real browser too
	@tests/install-redis $(REDIS) || test "$$CI" != true
	@tests/install-browser $(CHROMIUM) || test "$$CI" != true
	@$(MAKE) --no-print-directory -j $(ADAPTERS:%=$(VENV)/adapters/%) || test "$$CI" != true
	ONCEBOX_TEST_REDIS_SERVER=$(CURDIR)/$(REDIS) ONCEBOX_TEST_CHROMIUM=$(CURDIR)/$(CHROMIUM) $(BIN)/pytest $(PYTEST_ARGS)

coverage: $(ONCEBOX) ## Run all tests, and show which lines of the code they ran (takes longer)
	@$(MAKE) --no-print-directory test PYTEST_ARGS="$(PYTEST_ARGS) $(COVERAGE)"

chart: $(ONCEBOX) ## Check the Helm chart with helm itself, which Go builds where there is none (once, some minutes)
	@tests/install-helm $(HELM) || test "$$CI" != true
	@ONCEBOX_TEST_HELM=$(CURDIR)/$(HELM) $(BIN)/pytest -q -m chart tests/contract/test_chart.py

faults: $(ONCEBOX) ## Run every fault in its full count (half an hour and more); the table goes to docs/faults.md
	@tests/install-redis $(REDIS) || test "$$CI" != true
	@mkdir -p $(dir $(FAULTS)) && rm -f $(FAULTS)
	@ONCEBOX_TEST_REDIS_SERVER=$(CURDIR)/$(REDIS) ONCEBOX_TEST_FAULTS_REPORT=$(CURDIR)/$(FAULTS) \
	  $(BIN)/pytest tests/faults -m "" -k "not short" $(FAULTS_ARGS); code=$$?; \
	  ONCEBOX_TEST_REDIS_SERVER=$(CURDIR)/$(REDIS) $(BIN)/python -m tests.faults.table $(FAULTS) docs/faults.md && \
	  exit $$code

chaos: $(ONCEBOX) ## Real processes under a random mixture of faults at once, their history checked (CHAOS_SECONDS=1800, CHAOS_SEED)
	@tests/install-redis $(REDIS)
	@ONCEBOX_TEST_REDIS_SERVER=$(CURDIR)/$(REDIS) CHAOS_SECONDS=$(CHAOS_SECONDS) exec $(BIN)/python -m tests.chaos

stack: $(ONCEBOX) ## Run Redis, three replicas, a load balancer and the engine as processes on loopback (PORT=8700)
	@tests/install-redis $(REDIS) && tests/install-haproxy $(HAPROXY)
	@$(SERVERS) exec $(BIN)/python -m tests.support.stack

load: $(ONCEBOX) ## 500 sandboxes on that stack, with kills, rolls and restarts (SANDBOXES=50: a quick one; 1000: more)
	@tests/install-redis $(REDIS) && tests/install-haproxy $(HAPROXY)
	@$(SERVERS) SANDBOXES=$(SANDBOXES) exec $(BIN)/python -m tests.load

bench-drop: $(ONCEBOX) ## The incident: 72 long commands behind a network that silently drops a quarter of all connections
	@tests/install-redis $(REDIS) && tests/install-haproxy $(HAPROXY)
	@$(SERVERS) exec $(BIN)/python -m tests.bench.drop

bench: $(ONCEBOX) ## Measure everything against its baseline; the figures go to docs/bench.json and docs/benchmarks.md
	@tests/install-redis $(REDIS) && tests/install-haproxy $(HAPROXY)
	@$(SERVERS) exec $(BIN)/python -m tests.bench

up: $(ONCEBOX) ## Start the stack of docker-compose.yml, wait until it is ready (PROFILES="opensandbox monitoring")
	@deploy/up $(PROFILES)

down: ## End that stack (its data stays: `docker compose down -v` removes it)
	@docker compose --profile "*" down

docs: $(ONCEBOX) ## Renew docs/reference and the pictures from the code, and build build/docs/index.html
	$(BIN)/python docs/write_reference.py
	$(BIN)/python docs/draw_states.py
	@tests/install-browser $(CHROMIUM) >/dev/null || true
	ONCEBOX_TEST_CHROMIUM=$(CURDIR)/$(CHROMIUM) $(BIN)/python docs/draw_console.py
	$(BIN)/sphinx-build -q -E -W --keep-going -b html docs build/docs

fuzz: $(ONCEBOX) ## Fuzz the API over its OpenAPI document, on the embedded default and on Redis (FUZZ_SECONDS=900 each)
	@tests/install-redis $(REDIS) || test "$$CI" != true
	@ONCEBOX_TEST_REDIS_SERVER=$(CURDIR)/$(REDIS) ONCEBOX_TEST_FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/pytest -q tests/fuzz

simulate: $(ONCEBOX) ## Run replicas in simulated worlds of new seeds, one processor (SIMULATE_SECONDS=3600)
	@SIMULATE_SECONDS=$(SIMULATE_SECONDS) $(BIN)/python -m tests.simulation

check: $(ONCEBOX) ## Check format, lint, types, and that the SDK's halves are alike
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/python docs/write_sync_client.py --check

# Each framework that Oncebox has an adapter for, in an environment of its own.
.PHONY: force
$(VENV)/adapters/%: $(ONCEBOX) force
	@tests/install-adapter $* $@

format: $(ONCEBOX) ## Format the code, mend what the linter can mend, and make the SDK's synchronous half anew
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/python docs/write_sync_client.py

clean: ## Remove caches and reports; the virtual environment stays
	rm -rf build dist htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
	@$(MAKE) --no-print-directory -s $(ONCEBOX)

# pip writes the command last, so the command itself says whether the installation is complete and new enough.
$(ONCEBOX): pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { python=$$(.ci/find-python) && echo "Making $(VENV) with $$python" && "$$python" -m venv --clear $(VENV); }
	@echo "Installing into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[server,otel,dev,docs]' -c constraints.txt
	@touch $@
