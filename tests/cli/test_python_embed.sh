#!/bin/bash
# An engine in Python that uses libballast by ctypes: three processes, a plan, a loss.
. tests/tap.sh
if [[ ${BUILD:?} == *address* || $BUILD == *undefined* || $BUILD == *thread* ]]; then
    skip "an engine in Python" "the sanitizer's run time is not in the interpreter"
    finish
fi
if ! command -v python3 >/dev/null; then
    skip "an engine in Python" "no Python"
    finish
fi
BALLAST_LIBRARY=$(realpath "$BUILD/libballast.so")
export BALLAST_LIBRARY PYTHONDONTWRITEBYTECODE=1 BALLAST=$ballast
python3 tests/python/test_embed.py
