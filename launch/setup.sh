#!/usr/bin/env bash
# Install ncclkv and some extras into the environment $VENV, which is made first if it is missing.
#
#   launch/setup.sh EXTRA ...
#
# EXTRA is one of setup.cfg: train, test, lint, torch ...; or one of these:
#   mpi        an MPI, if neither the environment nor PATH has an mpirun
#   mpiwheel   an MPI in the environment, even if PATH has one
#
# `make` runs it, and $VENV/.ready-EXTRA marks what is done.  uv installs where PATH has it, else pip.
# PIP_CONSTRAINT names a file of versions for both.
set -eu -o pipefail

VENV=${VENV:-.venv}
PYTHON=${PYTHON:-python3}

fail() {
    printf 'launch/setup.sh: %s\n' "$*" >&2
    exit 1
}

make_environment() {
    "$VENV/bin/python" -m pip --version >/dev/null 2>&1 && return
    command -v "$PYTHON" >/dev/null ||
        fail "there is no $PYTHON; name a Python of 3.10 or newer: make PYTHON=/path/to/python3 ..."
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        fail "$PYTHON is $("$PYTHON" --version 2>&1), and ncclkv needs Python 3.10 or newer;" \
            "name one: make PYTHON=/path/to/python3 ..."
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$PYTHON cannot make environments: its modules venv and ensurepip are missing" \
            "(Debian and Ubuntu have them in the package python3-venv)"
    echo "making the environment $VENV with $("$PYTHON" --version)"
    "$PYTHON" -m venv "$VENV"
}

# uv reads no settings of pip: packages of another index would come from PyPI, or would not come.
uses_uv() {
    command -v uv >/dev/null || return
    case "$("$VENV/bin/python" -m pip config list)" in *index-url* | *find-links*) return 1 ;; esac
}

# Some installations take minutes: each package is a line as soon as pip comes to it.
without_known() {
    while IFS= read -r line; do
        case "$line" in
            'Requirement already satisfied'* | 'Looking in '* | *.whl.metadata*) ;;
            *) printf '%s\n' "$line" ;;
        esac
    done
}

install() {
    if uses_uv; then
        echo "installing ncclkv[$1] into $VENV, by uv"
        UV_CONSTRAINT="${UV_CONSTRAINT:-${PIP_CONSTRAINT:-}}" \
            uv pip install --python "$VENV/bin/python" --editable ".[$1]"
    else
        echo "installing ncclkv[$1] into $VENV, by pip"
        "$VENV/bin/python" -u -m pip install --progress-bar off --disable-pip-version-check \
            --editable ".[$1]" | without_known
    fi
}

has_mpirun() {
    [ -x "$VENV/bin/mpirun" ] || command -v mpirun >/dev/null
}

check_mpi() {
    local count='from mpi4py import MPI; raise SystemExit(MPI.COMM_WORLD.size != 2)'
    if ! timeout 60 launch/local.sh -n 2 -c "$count" </dev/null; then
        if [ -x "$VENV/bin/mpirun" ]; then
            fail "the MPI in $VENV cannot start two ranks on this machine; its output is above"
        fi
        fail "mpi4py cannot use the MPI of $(command -v mpirun); its output is above." \
            "'make MPI=wheel train' puts an MPI that it can use into $VENV (so does any target)"
    fi
}

[ $# -gt 0 ] || fail "name what to install, such as: launch/setup.sh train"
export VENV
make_environment
extras='' checked=''
for each in "$@"; do
    case "$each" in
        mpi) has_mpirun || extras+=",mpi"; checked=yes ;;
        mpiwheel) extras+=",mpi"; checked=yes ;;
        *) extras+=",$each" ;;
    esac
done
# One call for all extras: each call builds the kernels in C anew.
[ -z "$extras" ] || install "${extras#,}"
[ -z "$checked" ] || check_mpi
for each in "$@"; do
    touch "$VENV/.ready-$each"
done
