#!/bin/bash
# ballast rebalance --auto, run --auto, drain, the journal: a running cluster that rebalances itself.
. tests/tap.sh
. tests/live.sh

prompts() { # TOPIC COUNT: prompts of 60 bytes from one text
    local i
    for ((i = 0; i < $2; i++)); do
        if [ $i -gt 0 ] || [ -s "$work/prompts" ]; then echo ---; fi
        printf '#%s\n' "$(tail -c +$((i % 12 * 60 + 1)) "$model/prompts/$1.txt" | head -c 60 | tr -d '\n')"
    done >>"$work/prompts"
}
start() { serve --batch 4 --slots 40 "$@"; }

# ---- a topic shift ------------------------------------------------------------------------------
# Half of the prompts are Python, then French: other experts. The cluster follows, no token changes,
# and what moves promise comes true.

topic_shift() { # RANKS SLOTS BATCH WINDOW FIRST SECOND: so many prompts of the two topics
    rm -f "$work/prompts"
    prompts python "$5"
    prompts french "$6"
    "$ballast" run -n "$1" --model $model --prompts "$work/prompts" --max-tokens 40 --batch "$3" --slots "$2" >"$work/still" 2>/dev/null &&
        "$ballast" run -n "$1" --model $model --prompts "$work/prompts" --max-tokens 40 --batch "$3" --slots "$2" \
            --spares 2 --auto --window "$4" --socket "$socket" >"$work/moved" 2>"$work/auto.err"
}
moves() { grep -c ': move: ' "$work/auto.err"; }
# Moves are some seconds apart. Where the second topic is over before that, there must be more of it.
shifts() {
    local first=$5 count
    for count in $((3 * first / 2)) $((8 * first)) $((32 * first)); do
        topic_shift "$@" $count || return 1
        [ "$(moves)" -lt 2 ] || return 0
    done
}
promise() { # realised within 5 % of predicted, both printed; a plan made in the middle of the shift within 12 %
    grep -oE 'realised [0-9.]+, predicted [0-9.]+ \([+-][0-9.]+ %\)' "$work/auto.err" >"$work/kept"
    [ -s "$work/kept" ] && awk -F'[(%]' '{ x = $2 < 0 ? -$2 : $2; if (x > 12) bad = 1; if (x <= 5) kept = 1 } END { exit bad || !kept }' "$work/kept"
}
better() { awk '/realised/ { for (i = 1; i < NF; i++) { if ($i == "realised") r = $(i + 1) + 0; if ($i == "before") b = $(i + 1) + 0 }
    if (r >= b) bad = 1 } END { exit bad }' "$work/auto.err"; }
follows() { # RANKS SLOTS BATCH WINDOW PROMPTS
    check "$1 ranks: run --auto serves through a topic shift" shifts "$@"
    sed 's/^/# /' "$work/auto.err"
    check "every token equals the run without moves" cmp "$work/still" "$work/moved"
    check "it moved for the first topic and for the second" [ "$(moves)" -ge 2 ]
    check "and did not swing" [ "$(moves)" -le 4 ]
    check "the realised imbalance is within 5 % of the predicted one" promise
    check "and below the one before the move" better
}
# Windows of the same number of tokens on more ranks are less sure: longer ones.
if [[ $BUILD == *address* || $BUILD == *undefined* ]]; then
    skip "4 and 8 ranks follow a topic shift" "instrumented, that takes minutes"
    prompts python 96
    prompts french 96
else
    follows 4 40 4 64 288
    follows 8 64 2 128 576
fi

# ---- from outside, with a journal -----------------------------------------------------------------

check "a cluster with a journal starts" start --spares 2 --journal "$work/journal" --window 32
outside() {
    "$ballast" rebalance --auto --moves 1 --rest 0 --socket "$socket" >"$work/lines" 2>"$work/lines.err" || return 1
    grep -qE '^window [0-9]+: wait: imbalance 1\.[0-9]+ in 1 of 2 windows$' "$work/lines" &&
        grep -qE '^window [0-9]+: move: imbalance .* gain .* cost .*; [0-9]+ moves' "$work/lines" &&
        grep -qE '^window [0-9]+: realised .*, predicted ' "$work/lines"
}
check "rebalance --auto moves a running cluster and ends after a move" outside
shows() { "$ballast" status --socket "$socket" | grep -qE '^imbalance before 1\.[0-9]+ now 1\.[0-9]+ predicted 1\.[0-9]+$' &&
    "$ballast" status --socket "$socket" | grep -qE "by +user $(id -u), process [0-9]+"; }
