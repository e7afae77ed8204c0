# Every target sets up what it needs in .venv first, on a machine that has only Python 3.11+ and make: the pinned packages
# of requirements.lock, each checked against its hash, and this package itself, editable.
#
#   PYTHON=...  the Python that makes .venv: a name, or several of which the first that is new enough is taken
#   ARGS=...    more arguments for the command that a target runs: make test ARGS='-n2 -x'

PYTHON ?= python3 python3.13 python3.12 python3.11
ARGS ?=

STAMP := .venv/.installed
UV := $(shell command -v uv 2>/dev/null)

# A .venv names its own path in its scripts and in the editable install, and its Python can be uninstalled below it. The
# stamp holds the path it was made for, and is read by the .venv's own Python: if that fails, or the tree has moved or
# was copied, .venv is made anew.
ifneq ($(shell .venv/bin/python -c "print(open('$(STAMP)').read())" 2>/dev/null),$(CURDIR))
STALE := stale
endif

.DEFAULT_GOAL := help
.PHONY: help install format lint typecheck test test-lowest test-live test-servers kill demo bench docs lock stale

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Set up .venv, which every other target does by itself

format: $(STAMP) ## Rewrite the code in the project's style
	.venv/bin/python -m ruff check --fix-only --quiet .
	.venv/bin/python -m ruff format .

lint: $(STAMP) ## Check style and common mistakes
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .

# Without the variable, pyright asks the network for its newest version at each run.
typecheck: $(STAMP) ## Check the types: src strictly
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 .venv/bin/python -m pyright $(ARGS)

test: $(STAMP) ## Run the tests
	.venv/bin/python -m pytest -n auto $(ARGS)

# The oldest pydantic-ai that pyproject.toml declares, beside the pinned versions of everything else.
LOWEST := $(shell sed -n 's/.*pydantic-ai-slim\[.*\]>=\([0-9.]*\)".*/\1/p' pyproject.toml)

test-lowest: .venv-lowest/.installed ## Run the tests on the oldest pydantic-ai that is supported
	PYDANTIC_AI_BATCH_KILLS=2 .venv-lowest/bin/python -m pytest -n auto -p no:cacheprovider $(ARGS)

.venv-lowest/.installed: $(STAMP) Makefile
	@echo 'Setting up .venv-lowest with pydantic-ai $(LOWEST)'
	@.venv/bin/python -m venv --clear .venv-lowest
	@.venv-lowest/bin/python -m pip install -qq --disable-pip-version-check --no-input --require-hashes -r requirements.lock
	@.venv-lowest/bin/python -m pip install -qq --disable-pip-version-check --no-input --no-deps \
		'pydantic-ai-slim~=$(LOWEST).0' 'pydantic-graph~=$(LOWEST).0'
	@.venv-lowest/bin/python -m pip install -qq --disable-pip-version-check --no-input --no-deps --no-build-isolation -e .
	@touch $@

test-live: $(STAMP) ## Send two tiny requests on every lane whose key is set, with BATCH_LIVE=1; costs money
	.venv/bin/python -m pytest -n0 -rs tests/live $(ARGS)

# They are put into .servers, whatever of them this machine can run; what it cannot is skipped with the reason. A file of
# tests, and so a server, stays with one process.
test-servers: $(STAMP) ## Run the lanes against servers that others wrote, which are installed first
	.venv/bin/python -m tests.servers.install
	PYDANTIC_AI_BATCH_SERVERS=1 .venv/bin/python -m pytest -n2 --dist loadfile -rs tests/servers $(ARGS)

kill: $(STAMP) ## Kill programs at random moments, 200 times, and write the figures into docs/reliability.md
	.venv/bin/python -m tests.journal.figures $(ARGS)

demo: $(STAMP) ## Triage support tickets in batches; needs no key
	.venv/bin/pydantic-ai-batch demo $(ARGS)

bench: $(STAMP) ## Measure against other ways to do the same
	.venv/bin/python -m benchmarks $(ARGS)

# The variable silences a notice about a future mkdocs that says nothing about these pages.
docs: $(STAMP) ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict $(ARGS)

# Only this target needs uv, so it is not among the packages that everyone installs. The lock is for every Python and
# system at once, and holds no address: whoever installs from it uses the registry they have configured.
lock: $(if $(UV),,$(STAMP)) ## Bring requirements.lock up to pyproject.toml; ARGS=--upgrade for the newest versions
	$(if $(UV),,.venv/bin/python -m pip install --quiet --disable-pip-version-check uv)
	UV_PYTHON_DOWNLOADS=never $(or $(UV),.venv/bin/python -m uv) pip compile pyproject.toml --group dev --group docs \
		--all-extras --universal --generate-hashes --no-header --no-annotate --quiet -o requirements.lock $(ARGS)

# pip gets no package but those of the lock: the build backend is one of them, hence no build isolation. Twice quiet, it
# still shows errors, but not a warning for each place in which a configured index does not hold a package.
$(STAMP): pyproject.toml requirements.lock $(STALE)
	@python=; for candidate in $(PYTHON); do \
		if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo 'Python 3.11 or newer is needed to set up .venv, and none of these is that:' >&2; \
		for candidate in $(PYTHON); do echo "  $$candidate: $$("$$candidate" --version 2>/dev/null || echo not found)" >&2; done; \
		echo 'Name one that is: make PYTHON=/path/to/python3' >&2; \
		exit 1; \
	fi; \
	if [ -n '$(STALE)' ]; then \
		echo "Setting up .venv with $$("$$python" --version); the first time takes about a minute"; \
		"$$python" -m venv --clear .venv; \
	else \
		echo 'Updating .venv'; \
	fi
	@.venv/bin/python -m pip install -qq --disable-pip-version-check --no-input --require-hashes -r requirements.lock
	@.venv/bin/python -m pip install -qq --disable-pip-version-check --no-input --no-deps --no-build-isolation -e .
	@printf '%s\n' '$(CURDIR)' > $(STAMP)
