#!/bin/bash
# The demo's claims, checked on its own words: the plan is worth it on unseen steps, the move is
# complete, imbalance falls, and no token changes.
. tests/tap.sh

if [[ $BUILD == *address* || $BUILD == *undefined* ]]; then
    skip "the demo" "its verbs run instrumented in other scripts"
    finish
fi
check "the demo runs to its end" bash -c "scripts/demo.sh >'$work/demo.txt' 2>&1 || { tail -5 '$work/demo.txt'; false; }"
says() { grep -qE "$1" "$work/demo.txt"; }
check "the plan is recommended on steps it has not seen" says '^new\.plan\.json: recommend'
check "every move is done" bash -c "grep -E '^  moves +[0-9]+ of [0-9]+' '$work/demo.txt' | awk '\$2 != \$4 || \$2 == 0 {bad = 1} END {exit bad || NR == 0}'"
check "measured imbalance falls" bash -c "awk '/max\/mean over ranks/ {at[\$1] = \$NF} END {exit !(at[\"after\"] < at[\"before\"] - 0.05)}' '$work/demo.txt'"
check "all tokens equal the run without moves" says 'all [0-9]{4,} tokens equal the run in which nothing moved'
finish
