# Every target does its own set-up, in .venv; `make help` lists them.
#
# PYTHON=python3 make test         uses that interpreter as it is: it needs torch, and what TOOLS and CHECKS list. Nothing is
#                                  installed and no network is used.
# make test TORCH=torch==2.11.0    another torch, in an environment of its own: .venv-torch2.11.0
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-all bench report docs lint format sanitize build wheel sdist clean FORCE

# Pinned, so that two clones a year apart run the same: setuptools to one that torch 2.11 takes too, the toolkit by torch,
# whose own CUDA libraries come from it.
newest := torch==2.15.0
TORCH := $(newest)
TOOLS := setuptools==81.0.0 ninja==1.13.2 numpy==2.4.6 rich==15.0.0
CHECKS := matplotlib==3.11.2 pytest==9.2.0 pytest-xdist==3.8.0 hypothesis==6.170.15 expecttest==0.3.0 \
          transformers==5.23.0 \
          nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37
DOCS := pdoc==16.0.0
LINTERS := clang-format==23.1.5 ruff==0.17.5 mypy==2.4.1 pyright[nodejs]==1.1.414
TOOLKIT := cuda-toolkit[nvcc,cudart,cccl]

venv := .venv$(if $(filter-out $(newest),$(TORCH)),-$(subst ==,,$(TORCH)))
ifdef PYTHON
  py := $(PYTHON)
else
  py := $(venv)/bin/python
  ready := $(venv)/.ready
  checks := $(venv)/.checks
  docs := $(venv)/.docs
  # In an environment of our own bytecode is kept: else every process of the build and of the tests would compile torch anew, which
  # takes longer than to import it.
  unexport PYTHONDONTWRITEBYTECODE
endif
# Modules are compiled to bytecode as they are imported; pip would compile all of torch's.
pip := $(venv)/bin/python -m pip install --disable-pip-version-check --no-compile

