#!/bin/bash
# Lost ranks come back to a running cluster as new processes: they are let in, planned onto and lost again,
# and nobody's answers change.
. tests/tap.sh
. tests/lost.sh
back=() # processes that have come back
trap 'kill -KILL $run_pid "${back[@]}" 2>/dev/null; rm -rf "$work"' EXIT

join() { # RANK OPTION...: in the background, its texts in $work/out.RANK
    "$ballast" run --join "$socket" --rank "$1" --model $model --prompts "$work/prompts" --max-tokens 24 --batch 2 \
        --repeat 100000 --spares 4 "${@:2}" >"$work/out.$1" 2>"$work/err.$1" &
    back[$1]=$!
}
came_back() { [ "$(cat "$work"/err* | grep -c "rank $1 is back from step")" -ge "$2" ] || ! kill -0 "${back[$1]}" 2>/dev/null; }
is_back() { # RANK [TIMES]
    eventually came_back "$1" "${2:-1}" && kill -0 "${back[$1]}" && return 0
    sed 's/^/# /' "$work"/err*
    return 1
}
refused() { # TEXT OPTION...
    ! "$ballast" run --join "$socket" --model $model --prompts "$work/prompts" "${@:2}" >/dev/null 2>"$work/refusal" &&
        grep -qE "$1" "$work/refusal" && [ "$(wc -l <"$work/refusal")" -eq 1 ]
}
# Stopped, the run says whom the launcher saw die, and who came back ends with it.
stop_all() { # BACK...
    local ended=0
    kill -TERM $run_pid
    ends
    [ $code -eq 1 ] || ended=1
    for rank in "$@"; do
        wait "${back[$rank]}" || ended=1
        unset "back[$rank]"
    done
    rm -f "$work"/err.*
    return $ended
}
others() { echo "0 1 2 3" | tr -d "$1"; }
returned_is_exact() { survivors_are_exact "$(others "$1")" "${2:-1}" "$work/out.$1"; }
plan() { # NAME OPTION...
    "$ballast" plan --trace "$work/trace.blt" --model $model/config.json --topology hgx-h100 --ranks 4 --slots 64 \
        "${@:2}" -o "$work/$1" >/dev/null 2>&1
}
apply() { timeout 120 "$ballast" apply --force --wait "$work/$1" --socket "$socket" >/dev/null 2>"$work/apply.err" || { sed 's/^/# /' "$work/apply.err"; return 1; }; }

"$ballast" run -n 4 --model $model --prompts "$work/prompts" --max-tokens 24 --record "$work/trace.blt" >/dev/null 2>&1
check "a plan for all ranks" plan whole.json

# ---- one comes back, then another -----------------------------------------------------------------

check "a cluster starts" start 100000 --slots 64 --spares 4 --journal "$work/journal"
check "who lives cannot be replaced" refused "rank 2 lives; only a lost rank can come back" --rank 2 --spares 4
check "nor somebody who is not there" refused "the cluster has ranks 0 to 3, no rank 4" --rank 4 --spares 4
check "nor by a process that keeps other spares" refused "keep 4 spares each, this one would keep 1; start it with --spares 4" --rank 2 --spares 1
check "a rank is needed" refused "join SOCKET and --rank R go together"
lose KILL 2
check "rank 2 is lost" lost_are 2
differs() { # TEXT MAX_TOKENS BATCH OPTION...
    refused "differs in $1" --rank 2 --spares 4 --repeat 100000 --max-tokens "$2" --batch "$3" "${@:4}"
}
tuned() {
    local model=$work/tuned
    differs "the checkpoint of --model" 24 2
}
check "what it is to serve must be the same" differs "what to serve" 23 2
check "and how" differs "how to serve it" 24 3
check "and how rows travel" differs "how rows travel" 24 2 --dispatch dedup-rank
check "and how load is counted" differs "--window" 24 2 --window 7
mkdir "$work/tuned"
cp "$model"/*.safetensors "$work/tuned"
sed -E 's/("rope_theta": *)[0-9.]+/\11234/' "$model/config.json" >"$work/tuned/config.json"
check "and the checkpoint" tuned
join 2
check "rank 2 is let in" is_back 2
check "nobody is lost then" lost_are ""
check "a plan gives it experts" apply whole.json
check "which are in force" sh -c "'$ballast' apply --force '$work/whole.json' --socket '$socket' | grep -qx '0 moves'"
lose KILL 1
check "another rank is lost" lost_are 1
join 1
check "and comes back" is_back 1
kill -KILL "${back[2]}"
unset "back[2]"
check "who came back is lost again" lost_are 2
join 2
check "and comes back again" is_back 2 2
check "the journal tells" sh -c "[ \$(grep -c '\"what\":\"return\"' '$work/journal') -eq 3 ] && [ \$(grep -c '\"what\":\"loss\"' '$work/journal') -eq 3 ]"
check "they serve on" serve_on
check "all end together" stop_all 1 2
check "those who stayed answered as if nothing had happened" survivors_are_exact "1 2"
check "as did those who came back" returned_is_exact 1
check "each of them" returned_is_exact 2

# ---- the rank that leads, while experts move by themselves ------------------------------------------

check "a cluster starts again" start 100000 --slots 64 --spares 4 --window 32
lose KILL 0
check "the rank that leads is lost" lost_are 0
join 0 --window 32
check "and comes back" is_back 0
check "the cluster is whole" lost_are ""
serve_on 3 # who has just come in counts as one of them after a step
leads() { # the operator is answered by it: it has sent nothing so far
    timeout 120 "$ballast" rebalance --auto --quiet --moves 1 --rest 0 --windows 1 --socket "$socket" >"$work/auto" 2>&1 &&
        grep -q ': move: .* moves' "$work/auto" && grep -q ': realised' "$work/auto" && return 0
    sed 's/^/# /' "$work/auto"
    return 1
}
if [[ $BUILD == *address* || $BUILD == *undefined* ]]; then
    skip "and answers: a policy gives it experts" "instrumented, that takes minutes"
else
    check "and answers: a policy gives it experts" leads
fi

# ---- two at once, one killed as it knocks -------------------------------------------------------------

lose KILL 2 3
check "two more are lost" lost_are "2,3"
join 3 --window 32
kill -KILL "${back[3]}"
wait "${back[3]}" 2>/dev/null
join 2 --window 32
join 3 --window 32
check "and come back at once, though one was killed on its way before" eval 'is_back 2 && is_back 3'
check "nobody is lost" lost_are ""
check "they serve on" serve_on
check "these end together as well" stop_all 0 2 3
check "who stayed answered as if nothing had happened" survivors_are_exact "0 2 3"
for rank in 0 2 3; do check "as did rank $rank, which came back" returned_is_exact $rank; done

# ---- a rank that stood still ----------------------------------------------------------------------------

check "a third cluster starts" start 100000 --slots 64 --spares 4
lose STOP 3
check "a rank that is stopped is lost" lost_are 3
join 3
check "another takes its place" is_back 3
kill -CONT "${ranks[3]}"
gone() { [ ! -e "/proc/${ranks[3]}" ]; }
check "going on, the stopped one finds that it is out, and ends" eventually gone
check "the cluster has lost nobody" lost_are ""
check "they serve on" serve_on
check "the end" stop_all 3
check "who stayed answered as if nothing had happened" survivors_are_exact 3
check "as did the one who came" returned_is_exact 3
finish
