# Everything runs in .venv, made here with the exact versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TEST_PROCESSES ?= 2
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Tests start many processes; without bytecode on disk each would compile the whole program anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test pytest bench lint clean

serve: $(VENV)/.run            ## migrate the database, start web and worker, open the browser
	$(BIN)/legible serve --open

test: lint pytest              ## lint, types, every test; `make -j2 test` checks types meanwhile

pytest: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.bench          ## one row per claim of speed or memory
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing what Legible needs into $(VENV), PyTorch among it; the first time takes some minutes."
	$(PIP) -e .
	touch $@

# pip compiles what it installs on one core, for a minute; this takes them all. What cannot be compiled is no program.
$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --no-compile -e ".[dev]"
	$(BIN)/python -W ignore -m compileall -qq -j 0 -x 'site-packages/.*/tests?/' $(VENV)/lib || true
	touch $@

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e ".[dev,ordinary]"
	touch $@
