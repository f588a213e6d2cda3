# Every target does its own set-up, in .venv; `make help` lists them.
#
# PYTHON=python3 make test   uses that interpreter as it is: it needs torch, and for the tests what TOOLS lists. Nothing is
#                            installed and no network is used.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-all bench report lint format sanitize clean build

# Pinned, so that two clones a year apart run the same.
TORCH := torch==2.13.0
TOOLS := setuptools==84.2.1 ninja==1.13.2 numpy==2.4.6 rich==15.0.0 matplotlib==3.11.2 pytest==9.2.0 pytest-xdist==3.8.0 \
         hypothesis==6.170.15 expecttest==0.3.0 nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37
LINTERS := clang-format==23.1.5 ruff==0.17.5
TOOLKIT := cuda-toolkit[nvcc,cudart,cccl]==13.0.*

ifdef PYTHON
  py := $(PYTHON)
  environment :=
else
  py := .venv/bin/python
  environment := .venv/.ready
endif
pip := .venv/bin/python -m pip install --quiet --disable-pip-version-check

# One stamp for each interpreter and each way to build; its age against the sources says whether there is anything to do.
way := $(shell echo "$(py) $(TORCH_REDUCE_CUDA) $(TORCH_CUDA_ARCH_LIST) $(CUDA_HOME)" | cksum | cut -d' ' -f1)
built := build/.built-$(way)
sources := $(shell find csrc -type f ! -name '*.md') setup.py
native := $(shell find csrc tests/emulator -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: $(built) ## set up, build, and run the ladder on this machine
	@$(py) -m torch_reduce demo

# On all cores where pytest-xdist is installed; then, where there is a GPU, what needs it, in one process (tests/conftest.py).
# Status 5: nothing in PYTEST_ARGS needs it.
parallel = $(shell $(py) -c 'import xdist; print("-n auto")' 2>/dev/null)
test_gpu = if [ -e /dev/nvidiactl ] && [ -n "$(parallel)" ]; then \
  $(py) -m pytest -m cuda $(PYTEST_ARGS) || [ $$? -eq 5 ]; fi

test: $(built) ## set up, build, and run the tests
	@$(py) -m pytest $(parallel) $(PYTEST_ARGS)
	@$(test_gpu)

test-all: $(built) ## the same, and the nightly tests: minutes more
	@$(py) -m pytest $(parallel) -m 'nightly or not nightly' $(PYTEST_ARGS)
	@$(test_gpu)

bench: $(built) ## measure everything on this machine's GPU into benchmarks/results/, then write tables and plots
	@$(py) benchmarks/run.py $(BENCH_ARGS)
	@$(py) benchmarks/report.py

report: $(built) ## write tables and plots from benchmarks/results/
	@$(py) benchmarks/report.py

sanitize: $(built) ## run every rung at small sizes under compute-sanitizer (needs a GPU)
	@for tool in memcheck racecheck initcheck synccheck; do \
	  echo "compute-sanitizer --tool $$tool"; \
	  compute-sanitizer --tool $$tool --error-exitcode 1 --target-processes all \
	    $(py) tests/sanitize.py --tool $$tool || exit 1; \
	done

lint: .venv/.linters ## check format and lint
	@.venv/bin/clang-format --dry-run --Werror $(native)
	@.venv/bin/ruff format --check --quiet . && .venv/bin/ruff check --quiet . && echo "lint: clean"

format: .venv/.linters ## format in place
	@.venv/bin/clang-format -i $(native)
	@.venv/bin/ruff format --quiet . && .venv/bin/ruff check --fix --quiet .

build: $(built) ## build the extension in place

clean: ## remove what was built; .venv stays
	rm -rf build dist *.egg-info torch_reduce/_C*.so .pytest_cache .ruff_cache .hypothesis

.venv/bin/python:
	@echo "setting up .venv (once): torch, tools; some minutes"
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 10) and "torch_reduce needs Python 3.10 or later")'
	@python3 -m venv .venv

.venv/.ready: Makefile | .venv/bin/python
	@$(pip) $(TORCH)
	@$(pip) $(TOOLS)
	@if [ "$(TORCH_REDUCE_CUDA)" != 0 ] && [ -z "$(CUDA_HOME)" ] && ! command -v nvcc >/dev/null; then \
	  echo "no nvcc on this machine: taking PyPI's"; $(pip) "$(TOOLKIT)"; fi
	@touch $@

.venv/.linters: Makefile | .venv/bin/python
	@$(pip) $(LINTERS)
	@touch $@

$(built): $(environment) $(sources)
	@echo "building the extension (once; minutes on a small machine)"
	@mkdir -p build
	@$(py) setup.py --quiet build_ext --inplace > build/log.txt 2>&1 || { tail -n 40 build/log.txt; exit 1; }
	@grep -h '^torch_reduce:' build/log.txt || true
	@touch $@
