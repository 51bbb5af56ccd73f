# Everything runs in .venv, made here with the exact versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TEST_PROCESSES ?= 2
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: serve test bench lint clean

serve: $(VENV)/.run            ## migrate the database, start web and worker, open the browser
	$(BIN)/legible serve --open

test: $(VENV)/.dev lint        ## lint, types, every test
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile

lint: $(VENV)/.dev
	$(BIN)/ruff check .
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

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e ".[dev]"
	touch $@

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e ".[dev,ordinary]"
	touch $@
