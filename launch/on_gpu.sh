#!/usr/bin/env bash
# Run all parts that need a GPU, the most informative first, and archive their output.
#
#   launch/on_gpu.sh FOLDER [PART ...]
#
# FOLDER gets summary.txt and logs.tar.gz, rewritten after every part.  PART is the name of a
# part, or of the calls "first", "second", "third" and "rest"; without any, all parts of all
# calls; --list shows them.  Parts run in the order in which they are named.  A part whose needs are
# missing is skipped with a message, and so are all parts after a ladder that ended early.
#
#   BUDGET   seconds for the whole call, 540 unless set; a part is limited to the rest of it
#   WHEELS   a folder with a wheel of mpich, for a machine without mpirun; .whl unless set
#   COMMIT   the commit, for a copy without .git
#
# python is that of launch/local.sh.  NCCLKV_REQUIRE_GPU=0, for a rehearsal, skips parts without a GPU;
# by default they fail.  The exit code is 0 only when every part passed.
set -u

case "${1:-}" in
    '' | -h | --help) sed -n '2,17s/^# \{0,1\}//p' "$0"; [ $# -gt 0 ]; exit $(($? * 2)) ;;
esac
if [ "${NCCLKV_EMULATED:-}" = 1 ]; then
    echo 'launch/on_gpu.sh: layer 3b has no GPU, and nothing it shows is a result of one' >&2
    exit 2
fi
started=$(date +%s)
root=$(cd "$(dirname "$0")/.." && pwd) || exit 2
python=$(command -v python3)
for venv in "${VENV:-}" "${VIRTUAL_ENV:-}" "$root/.venv"; do
    if [ -n "$venv" ] && [ -x "$venv/bin/python" ]; then
        python=$venv/bin/python
        break
    fi
done
if [ "$1" = --list ]; then
    cd "$root" && exec "$python" -m tests.on_gpu --list
fi
mkdir -p "$1" || exit 2
folder=$(cd "$1" && pwd)
shift
wheels=$(cd "$root" && cd "${WHEELS:-.whl}" 2>/dev/null && pwd)
cd "$root" || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
mkdir "$work/logs"
log=$work/logs/setup.txt

has_extension() {
    "$python" -c 'from ncclkv.kernels.host import compiled; raise SystemExit(not compiled.BUILT)'
}

two_ranks_connect() {
    timeout -k 5 25 launch/local.sh -n 2 -c \
        'from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2' </dev/null
}

install_mpich() {
    # With --target, pip leaves out libmpi.
    local wheel bin
    for wheel in "$wheels"/mpich-*.whl; do
        [ -f "$wheel" ] || continue
        timeout 120 "$python" -m pip install -q --no-index --no-deps --no-cache-dir \
            --disable-pip-version-check --prefix "$work/mpi" "$wheel" || continue
        # Debian's Python puts a "local" between.
        bin=$(dirname "$(find "$work/mpi" -name mpirun | head -n 1)")
        export PATH="$bin:$PATH" LD_LIBRARY_PATH="${bin%/bin}/lib:${LD_LIBRARY_PATH:-}"
        return
    done
    echo "no wheel of mpich in ${wheels:-$root/${WHEELS:-.whl}}"
}

find_mpi() {
    two_ranks_connect && return
    [ -x "$(dirname "$python")/mpirun" ] || command -v mpirun || install_mpich
    two_ranks_connect && return
    echo 'again, by the loopback interface'
    export HYDRA_IFACE=lo
    two_ranks_connect && return
    echo 'again, with tcp'
    export MPIR_CVAR_CH4_NETMOD=ofi FI_PROVIDER=tcp FI_TCP_IFACE=lo
    two_ranks_connect && return
    unset MPIR_CVAR_CH4_NETMOD FI_PROVIDER FI_TCP_IFACE
    echo 'two ranks cannot connect: parts of several ranks will not run'
    export NO_MPI=1
}

{
    date -u
    COMMIT=${COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
    echo "commit $COMMIT"
    "$python" -VV
    timeout 30 nvidia-smi
    nproc; free -h; df -h /dev/shm /tmp
    # One that was built elsewhere for the same processor and Python saves up to a minute.
    has_extension || timeout -k 5 150 "$python" setup.py build_ext --inplace 2>&1 | tail -n 5
    unset NO_MPI
    find_mpi
    command -v mpirun compute-sanitizer ncu nvcc
    env | grep -E '^(NCCL|CUDA|HYDRA|FI_|MPIR|VIRTUAL_ENV|LD_LIBRARY_PATH)' | sort
    echo "set up in $(($(date +%s) - started)) s"
} >"$log" 2>&1
export COMMIT NCCLKV_REQUIRE_GPU="${NCCLKV_REQUIRE_GPU:-1}"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
VENV=${python%/bin/python} BUDGET=$((${BUDGET:-540} - $(date +%s) + started)) \
    "$python" -u -m tests.on_gpu "$folder" "$work/logs" "$@"
