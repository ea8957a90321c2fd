#!/usr/bin/env bash
# Run the tests of single modules and of 2 ranks with a second Python, in the environment $SECOND.
#
# The Python is the newest at hand, or the oldest where $PYTHON is newer than all others.
# `launch/second.sh setup` makes the environment, and runs no test.  Without a second Python this
# script says so, and does nothing.
set -eu
cd "$(dirname "$0")/.."

first=$("${PYTHON:-python3}" -c 'import sys; print(sys.version_info.minor)')
PYTHON=
while read -r version path; do
    minor=${version#3.}
    if [ -z "$path" ] || [ "$minor" -eq "$first" ]; then continue; fi
    if [ -z "$PYTHON" ] || [ "$minor" -gt "$first" ]; then PYTHON=$path; fi
done < <(launch/pythons.sh)
if [ -z "$PYTHON" ]; then
    echo "launch/second.sh: there is no Python of 3.10 to 3.14 beside 3.$first, and the tests with a" \
        "second Python are left out; put one on PATH, such as python3.13"
    exit 0
fi
export PYTHON VENV="${SECOND:-.venv-second}"
[ "$VENV/.ready-mpiwheel" -nt setup.cfg ] || launch/setup.sh test mpiwheel
[ "${1:-}" != setup ] || exit 0
"$VENV/bin/python" --version
exec "$VENV/bin/python" -m tests.run --shares 0 unit ranks-2
