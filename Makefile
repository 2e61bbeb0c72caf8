# Two commands for a newcomer with Python (3.11 or newer) and make: `make demo` and `make test`.
# Every target sets up `.venv/` itself, and does nothing for it when nothing changed.
# PYTHON=/path/to/python3 chooses the Python; ARGS="..." goes to the command that a target runs.

.DEFAULT_GOAL := help
.PHONY: help demo test setup check lint types imports test-fast test-core test-sglang test-grid test-gpu test-routers fuzz-cli fuzz-server coverage mutation mistakes crosshair docs verify bench deep exhaustive format clean
MAKEFLAGS += --no-print-directory

ARGS ?=
# Test processes at once.  One engine takes some 4 GB.
WORKERS ?= 2
PY := .venv/bin/python
export PYTHON
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME
venv = python=$$(sh tools/find_python.sh) && "$$python" tools/venv.py

# The tests on the real engine, once the checkout has them.
sglang_part := $(and $(wildcard tests/sglang/test_*.py),$(wildcard penelope/sglang_adapter/*.py))
typed := $(wildcard penelope spec/penelope_spec tests benchmarks tools)
fast := not slow and not sglang and not gpu

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo:  ## replay a generated agent workload under five policies: a table and a plot
	@$(venv) replay
	@$(PY) -m penelope demo $(ARGS)

test:  ## everything: lint, types, imports, tests, proofs, and the tests on SGLang's real engine
	@$(venv) $(if $(sglang_part),sglang,dev)
	@$(MAKE) lint types imports verify test-core ARGS=
ifneq ($(sglang_part),)
	@$(MAKE) test-sglang ARGS=
endif

setup:  ## for developers: the core and the development tools, without PyTorch
	@$(venv) dev

check: lint types imports test-fast  ## lint, types, import rule, fast tests: before every commit

lint: setup
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --check --quiet . || { echo "ruff: the layout differs: run 'make format'" >&2; exit 1; }

types: setup
	@$(PY) -m mypy $(typed)

imports: setup
	@$(PY) -c 'from importlinter.cli import lint_imports_command as main; main()' --no-logo

test-fast: setup
	@$(PY) -m pytest -q -m "$(fast)" --hypothesis-profile=fast $(ARGS)

test-core: setup  ## all tests that need neither SGLang nor a GPU
	@$(PY) -m pytest -q -m "not sglang and not gpu" -n $(WORKERS) --dist worksteal --durations=5 $(ARGS)

test-sglang:  ## the tests on the real engine, on the CPU (ARGS="-m smoke": four minutes)
ifeq ($(sglang_part),)
	@echo "penelope: this checkout has no tests/sglang" >&2; exit 2
else
	@$(venv) sglang
	@# One thread each: two stall at barriers whenever another process holds a core.
	@OMP_NUM_THREADS=1 $(PY) -m pytest -q tests/sglang -m "not grid" -n $(WORKERS) --dist loadscope \
	  --durations=10 $(ARGS)
endif

test-grid:  ## every policy under every start-up flag of the engine (twenty minutes)
	@$(MAKE) test-sglang ARGS="-m grid $(ARGS)"

test-routers:  ## how routers score holes, with Dynamo's own index (its own environment, .venv-routers)
	@$(venv) routers
	@.venv-routers/bin/python -m pytest -q tests/routers tests/docs/test_routers.py $(ARGS)

test-gpu:  ## the tests on an NVIDIA GPU, half an hour (ARGS="--random-weights": no download)
	@$(venv) sglang
	@$(PY) -m pytest -q tests/gpu --durations=10 $(ARGS)

fuzz-server:  ## random requests to the running server, half an hour (ARGS="--seed 7 --minutes 5")
	@$(venv) sglang
	@OMP_NUM_THREADS=1 $(PY) -m tests.fuzz.server $(ARGS)

docs:  ## the documentation as a site, every link checked: build/site/index.html
	@$(venv) docs
	@$(PY) tools/gather_docs.py build/docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict $(ARGS)
	@echo "build/site/index.html"

verify: setup  ## the proofs of the specification
	@$(PY) -m penelope verify $(ARGS)

bench: setup  ## the core's operations against state size, and the replay's speed
	@$(PY) -m benchmarks $(ARGS)

deep: setup  ## the property tests with at least 100,000 steps
	@$(PY) -m pytest -q tests/property --hypothesis-profile=deep --timeout=0 $(ARGS)

fuzz-cli: setup  ## feed the command line and its readers for half an hour (ARGS="--minutes 5 --seed 7")
	@$(PY) -m tests.fuzz $(ARGS)

coverage: setup  ## the fast tests reach every line and branch of the policy core (three minutes)
	@$(PY) -m pytest -q -m "$(fast)" --hypothesis-profile=fast --cov --cov-report= $(ARGS) \
	  tests/cases tests/property tests/spec tests/unit/test_policy_*.py tests/unit/test_cost*.py
	@$(PY) -m coverage report --include='penelope/policy/*,penelope/cost/*' --fail-under=100

mutation:  ## change the core a little, 2,800 times: which changes does no test notice? (an hour)
	@$(venv) mutation
	@$(PY) tools/mutation.py $(ARGS)

mistakes: setup  ## make classic mistakes in the core, and see which test notices each
	@$(PY) tools/broken_rules.py $(or $(ARGS),--classic)

crosshair:  ## a symbolic search for counterexamples in the core's arithmetic (five minutes)
	@$(venv) crosshair
	@OMP_NUM_THREADS=1 $(PY) -m pytest -q --hypothesis-profile=crosshair --timeout=0 $(ARGS) \
	  $(foreach part,cost cuts keys ticks,tests/property/test_$(part).py)

exhaustive: setup  ## every sequence of operations in small worlds, some five minutes (ARGS=--fast)
	@$(PY) -m tests.exhaustive $(ARGS)

format: setup  ## put the code into its layout
	@$(PY) -m ruff check --quiet --fix-only .
	@$(PY) -m ruff format --quiet .

clean:  ## remove caches and build outputs (the environment: rm -rf .venv)
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage htmlcov build dist
	@find penelope spec tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
