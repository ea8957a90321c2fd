#!/usr/bin/env bash
# Run some tests with the oldest NumPy that ncclkv supports, in the environment $OLDEST.
#
# launch/setup.sh makes the environment, with the versions of launch/oldest.txt;
# `launch/oldest.sh setup` makes the environment and runs no test.
set -eu
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
export PYTHON VENV="${OLDEST:-.venv-oldest}" PIP_CONSTRAINT="$PWD/launch/oldest.txt"

if ! "$PYTHON" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 12))'; then
    echo "launch/oldest.sh: $("$PYTHON" --version) has no wheel of NumPy 1.23;" \
        "name a Python of 3.10 or 3.11: PYTHON=/path/to/python3.11 $0" >&2
    exit 1
fi
[ "$VENV/.ready-mpiwheel" -nt setup.cfg ] || launch/setup.sh test mpiwheel
[ "${1:-}" != setup ] || exit 0
"$VENV/bin/python" -c 'import numpy; print("NumPy", numpy.__version__)'

"$VENV/bin/python" -m pytest -q tests/unit/arrays tests/unit/optimizer tests/unit/store/test_call_cache*.py \
    tests/unit/checkpoint/test_{write,directory,manifest}.py tests/unit/kernels/host/test_{pack,reduce,update}.py
exec env NCCLKV_TEST_CASES=all launch/local.sh -n 2 -m pytest -q tests/ranks/test_store_cases.py -k every_rank