sources := $(shell find csrc -type f ! -name '*.md') setup.py pyproject.toml
native := $(shell find csrc tests/emulator -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# What this machine can run: without a GPU no kernel, unless they are there already or somebody asks for them.
gpu := nvidia-smi -L 2>/dev/null | grep -q '^GPU'
kernels_built := test -e build/.built && grep -qs '^$(py) .* cuda=[a1]' build/.way

demo: ## set up, build what this machine can run, and run the ladder
	@if [ -n "$(TORCH_REDUCE_CUDA)" ] || $(gpu) || { $(kernels_built); }; then $(MAKE) --no-print-directory build; else \
	  echo "no GPU here: building the CPU half alone (make test, or TORCH_REDUCE_CUDA=1 make demo, builds the kernels too)"; \
	  $(MAKE) --no-print-directory build TORCH_REDUCE_CUDA=0; fi
	@$(py) -m torch_reduce demo

# On all cores where pytest-xdist is installed; then, where there is a GPU, what needs it, in one process (tests/conftest.py).
# Status 5: nothing in PYTEST_ARGS needs it.
parallel = $(shell $(py) -c 'import xdist; print("-n auto")' 2>/dev/null)
test_gpu = if [ -e /dev/nvidiactl ] && [ -n "$(parallel)" ]; then \
  $(py) -m pytest -m cuda $(PYTEST_ARGS) || [ $$? -eq 5 ]; fi

test: build/.built $(checks) ## set up, build, and run the tests
	@$(py) -m pytest $(parallel) $(PYTEST_ARGS)
	@$(test_gpu)

test-all: build/.built $(checks) ## the same, and the nightly tests: minutes more
	@$(py) -m pytest $(parallel) -m 'nightly or not nightly' $(PYTEST_ARGS)
	@$(test_gpu)

bench: build/.built $(checks) ## measure everything on this machine's GPU into benchmarks/results/, then write tables and plots
	@$(py) benchmarks/run.py $(BENCH_ARGS)
	@$(py) benchmarks/report.py

report: build/.built $(checks) ## write tables and plots from benchmarks/results/
	@$(py) benchmarks/report.py

docs: build/.built $(docs) ## the API reference, from the docstrings, in build/api
	@$(py) -m pdoc --docformat google --output-directory build/api torch_reduce torch_reduce.distributed && \
	  echo "build/api/torch_reduce.html"

sanitize: build/.built ## run every rung at small sizes under compute-sanitizer (needs a GPU)
	@for tool in memcheck racecheck initcheck synccheck; do \
	  echo "compute-sanitizer --tool $$tool"; \
	  compute-sanitizer --tool $$tool --error-exitcode 1 --target-processes all \
	    $(py) tests/sanitize.py --tool $$tool || exit 1; \
	done

lint: .venv/.linters ## check format and lint
	@.venv/bin/clang-format --dry-run --Werror $(native)
	@.venv/bin/ruff format --check --quiet . && .venv/bin/ruff check --quiet .
	@.venv/bin/python -m mypy --no-error-summary
	@! test -d .venv/lib/python*/site-packages/torch || found=$$(.venv/bin/python -m pyright --project pyproject.toml) || { echo "$$found"; exit 1; }
	@echo "lint: clean"

format: .venv/.linters ## format in place
	@.venv/bin/clang-format -i $(native)
	@.venv/bin/ruff format --quiet . && .venv/bin/ruff check --fix --quiet .

build: build/.built ## build the extension in place

wheel: build/.built ## a wheel for the torch of this environment, in dist/ (TORCH_CUDA_ARCH_LIST="8.0;9.0a" names chips)
	@$(py) -m pip --quiet --disable-pip-version-check wheel --no-build-isolation --no-deps --wheel-dir dist .
	@ls -sh dist/*.whl

sdist: $(ready) ## the sources that a wheel is built from, in dist/
	@$(py) setup.py --quiet sdist
	@ls -sh dist/*.tar.gz

clean: ## remove what was built; .venv stays
	rm -rf build dist *.egg-info torch_reduce/_C*.so torch_reduce/_build.py .pytest_cache .ruff_cache .mypy_cache .hypothesis

$(sort $(venv)/bin/python .venv/bin/python):
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "torch_reduce needs Python 3.11 or later")'
	@python3 -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "python3 has no venv module: install it (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || { echo "no C++ compiler: install one (g++ 11 or later) or set CXX"; exit 1; }
	@python3 -m venv $(@D)/..

# Downloads, in the order in which they are needed.
$(venv)/.ready: Makefile | $(venv)/bin/python
	@echo "setting up $(venv) (once): $(TORCH) with its CUDA libraries is a download of 2.6 GB and takes 5.3 GB"
	@[ $$(df -Pk . | awk 'END {print $$4}') -gt 9000000 ] || echo "less than 9 GB of disk are free: this may not be enough"
	@$(pip) $(TORCH) $(TOOLS) || { echo "pip could not install $(TORCH): its reason stands above"; exit 1; }
	@touch $@

$(venv)/.checks: Makefile | $(venv)/.ready
	@echo "installing what the tests need"
	@$(pip) --quiet $(CHECKS)
	@touch $@

$(venv)/.docs: Makefile | $(venv)/.ready
	@$(pip) --quiet $(DOCS)
	@touch $@

$(venv)/.nvcc: Makefile | $(venv)/.ready
	@echo "no nvcc on this machine: taking PyPI's, into $(venv)"
	@$(pip) "$(TOOLKIT)"
	@touch $@

.venv/.linters: Makefile | .venv/bin/python
	@$(pip:$(venv)%=.venv%) --quiet $(LINTERS)
	@touch $@

ifndef PYTHON
ifneq ($(TORCH_REDUCE_CUDA),0)
ifeq ($(CUDA_HOME)$(shell command -v nvcc),)
  nvcc := $(venv)/.nvcc
endif
endif
endif

# How the extension in torch_reduce/ was built: written where it changes, so that another way builds again. Objects that two
# ways share are compiled once.
versions := import importlib.metadata as m, platform; print(platform.python_version(), m.version("torch"))
build/.way: $(ready) FORCE
	@mkdir -p build
	@way="$(py) $$($(py) -c '$(versions)') cuda=$(or $(TORCH_REDUCE_CUDA),auto) $(TORCH_CUDA_ARCH_LIST) $(CUDA_HOME)"; \
	  [ "$$way" = "$$(cat $@ 2>/dev/null)" ] || echo "$$way" > $@

# The whole output goes to build/log.txt; tools/progress.py shows how far it is. Behind a compiler's errors stands setup.py's traceback.
build/.built: build/.way $(nvcc) $(sources)
	@rm -f $@
	@set -o pipefail; $(py) setup.py --quiet build_ext --inplace 2>&1 | $(py) tools/progress.py build/log.txt || \
	  { sed '/^Traceback/,$$d' build/log.txt | tail -n 40; exit 1; }
	@touch $@