check "status shows imbalance before, now and predicted, and who asked" shows
worse() {
    "$BUILD/tests/tools/random_plan" 3 $model 4 10 0 >"$work/random.json"
    fails_with "does not pay: imbalance" "$ballast" apply "$work/random.json" --socket "$socket"
}
check "a plan that does not pay is refused with the figures" worse
check "with --force it is applied" "$ballast" apply "$work/random.json" --socket "$socket" --force --wait
dry() {
    "$BUILD/tests/tools/random_plan" 4 $model 4 10 0 >"$work/dry.json"
    "$ballast" apply "$work/dry.json" --socket "$socket" --dry-run --topology hgx-h100:nodes=1 >"$work/dry" &&
        grep -qE '^[0-9]+ rounds, at most [0-9]+ in a wave$' "$work/dry" &&
        grep -qE '^[0-9]+ bytes within ' "$work/dry" &&
        grep -qE '^[0-9.e-]+ s on the links, round by round \(modelled' "$work/dry" &&
        grep -qE '^longest step .* \(modelled' "$work/dry"
}
check "a dry run tells rounds, bytes per domain, time and longest step" dry

# ---- drain ----------------------------------------------------------------------------------------

check "drain" [ "$("$ballast" drain --socket "$socket")" = "drained, epoch 0" ]
check "status says so" sh -c "'$ballast' status --socket '$socket' | grep -q '^state     stable, drained$'"
check "no move starts" fails_with "is drained by process" "$ballast" apply "$work/dry.json" --force --socket "$socket"
check "drain --json prints the map" sh -c "'$ballast' drain --json --socket '$socket' | grep -q '\"slots\"'"
check "until it is released" "$ballast" drain --release --socket "$socket"
check "then moves start" "$ballast" apply "$work/dry.json" --force --wait --socket "$socket"
"$ballast" drain --json --socket "$socket" | tr -d ' \n' | grep -o '"slots":[^"]*' >"$work/map.before"

# ---- metrics --------------------------------------------------------------------------------------

once() {
    "$ballast" metrics --once --socket "$socket" >"$work/metrics" &&
        grep -q '^ballast_up 1$' "$work/metrics" && grep -q '^ballast_state{state="stable"} 1$' "$work/metrics" &&
        grep -qE '^ballast_imbalance{when="now"} 1\.' "$work/metrics" &&
        grep -qE '^ballast_layer_imbalance{layer="5"} 1' "$work/metrics" &&
        grep -q '^ballast_move_outcome{outcome="moved"} 1$' "$work/metrics" &&
        ! grep -vE '^(# (HELP|TYPE) ballast_[a-z_]+ .+|ballast_[a-z_]+(\{[a-z]+="[^"]*"\})? [0-9.e+-]+)$' "$work/metrics"
}
check "metrics are what Prometheus reads" once
connect() { { exec 3<>"/dev/tcp/127.0.0.1/$1"; } 2>/dev/null; }
http() {
    local port=$((20000 + RANDOM % 20000)) got= server
    "$ballast" metrics --socket "$socket" --listen 127.0.0.1:$port 2>/dev/null &
    server=$!
    eventually connect $port
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    got=$(timeout 120 cat <&3)
    exec 3>&-
    kill $server
    wait $server
    [[ $got == *"200 OK"* && $got == *"ballast_up 1"* ]]
}
check "over HTTP too" http
check "an address that is none is refused" fails_with "wants an IPv4 address and a port" "$ballast" metrics --listen here
down() { [ "$("$ballast" metrics --once --socket "$work/nobody" | grep -c '^ballast_up 0$')" -eq 1 ]; }
check "without a cluster they say so" down

# ---- restart --------------------------------------------------------------------------------------

kill -KILL $run_pid
wait $run_pid 2>/dev/null
run_pid=
printf '0123456789abcdef {"what":"wa' >>"$work/journal" # torn off by a crash
check "after a crash the journal tells what was decided" grep -q '"what":"end"' "$work/journal"
check "a run starts where it left off" start --spares 2 --journal "$work/journal"
check "and says so" grep -q "going on from move" "$work/run.err"
check "a torn record is cut" grep -q "the last record was torn" "$work/run.err"
same_map() {
    "$ballast" drain --json --socket "$socket" | tr -d ' \n' | grep -o '"slots":[^"]*' >"$work/map.after"
    cmp "$work/map.before" "$work/map.after"
}
check "with the same map" same_map
second() { fails_with "another run writes this journal" "$ballast" run -n 2 --model $model --prompts "$work/prompts" \
    --spares 1 --slots 40 --socket "$work/other" --journal "$work/journal"; }
check "a journal serves one run at a time" second
check "it ends well" stop
finish
