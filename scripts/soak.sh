#!/bin/bash
# soak.sh [KILLS [SEED]]: kill -9 of a tracing engine or of its recorder, again and again (default
# 1000 times), then read everything back: tests/tools/soak_capture.c says what must hold. Needs
# $BUILD/tests/tools/soak_capture (make unit builds it).
set -u
build=${BUILD:-build/release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A kill takes about 30 ms and each start of the recorder makes files; ten times that is a hang.
timeout $((60 + ${1:-1000} / 3)) "$build/tests/tools/soak_capture" "${1:-1000}" "${2:-1}" "$work"
