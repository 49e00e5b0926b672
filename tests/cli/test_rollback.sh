#!/bin/bash
# A move that turns out markedly worse than was predicted is taken back by the same transaction. The
# controller is lied to about the load (tests/tools/lying_socket.c), so that it plans to gather the hot
# experts; what the ranks measure is true.
. tests/tap.sh
. tests/live.sh
liar_pid=
trap 'kill -KILL $run_pid $liar_pid 2>/dev/null; rm -rf "$work"' EXIT

for i in 1 2 3 4 5 6; do
    [ "$i" -gt 1 ] && echo ---
    tail -c +$((i * 50)) $model/prompts/python.txt | head -c 60 | tr '\n' ' '
    echo
done >"$work/prompts"
"$ballast" run -n 4 --model $model --prompts "$work/prompts" --max-tokens 24 --batch 2 --slots 40 >"$work/reference" 2>/dev/null
map() { # which experts every rank holds, whatever their slots
    "$ballast" drain --json --socket "$socket" | tr -d ' \n' | grep -oE '\[[0-9,-]+\]' | tr -d '[]' |
        while read -r rank; do tr , '\n' <<<"$rank" | sort -n | tr '\n' ' '; echo; done
    "$ballast" drain --release --socket "$socket" >/dev/null
}
check "a cluster starts" serve --batch 2 --slots 40 --spares 4 --window 32 --journal "$work/journal"
map >"$work/before"
check "24 rows of ten experts" [ "$(grep -cE '^([0-9]+ ){10}$' "$work/before")" = 24 ]
"$BUILD/tests/tools/lying_socket" "$socket" "$work/lies" &
liar_pid=$!
controlled() {
    eventually test -S "$work/lies"
    timeout 120 "$ballast" rebalance --auto --moves 1 --rest 0 --socket "$work/lies" >"$work/lines" 2>"$work/lines.err"
}
check "a controller that is lied to moves" controlled
sed 's/^/# /' "$work/lines" "$work/lines.err"
check "the move promised less imbalance" grep -qE ': move: imbalance ' "$work/lines"
back() { grep -qE '^window [0-9]+: roll back: imbalance [0-9.]+ for 3 windows, predicted [0-9.]+, before [0-9.]+$' "$work/lines" &&
    grep -qE '^window [0-9]+: rolled back: [0-9]+ copies are where they were before move 1$' "$work/lines"; }
check "it is taken back, with figures" back
worse() { awk '/: roll back:/ { for (i = 1; i < NF; i++) { if ($i == "imbalance") r = $(i + 1) + 0; if ($i == "predicted") p = $(i + 1) + 0 }
    exit !(r > 1.15 * p) }' "$work/lines"; }
check "because the ranks measured markedly more than was promised" worse
map >"$work/after"
check "every rank holds what it held before" cmp "$work/before" "$work/after"
check "by two transactions, both in the journal" [ "$(grep -c '"what":"end"' "$work/journal")" = 2 ]
kill $liar_pid
wait $liar_pid 2>/dev/null
liar_pid=
check "the run ends well" stop
check "every token equals the run without moves" tokens_equal
finish
