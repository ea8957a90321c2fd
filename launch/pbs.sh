#!/bin/bash
# A job of PBS, for `qsub launch/pbs.sh` in a folder that all nodes share: docs/clusters.md.
# Checked: shellcheck, and a run with PBS's variables for two ranks of one host. Not run on: PBS itself.
#PBS -N example
#PBS -l select=2:ncpus=4:mpiprocs=4
#PBS -l walltime=01:00:00
#PBS -j oe
# On GPUs: as many in each chunk as ranks, such as select=2:ncpus=4:mpiprocs=4:ngpus=4
set -eu
cd "$PBS_O_WORKDIR"

# The environment in which ncclkv is installed, at the same path on all nodes.
# shellcheck source=/dev/null
. "${VENV:-.venv}/bin/activate"
# The same folder for each job of this name, so that the next one continues from its last checkpoint.
saved=${SAVED:-checkpoints}/$PBS_JOBNAME

# PBS sends no signal before the limit: timeout sends SIGUSR1 two minutes earlier, and goes on waiting.
# The runner passes it on to all ranks, which save a checkpoint.
exec timeout --foreground --preserve-status --signal=USR1 "${SAVE_AFTER:-58m}" \
    ncclkv run --max-restarts 3 --checkpoint "$saved" -- python docs/examples/signals.py "$saved"
