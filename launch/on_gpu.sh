#!/usr/bin/env bash
# Run all that needs a GPU, each part under a time limit, and keep what it prints.
#
#   launch/on_gpu.sh FOLDER
#
# FOLDER gets machine.txt, a log for each part, and summary.txt.  python is that of launch/local.sh.
# Without a GPU every part fails, as NCCLKV_REQUIRE_GPU=1 has it; the exit code is 0 only when all
# parts passed.
set -u

[ $# -eq 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1" || exit 2
folder=$(cd "$1" && pwd)
cd "$(dirname "$0")/.." || exit 2
export NCCLKV_REQUIRE_GPU=1 NCCL_DEBUG="${NCCL_DEBUG:-WARN}"
status=0

part() {
    local name=$1 limit=$2 code
    shift 2
    timeout -k 10 "$limit" "$@" >"$folder/$name.txt" 2>&1 </dev/null
    code=$?
    [ $code -eq 0 ] || status=1
    printf '%-14s exit %3d  %s\n' "$name" $code "$(tail -n 1 "$folder/$name.txt")" |
        tee -a "$folder/summary.txt"
}

versions='
import sys, numpy, cupy
from cupy.cuda import nccl, runtime
print("Python", sys.version.split()[0], "NumPy", numpy.__version__, "CuPy", cupy.__version__)
print("CUDA", runtime.runtimeGetVersion(), "driver", runtime.driverGetVersion())
print("NCCL", nccl.get_version())
'
: >"$folder/summary.txt"
{
    date -u
    git rev-parse HEAD 2>/dev/null
    nvidia-smi
} >"$folder/machine.txt" 2>&1
part versions 60 launch/local.sh -n 1 -c "$versions"
part kernels 600 launch/local.sh -n 1 -m pytest tests/nccl/test_gpu_kernels.py
if command -v compute-sanitizer >/dev/null; then
    part sanitizer 600 compute-sanitizer --target-processes all --error-exitcode 9 \
        launch/local.sh -n 1 -m pytest tests/nccl/test_gpu_kernels.py -k 'pack or unpack or sgd'
else
    echo 'sanitizer      not run: there is no compute-sanitizer' | tee -a "$folder/summary.txt"
fi
part one-rank 600 launch/local.sh -n 1 -m pytest \
    tests/ranks/test_gpu_comm.py tests/ranks/test_gpu_store.py
# A part of their own: what goes wrong in a capture can spoil what follows in its process.
part captures 600 launch/local.sh -n 1 -m pytest tests/ranks/test_gpu_capture.py
for ranks in 2 3 4; do
    part "ranks-$ranks" 600 env NCCLKV_SHARE_GPU=1 launch/local.sh -n $ranks -m pytest \
        tests/ranks/test_gpu_comm.py tests/ranks/test_gpu_store.py
    part "captures-$ranks" 600 env NCCLKV_SHARE_GPU=1 launch/local.sh -n $ranks -m pytest \
        tests/ranks/test_gpu_capture.py
done
part faults 600 launch/local.sh -n 1 -m pytest tests/nccl/test_gpu_faults.py
part bench 600 launch/local.sh -n 1 -m bench gpu
part bench-shared 600 env NCCLKV_SHARE_GPU=1 launch/local.sh -n 2 -m bench gpu --quick
exit $status
