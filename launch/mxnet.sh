#!/usr/bin/env bash
# Run the tests of MXNet's arrays, optimizers, Gluon and Module, in the environment $MXNET_ENV.
#
# `launch/mxnet.sh setup` makes the environment, with the versions of launch/mxnet.txt.
# Without the environment this script says so, and runs no test.
set -eu
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
export PYTHON VENV="${MXNET_ENV:-.venv-mxnet}" PIP_CONSTRAINT="$PWD/launch/mxnet.txt"

setup() {
    if ! "$PYTHON" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 12))'; then
        echo "launch/mxnet.sh: $("$PYTHON" --version) has no wheel of NumPy 1.23;" \
            "name a Python of 3.10 or 3.11: PYTHON=/path/to/python3.11 $0 setup" >&2
        exit 1
    fi
    launch/setup.sh mxnet test mpiwheel
    "$VENV/bin/python" -W ignore -c 'import mxnet' || {
        echo "launch/mxnet.sh: MXNet is installed and cannot be imported; its output is above." \
            "libquadmath.so.0 is in Debian's package libquadmath0" >&2
        exit 1
    }
    touch "$VENV/.ready-import"
}

if [ "${1:-}" = setup ]; then
    [ "$VENV/.ready-import" -nt setup.cfg ] || setup
    exit 0
fi
if [ ! -e "$VENV/.ready-import" ]; then
    echo "there is no environment with MXNet, and its tests are left out; to make one: launch/mxnet.sh setup"
    exit 0
fi
# Threads of MXNet's kernels on top of the ranks would need more cores than there are.
export OMP_NUM_THREADS=1
"$VENV/bin/python" -c 'import mxnet, numpy; print("MXNet", mxnet.__version__, "NumPy", numpy.__version__)'
"$VENV/bin/python" -m pytest -q tests/mxnet
"$VENV/bin/python" -m pytest -q --doctest-modules --disable-warnings -o filterwarnings= ncclkv/mxnet
for ranks in 2 4; do
    launch/local.sh -n "$ranks" -m pytest -q tests/mxnet/ranks
done
