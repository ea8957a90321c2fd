# Commands of the project.  Each target first installs what it needs into $(VENV), once.
PYTHON ?= python3
VENV   ?= .venv
N      ?= 4
GPUS   ?= 1

export PYTHON VENV
READY = $(VENV)/.ready
KERNELS = $(wildcard ncclkv/kernels/host/c/*)
TOOLS = $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help train test test-gpu bench bench-gpu lint docs clean
.NOTPARALLEL:

help:  ## show this page
	@sed -n 's/^\([a-z-]*\):.*  ## /make \1\t/p; s/^#  //p' Makefile | expand -t 16

train: $(READY)-train $(READY)-mpi$(MPI)  ## train a small network on 4 ranks
	launch/local.sh -n $(N) train.py $(ARGS)

test: $(READY)-test $(READY)-mpi$(MPI) $(WITH:%=$(READY)-%)  ## run all tests, on 1 to 4 ranks
	$(TOOLS)/python -m tests.run $(RUNS)

test-gpu: $(READY)-test $(READY)-mpi$(MPI) $(WITH:%=$(READY)-%)  ## run the tests that need a GPU; ranks may share it
	$(TOOLS)/python -m tests.run $(if $(EMULATED),emulated,gpu)

bench: $(READY)-bench $(READY)-mpi$(MPI) $(if $(TORCH),$(READY)-torch)  ## benchmark on hosts, beside MPI and torch
	launch/local.sh -n $(N) -m bench $(if $(QUICK),--quick) $(ARGS)

bench-gpu: $(READY)-bench $(READY)-mpi$(MPI) $(WITH:%=$(READY)-%)  ## benchmark on GPUs, beside NCCL, CuPy and torch
	launch/local.sh -n $(GPUS) -m bench gpu $(if $(QUICK),--quick) $(ARGS)

lint: $(READY)-lint  ## check style and types
	$(TOOLS)/ruff check
	$(TOOLS)/ruff format --check
	$(TOOLS)/mypy

docs: $(READY)-docs  ## build the documentation in build/docs/index.html
	$(TOOLS)/python -m sphinx -W --keep-going -q -j auto $(if $(ONLINE),-t online) -d build/doctrees docs build/docs

clean:  ## remove the environments and all other files that targets made
	rm -rf .venv .venv-mxnet .venv-oldest .venv-openmpi build dist docs/reference *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f ncclkv/kernels/host/_compiled.*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Contents of the environment: .ready-train stands for the extra `train` of setup.cfg, and so on;
# .ready-mpi for any MPI, and .ready-mpiwheel for an MPI installed in the environment.
$(READY)-%: setup.cfg setup.py pyproject.toml launch/setup.sh $(KERNELS)
	launch/setup.sh $*

# Shown by `make help` too:
#  with train:   N=2 ranks, ARGS='--epochs 5' or other options of train.py
#  with test:    RUNS='unit ranks-3', these runs alone; WITH=torch, to install and test torch too
#                RUNS=all, every case on every layout of ranks and all combinations of parameters,
#                instead of the covering set (tests/conformance/covering.py, tests/harness/extent.py);
#                NCCLKV_TEST_CASES=all does so for pytest alone
#                NCCLKV_TEST_SLOW=4, four times the time limit of each test, on a slow machine
#  with test-gpu: WITH=cuda12 or WITH=cuda13, to install CuPy and NCCL; NCCLKV_REQUIRE_GPU=1, to fail
#                without a GPU; EMULATED=1 WITH=cuda12, to use an emulated device instead, whose
#                results are not those of a GPU (tests/nccl/emulated/README.md)
#  with bench:   N=2 ranks; QUICK=1, a rough run of less than a minute; TORCH=1, to install torch
#                and measure it too (its CPU build, if pip's settings name an index that has it);
#                ARGS='--only models --rounds 11' or other options of python -m bench
#  with bench-gpu: GPUS=4 ranks, each with a GPU; WITH, QUICK and ARGS as above
#  with docs:    ONLINE=1, to link to the pages of Python, NumPy, torch and mpi4py
#  with any:     MPI=wheel, an MPI from its wheel even if PATH has an mpirun;
#                PYTHON=python3.12, the environment's Python; VENV=.venv, its folder
