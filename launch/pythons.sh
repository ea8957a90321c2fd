#!/usr/bin/env bash
# Print a line for each Python that ncclkv supports: its version, and its path if it is at hand.
#
# A Python is looked for on PATH, and where pyenv and uv keep theirs.
set -eu

for minor in 10 11 12 13 14; do
    found=
    for each in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python \
        "${UV_PYTHON_INSTALL_DIR:-$HOME/.local/share/uv/python}/cpython-3.$minor".*/bin/python; do
        # It is started: a shim of pyenv fails, and Debian's may be unable to make environments.
        found=$("$each" -c 'import ensurepip, sys, venv; print(sys.executable)' 2>/dev/null) && break
    done
    echo "3.$minor $found"
done
