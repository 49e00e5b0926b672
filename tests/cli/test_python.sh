#!/bin/bash
# examples/python, where there is a Python with NumPy.
. tests/tap.sh
if [[ ${BUILD:?} == *address* || $BUILD == *undefined* || $BUILD == *thread* ]]; then
    skip "planning from Python" "the sanitizer's run time is not in the interpreter"
    finish
fi
for python in python3 /usr/bin/python3; do
    if "$python" -c 'import numpy' 2>/dev/null; then
        BALLAST_PLAN_LIBRARY=$(realpath "$BUILD/libballast-plan.so")
        export BALLAST_PLAN_LIBRARY PYTHONDONTWRITEBYTECODE=1
        "$python" tests/python/test_examples.py
        exit
    fi
done
skip "planning from Python" "no NumPy (Debian: python3-numpy)"
finish
