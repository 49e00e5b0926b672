#!/bin/bash
# check_gpu.sh: build with CUDA and NCCL and run every test of tests/gpu: programs test_*.c, and scripts
# test_*.sh. A test that finds no GPU, or too few, exits 77 or skips by name; without the toolkit all of
# it is skipped. Ends with "N passed, N failed, N skipped".
set -u
cd "$(dirname "$0")/.." || exit 1
export CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
build=build/release-cuda
if [ ! -x "$CUDA_HOME/bin/nvcc" ]; then
    echo "skipped: no CUDA toolkit in $CUDA_HOME (set CUDA_HOME)"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
make -s CUDA=1 BUILD=$build gpu || {
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sed 's/^/GPU: /' | grep . || echo "no GPU here"
tests=()
for source in tests/gpu/test_*.c; do
    [ -e "$source" ] && tests+=("$build/${source%.c}")
done
for script in tests/gpu/test_*.sh; do
    [ -e "$script" ] && tests+=("$script")
done
[ ${#tests[@]} -gt 0 ] || { echo "0 passed, 0 failed, 0 skipped"; exit 0; }
BUILD=$build TEST_TIMEOUT=${TEST_TIMEOUT:-120} exec tests/run.sh "${tests[@]}"
