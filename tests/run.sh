#!/bin/bash
# run.sh PROGRAM...: run test programs and sum their results. A program speaks TAP ("ok 1 - name",
# "not ok 2 - name", "ok 3 - name # SKIP why"); exit code 77 means that all of it was skipped. A
# program that dies or prints no result counts as one failure. Ends with "N passed, N failed, N
# skipped" and exits non-zero when anything failed.
set -u
build=${BUILD:?}
logs=$build/tests/logs
mkdir -p "$logs"
export CMOCKA_MESSAGE_OUTPUT=TAP BALLAST=${BALLAST:-$build/ballast} BUILD=$build
passed=0 failed=0 skipped=0

for program in "$@"; do
    name=$(basename "$program")
    log=$logs/$name.log
    start=$SECONDS
    timeout "${TEST_TIMEOUT:-900}" "$program" >"$log" 2>&1 </dev/null
    rc=$?
    # cmocka reports a skipped test as "not ok 3 # SKIP name".
    skip=$(grep -cE '^(not )?ok .*# SKIP' "$log")
    good=$(grep '^ok ' "$log" | grep -vc '# SKIP')
    bad=$(grep '^not ok ' "$log" | grep -vc '# SKIP')
    if [ $rc -eq 77 ] && [ "$bad" -eq 0 ]; then
        skip=$((skip + 1))
    elif [ $rc -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
    elif [ $((good + bad + skip)) -eq 0 ]; then
        bad=1
    fi
    printf '%-32s %4d passed %3d failed %3d skipped %5d s\n' "$name" "$good" "$bad" "$skip" $((SECONDS - start))
    grep '# SKIP' "$log" | sed -E 's/^(not )?ok [0-9]* *-* */    skipped: /; s/ *# SKIP */ /'
    if [ "$bad" -gt 0 ]; then
        echo "---- $name (exit $rc), from $log:"
        grep -v '# SKIP' "$log" | grep -A12 '^not ok' | head -60
        tail -25 "$log"
        echo "----"
    fi
    passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + skip))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
