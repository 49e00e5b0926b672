#!/bin/bash
# Real processes under seeded misfortune: an operator applies plan after plan, a controller moves by
# itself, and meanwhile ranks are killed or stopped, moves aborted, drained and released, controllers
# killed, garbage sent. Whatever comes out of the run equals the run without moves, and it ends when told
# to. BALLAST_CHAOS_SEEDS="1 2 3" chooses others.
. tests/tap.sh
. tests/live.sh
controller=
trap 'kill -KILL $run_pid $controller 2>/dev/null; rm -rf "$work"' EXIT

head -c 60 $model/prompts/english.txt >"$work/prompts"
"$ballast" run -n 4 --model $model --prompts "$work/prompts" --max-tokens 24 --slots 64 >"$work/reference" 2>/dev/null
for i in 1 2 3 4 5; do "$BUILD/tests/tools/random_plan" $i $model 4 16 >"$work/plan.$i"; done

start() { serve --batch 2 --slots 64 --journal "$work/journal" --window 16 "$@"; }
watch() {
    timeout 60 "$ballast" rebalance --auto --rest 0 --socket "$socket" >/dev/null 2>&1 &
    controller=$!
}
operate() {
    local n
    for n in 1 2 3 4 5 6; do
        timeout 20 "$ballast" apply "$work/plan.$((1 + RANDOM % 5))" --force --wait --socket "$socket"
    done >/dev/null 2>&1
}
misfortune() {
    local victim=${ranks[$((RANDOM % 4))]}
    sleep 0.$((RANDOM % 10))
    case $((RANDOM % 7)) in
    0)
        [ -n "$killed" ] && return
        killed=$victim
        kill -KILL "$victim"
        ;;
    1)
        kill -STOP "$victim"
        sleep 0.$((RANDOM % 10))
        kill -CONT "$victim"
        ;;
    2) "$ballast" abort --socket "$socket" ;;
    3)
        timeout 10 "$ballast" drain --socket "$socket"
        "$ballast" drain --release --socket "$socket"
        ;;
    4)
        kill -KILL $controller
        watch
        ;;
    5)
        kill -STOP $run_pid
        sleep 0.2
        kill -CONT $run_pid
        ;;
    6) for _ in 1 2 3 4 5 6 7 8; do "$ballast" status --socket "$socket" & done ;;
    esac >/dev/null 2>&1
}
chaos() { # SEED
    local operator n rc
    RANDOM=$1
    rm -f "$work/journal"
    killed=
    start --spares $((1 + RANDOM % 3)) --move-bytes $((4096 << (RANDOM % 4))) || return 1
    read -r -a ranks <<<"$(cat /proc/$run_pid/task/*/children)"
    operate &
    operator=$!
    watch
    for n in 1 2 3 4 5 6; do misfortune; done
    "$ballast" status --socket "$socket" | sed -n 's/^\(move\|lost\) .*/# &/p'
    kill -TERM $run_pid
    timeout 60 tail --pid=$run_pid -f /dev/null || return 1
    wait $run_pid
    rc=$?
    kill $operator $controller 2>/dev/null
    wait $operator $controller 2>/dev/null
    [ $rc -eq $([ -n "$killed" ] && echo 1 || echo 0) ] || { sed 's/^/# /' "$work/run.err"; return 1; }
}
for seed in ${BALLAST_CHAOS_SEEDS:-2 3}; do
    check "seed $seed: the run ends when told to" chaos "$seed"
    check "and every token equals the run without moves" tokens_equal
done
finish
