#!/usr/bin/env bash
# Start a Python program on several ranks of this machine: mpirun with the options of each MPI.
set -eu

usage() {
    cat <<'END'
usage: launch/local.sh -n RANKS PROGRAM [ARGUMENT ...]

Starts `mpirun -n RANKS python PROGRAM ...` on this machine.  All that follows RANKS goes to python:

    launch/local.sh -n 4 train.py --epochs 5
    launch/local.sh -n 2 -m pytest tests/ranks
    launch/local.sh -n 2 -c 'import ncclkv; print(ncclkv.create("dist").rank)'

python is that of $VENV when it is set, else of the active environment, else of .venv here, else
python3 on PATH; mpirun is the one beside it, else the one on PATH.
Open MPI gets settings that allow root, and more ranks than cores; other MPIs allow both.
OMP_NUM_THREADS and OPENBLAS_NUM_THREADS are set to 1 for more than one rank, unless they are set.
CUDA_VISIBLE_DEVICES is left as it is: every rank sees all GPUs of the node.
The exit code is mpirun's.
END
}

fail() {
    echo "launch/local.sh: $1" >&2
    exit 2
}

find_python() {
    local root venv
    root=$(cd "$(dirname "$0")/.." && pwd)
    for venv in "${VENV:-}" "${VIRTUAL_ENV:-}" "$root/.venv"; do
        if [ -n "$venv" ] && [ -x "$venv/bin/python" ]; then
            echo "$venv/bin/python"
            return
        fi
    done
    command -v python3 || fail "there is no python3 on PATH: 'make train' sets up an environment"
}

find_mpirun() {
    local beside
    beside=$(dirname "$1")/mpirun
    if [ -x "$beside" ]; then
        echo "$beside"
    else
        command -v mpirun || fail "there is no mpirun, beside $1 or on PATH: \
'make MPI=wheel train' installs one"
    fi
}

allow_what_open_mpi_refuses() {
    # The names of Open MPI 4 and of Open MPI 5.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_rmaps_base_oversubscribe=1
    export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
}

case "${1:-}" in
    -h | --help) usage; exit 0 ;;
    -n) ;;
    *) usage >&2; exit 2 ;;
esac
ranks=${2:-}
case "$ranks" in
    '' | 0* | *[!0-9]*) fail "-n must be a number of ranks, 1 or more, and is '$ranks'" ;;
esac
shift 2
[ $# -gt 0 ] || fail "there is no program to start: launch/local.sh -n $ranks train.py"

python=$(find_python)
mpirun=$(find_mpirun "$python")
# Intel MPI's mpirun finds its other programs on PATH alone.
PATH=$(dirname "$mpirun"):$PATH
case "$("$mpirun" --version 2>&1)" in
    *'Open MPI'*) allow_what_open_mpi_refuses ;;
esac
if [ "$ranks" -gt 1 ]; then
    # Ranks that each start a thread for every core are slower than ranks of one thread.
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}"
fi
exec "$mpirun" -n "$ranks" "$python" "$@"
