# Two commands do everything on a machine that has only Python (3.11 to 3.13) and make:
#   make demo   train the layer and a full softmax on a generated language and compare them
#   make test   lint, types and all tests
# make docs builds the pages, make coverage says which lines of the library its own tests run.
PYTHON ?= python3
# The torch to install, as pip is told it. A CPU build is enough for everything here.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PINNED := --quiet --constraint constraints.txt --build-constraint constraints.txt

.PHONY: demo test lint types tests docs coverage clean

demo: $(VENV)/installed
	$(BIN)/coterie demo

test: lint types tests

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed
	$(BIN)/mypy

tests: $(VENV)/installed
	$(BIN)/pytest -n 2 --dist worksteal

docs: $(VENV)/installed
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/docs

coverage: $(VENV)/installed
	$(BIN)/pytest -n 2 --dist worksteal --cov=coterie --cov-report=term-missing:skip-covered tests/coterie

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install $(PINNED) $(TORCH)
	$(BIN)/python -m pip install $(PINNED) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .coverage build
