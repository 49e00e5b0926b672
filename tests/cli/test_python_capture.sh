#!/bin/bash
# examples/capture: tracing from Python, against fakes of the engines' shapes.
. tests/tap.sh
if [[ ${BUILD:?} == *address* || $BUILD == *undefined* || $BUILD == *thread* ]]; then
    skip "tracing from Python" "the sanitizer's run time is not in the interpreter"
    finish
fi
if ! command -v python3 >/dev/null; then
    skip "tracing from Python" "no Python"
    finish
fi
BALLAST_TRACE_LIBRARY=$(realpath "$BUILD/libballast-trace.so")
export BALLAST_TRACE_LIBRARY PYTHONDONTWRITEBYTECODE=1 BALLAST=$ballast
python3 tests/python/test_capture.py
