# Commands of the project.  Each target first installs what it needs into $(VENV), once.
PYTHON ?= python3
VENV   ?= .venv
N      ?= 4
GPUS   ?= 1

export PYTHON VENV
READY = $(VENV)/.ready
KERNELS = $(wildcard ncclkv/kernels/host/c/* ncclkv/kernels/programs/*.h) ncclkv/kernels/programs/__init__.py
TOOLS = $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help train bench peers bench-gpu test test-gpu lint docs wheel clean
.NOTPARALLEL:

help:  ## show this page
	@sed -n 's/^\([a-z-]*\):.*  ## /make \1\t/p; s/^#  //p' Makefile | expand -t 16

train: $(READY)-train $(READY)-mpi$(MPI)  ## train a small network on 4 ranks
	launch/local.sh -n $(N) train.py $(ARGS)

bench: $(READY)-bench $(READY)-mpi$(MPI) $(if $(TORCH),$(READY)-torch)  ## benchmark on hosts, beside MPI and torch
	launch/local.sh -n $(N) -m bench $(if $(QUICK),--quick) $(ARGS)

peers: $(READY)-bench $(READY)-mpiwheel $(READY)-torch  ## benchmark beside MPICH, Open MPI and Intel MPI
	VENV=$(VENV)-openmpi launch/setup.sh openmpi bench
	VENV=$(VENV)-impi launch/setup.sh impi bench
	$(TOOLS)/python -m bench.peers $(if $(QUICK),--quick) $(ARGS)

bench-gpu: $(READY)-bench $(READY)-mpi$(MPI) $(WITH:%=$(READY)-%)  ## benchmark on GPUs, beside NCCL, CuPy and torch
	launch/local.sh -n $(GPUS) -m bench gpu $(if $(QUICK),--quick) $(ARGS)

test: $(READY)-test $(READY)-mpi$(MPI) $(WITH:%=$(READY)-%)  ## run all tests, on 1 to 4 ranks
	$(TOOLS)/python -m tests.run $(RUNS)

test-gpu: $(READY)-test $(READY)-mpi$(MPI) $(WITH:%=$(READY)-%)  ## run the tests that need a GPU
	$(TOOLS)/python -m tests.run $(if $(EMULATED),emulated,gpu)

lint: $(READY)-lint  ## check style and types
	$(TOOLS)/ruff check
	$(TOOLS)/ruff format --check
	$(TOOLS)/mypy
	$(TOOLS)/shellcheck .ci/run launch/*.sh launch/*.sbatch tests/hosts/lab/*.sh
	$(TOOLS)/yamllint --strict launch
	$(TOOLS)/hadolint launch/Dockerfile
	$(TOOLS)/check-jsonschema --schemafile tests/hosts/mpijob.schema.json launch/kubernetes-mpijob.yaml

docs: $(READY)-docs  ## build the documentation in build/docs/index.html
	$(TOOLS)/python -m sphinx -W --keep-going -q -j auto $(if $(ONLINE),-t online) -d build/doctrees docs build/docs

wheel:  ## build wheels and an sdist in dist/, and try each
	[ .venv-release/.ready-release -nt setup.cfg ] || VENV=.venv-release launch/setup.sh release
	VENV=.venv-release launch/wheel.sh $(ONLY)

clean:  ## remove the environments, and all else that targets made
	rm -rf .venv .venv-mxnet .venv-oldest .venv-openmpi .venv-impi .venv-release .venv-second build dist docs/reference *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f ncclkv/kernels/host/_compiled.*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Contents of the environment: .ready-train stands for the extra `train` of setup.cfg, and so on;
# .ready-mpi for any MPI, and .ready-mpiwheel for an MPI installed in the environment.
$(READY)-%: setup.cfg setup.py pyproject.toml launch/setup.sh $(KERNELS)
	launch/setup.sh $*

# Shown by `make help` too:
#  with train:
#    N=2                  ranks
#    ARGS='--epochs 5'    options of train.py
#  with bench:
#    N=2                  ranks
#    QUICK=1              a rough run of less than a minute
#    TORCH=1              install torch and measure it too (its CPU build, if
#                         pip's settings name an index that has it)
#    ARGS='--only models --rounds 11'   options of python -m bench
#    ARGS=--floors        show the bounds that developers hold ratios to
#  with bench-gpu:
#    GPUS=4               ranks, each with a GPU
#    WITH, QUICK, ARGS    as with test-gpu and bench
#  with any target:
#    MPI=wheel            an MPI from its wheel even if PATH has an mpirun
#    PYTHON=python3.12    the environment's Python
#    VENV=.venv           its folder
#  for developers, with test:
#    RUNS='unit ranks-3'  these runs alone (tests/suite.py lists them)
#    RUNS=all             every case on every layout of ranks, and all
#                         combinations of parameters, in place of the covering
#                         set; NCCLKV_TEST_CASES=all does so for pytest alone
#    WITH=torch           install and test torch too
#    NCCLKV_TEST_SLOW=4   four times the limit of each test, on slow machines
#  with test-gpu:
#    WITH=cuda12          or cuda13: install CuPy and NCCL
#    NCCLKV_REQUIRE_GPU=1 fail without a GPU
#    EMULATED=1           an emulated device, whose results are not those of a
#                         GPU (tests/nccl/emulated/README.md); WITH=cuda12, too
#  with wheel:
#    ONLY='3.12 3.13'     for these versions of Python alone
