#!/bin/bash
# Ranks die while they serve: the others go on, and what they answer does not change.
. tests/tap.sh
. tests/lost.sh

# ---- one rank -----------------------------------------------------------------------------------

one() { # RANK
    start "$2" --slots 44 --spares 2 && lose KILL "$1" && go_on "lost so far: rank $1; 3 ranks go on"
}
check "a rank is killed, the others go on" one 2 100000
check "and answer as if nothing had happened" survivors_are_exact 2
check "the rank that leads is killed, the others go on" one 0 100000
check "and answer as if nothing had happened" survivors_are_exact 0
by_itself() { # not stopped: it ends when all requests of the living are answered
    start 4 --slots 44 --spares 2 --record "$work/trace.blt" && lose KILL 1 && ! ends &&
        grep -q "rank 1 was ended by signal 9" "$work/err"
}
check "a run that lost a rank ends by itself, and names it" by_itself
check "with every answer of the living" survivors_are_exact 1 48
# What of the broken step was recorded counts as dropped; the trace is good before and after.
check "and a trace that conserves" sh -c "'$ballast' stat '$work/trace.blt' | grep -qE '^[0-9]+ steps, .* 4 of 4 ranks'"

without_spares() { # the orphans take the slots of copies that are not the last ones
    start 100000 --slots 44 && lose KILL 2 && go_on "lost so far: rank 2; 3 ranks go on at step [0-9]+, [1-9][0-9]* experts"
}
check "with no spare buffer the others go on as well" without_spares
check "and answer as if nothing had happened" survivors_are_exact 2 1

# ---- plans after a loss --------------------------------------------------------------------------

plan() { # NAME OPTION...
    "$ballast" plan --trace "$work/trace.blt" --model $model/config.json --topology hgx-h100 --ranks 4 --slots 44 \
        "${@:2}" -o "$work/$1" >/dev/null 2>"$work/$1.err"
}
refused() { # PLAN TEXT
    ! "$ballast" apply --force "$work/$1" --socket "$socket" >/dev/null 2>"$work/refusal" && grep -qE "$2" "$work/refusal"
}
serve_without() { # RANK
    start 100000 --slots 44 --spares 2 --window 64 && lose KILL "$1" && lost_are "$1"
}
check "plans with the lost rank masked, without it, and with another one masked" eval \
    'plan masked.json --mask 2 && plan whole.json && plan other.json --mask 1'
check "a cluster goes on without rank 2" serve_without 2
check "a plan that puts experts on it is refused by rank, layer and expert" refused whole.json \
    "layer [0-9]+: expert [0-9]+: the plan puts it on rank 2, which was lost; plan with --mask 2"
check "as is one that masks a rank that lives" refused other.json "layer 0: rank 1 has 11 slots, the plan fills 0"
check "one with the lost rank masked is applied" sh -c "'$ballast' apply --force --wait '$work/masked.json' --socket '$socket' >/dev/null 2>&1"
check "and in force" sh -c "'$ballast' apply --force '$work/masked.json' --socket '$socket' | grep -qx '0 moves'"
after_plan() {
    kill -TERM $run_pid
    ends
    [ $code -eq 1 ]
}
check "the run ends" after_plan
check "and the others answered as if nothing had happened" survivors_are_exact 2 1

by_policy() { # it plans on the ranks that are left, and what it plans is moved
    serve_without 1 || return 1
    timeout 60 "$ballast" rebalance --auto --quiet --moves 1 --rest 0 --socket "$socket" >"$work/auto" 2>&1
    grep -qE '^window [0-9]+: move: .* [0-9]+ moves' "$work/auto" && grep -qE '^window [0-9]+: realised' "$work/auto" && return 0
    sed 's/^/# /' "$work/auto"
    return 1
}
check "rebalance --auto plans for the ranks that are left" by_policy
check "that run ends, too" after_plan
check "and the others answered as if nothing had happened" survivors_are_exact 1 1

# ---- in the middle of a move --------------------------------------------------------------------
# Plans follow each other as fast as they can, a few bytes per step; ranks die at some phase of one.

moving() { # RANK: of 64 slots, so that everything can be covered by two ranks
    local seed=0
    start 100000 --slots 64 --spares 1 --move-bytes 32K || return 1
    (while [ "$(status lost)" = "[]" ]; do
        seed=$((seed + 1))
        "$BUILD/tests/tools/random_plan" $((seed + 100)) $model 4 16 0 >"$work/plan"
        timeout 20 "$ballast" apply --force "$work/plan" --socket "$socket" --wait >/dev/null 2>&1
    done) &
    local mover=$!
    sleep 0.$((RANDOM % 8 + 1))
    kill -KILL "${ranks[$1]}"
    go_on "lost so far: rank $1; 3 ranks go on"
    local went=$?
    kill $mover 2>/dev/null
    wait $mover 2>/dev/null
    return $went
}
for rank in 3 0 1; do
    check "rank $rank dies while experts move, the others go on" moving $rank
    check "and answer as if nothing had happened" survivors_are_exact $rank 1
done

# ---- more than one ------------------------------------------------------------------------------

two() { # one after the other; rank 0 stays, so that half of four is enough
    start 100000 --slots 64 --spares 2 --journal "$work/journal" && lose KILL 3 && sleep 0.5 && lose KILL 2 &&
        go_on "lost so far: rank 2 3; 2 ranks go on"
}
check "two ranks die one after the other" two
check "and the others answer as if nothing had happened" survivors_are_exact "2 3" 1
check "the journal tells" [ "$(grep -c '"what":"loss"' "$work/journal")" -eq 2 ]

answers() { "$ballast" status --socket "$socket" 2>/dev/null | grep -q '^lost      rank 0$'; }
operator() {
    start 100000 --slots 64 --spares 2 && lose KILL 0 && eventually answers || return 1
    serve_on
    kill -TERM $run_pid
    ends
    true
}
check "the next rank answers the operator when the first is lost" operator
check "and what was decoded is right" survivors_are_exact 0 1

stopped() { # it is not dead, it stands still; the others notice by its silence
    start 100000 --slots 64 --spares 2 && lose STOP 3 && go_on "lost so far: rank 3; 3 ranks go on"
}
check "a rank that is stopped counts as lost, and does not hold up the end" stopped
check "the others answer as if nothing had happened" survivors_are_exact 3 1

uncoverable() { # 32 experts, 24 slots left
    start 100000 --slots 32 --spares 2 && lose KILL 1 && ! ends &&
        grep -qE "layer [0-9]+: expert [0-9]+: rank [0-9]+: was on lost ranks alone, and no living rank has a slot left" "$work/err" &&
        [ "$(wc -l <"$work/err")" -eq 1 ]
}
check "what cannot be covered is named" uncoverable
minority() {
    start 100000 --slots 64 --spares 2 && lose KILL 0 1 2 && ! ends && grep -q "too few ranks are left" "$work/err"
}
check "a minority does not go on" minority
finish
