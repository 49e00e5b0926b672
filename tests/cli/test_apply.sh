#!/bin/bash
# ballast apply, status, abort: experts move between real processes while they serve.
. tests/tap.sh
. tests/live.sh

plan() { # SEED [RANKS SLOTS EPOCH MODEL]: path of a random plan
    "$BUILD/tests/tools/random_plan" "$1" "${5:-$model}" "${2:-4}" "${3:-10}" "${4:-0}" >"$work/plan.$1.${4:-0}" &&
        echo "$work/plan.$1.${4:-0}"
}
apply() { "$ballast" apply --force --socket "$socket" "$@" 2>>"$work/apply.err"; }

start() { serve --batch 2 --slots 40 "$@"; }

for prompt in c english french html json python; do
    [ -s "$work/prompts" ] && echo ---
    head -c 60 $model/prompts/$prompt.txt
    echo
done >"$work/prompts"
"$ballast" run -n 4 --model $model --prompts "$work/prompts" --max-tokens 24 >"$work/reference"

# ---- twenty plans -----------------------------------------------------------------------------

check "a cluster with spares starts and answers" start --spares 9
twenty_plans() {
    for seed in $(seq 20); do
        apply "$(plan "$seed")" --wait >"$work/applied.$seed" || return 1
        [ "$(status outcome)" = moved ] || return 1
        grep -qE '^1[1-9][0-9] moves in 6 layers' "$work/applied.$seed" || return 1
    done
}
check "20 plans are applied one after another" twenty_plans
check "a plan that is in force is 0 moves" [ "$(apply "$work/plan.20.0")" = "0 moves" ]
dry_run() {
    local before after
    before=$(status move)
    apply "$(plan 21)" --dry-run >"$work/dry"
    after=$(status move)
    [ "$before" = "$after" ] && grep -q '^wave 1, layer 0: ' "$work/dry" &&
        tail -1 "$work/dry" | grep -qE '^[0-9]+ moves .* \(dry run\)$'
}
check "a dry run shows the waves and moves nothing" dry_run
apply_json() { apply "$work/plan.20.0" --json | grep -q '"moves": \?0'; }
check "apply --json answers in JSON" apply_json
status_text() { "$ballast" status --socket "$socket" | grep -q '^move 20    moved$'; }
check "status tells of the last move" status_text

# ---- refusals ---------------------------------------------------------------------------------

refused() { # TEXT PLAN
    fails_with "$1" "$ballast" apply "$2" --socket "$socket"
}
check "a plan for other ranks is refused" refused "the plan is for 3 ranks, 4 are running" "$(plan 30 3 14)"
check "a plan for other slots is refused" refused "has 10 slots, the plan fills 11" "$(plan 31 4 11)"
cat >"$work/other.json" <<END
{"name": "other", "num_hidden_layers": 6, "moe_layers": [0, 1, 2, 3, 4, 5], "num_experts": 33,
 "num_experts_per_tok": 4, "hidden_size": 64, "moe_intermediate_size": 32}
END
check "a plan for another model is refused" \
    refused "the plan is for 33 experts, top-4; the running model has 32" "$(plan 32 4 10 0 "$work/other.json")"
apply "$(plan 33 4 10 1)" --wait >/dev/null
check "a plan that follows the one in force is applied" [ "$(status epoch)" = 1 ]
check "a plan that follows another placement is stale" refused "the plan is stale: it follows epoch 0, in force is epoch 1" "$(plan 34 4 10 1)"
check "there is nothing to abort" fails_with "no move is under way" "$ballast" abort --socket "$socket"
second_run() {
    fails_with "a running cluster answers there already" "$ballast" run -n 2 --model $model \
        --prompts "$work/prompts" --socket "$socket"
}
check "a second run on the same socket is refused" second_run
check "the run ends well when it is told to" stop
check "every token equals the run without moves" tokens_equal
check "the socket is gone" [ ! -e "$socket" ]
check "without a cluster there is one line that says so" fails_with "no cluster answers there" "$ballast" status --socket "$socket"

# ---- abort ------------------------------------------------------------------------------------

check "a cluster that moves slowly starts" start --spares 1 --move-bytes 4K
four_moves() { [ "$(status moves_done)" -ge 4 ]; }
aborted() {
    apply "$(plan 40)" --wait >/dev/null &
    local waiting=$!
    eventually four_moves 2>/dev/null
    fails_with "another move is under way" "$ballast" apply "$(plan 41)" --socket "$socket" || return 1
    : >"$work/apply.err"
    "$ballast" abort --socket "$socket" || return 1
    wait $waiting && return 1
    [ "$(status state)" = stable ] && [ "$(status outcome)" = aborted ] &&
        [ "$(status moves_done)" -lt "$(status moves)" ]
}
check "abort stops the move, and the one who waits is told" aborted
check "with the reason" grep -q "aborted by the operator" "$work/apply.err"
budget() { [ "$("$ballast" status --socket "$socket" --json | grep -o '"max_step_bytes": *[0-9]*' | grep -o '[0-9]*$')" -le 4096 ]; }
check "no step sent more than its budget" budget
starts() { apply "$(plan 42)" | grep -q "moves in 6 layers"; }
check "the next plan starts" starts
check "a run that is stopped in the middle of a move ends well" stop
check "and every token equals the run without moves" tokens_equal

# ---- edges ------------------------------------------------------------------------------------

check "a cluster without spares starts" start
check "without spares a move is refused" refused "has no spare buffer" "$(plan 50)"
kill -KILL $run_pid
wait $run_pid 2>/dev/null
run_pid=
silent() { ! "$ballast" status --socket "$socket" >/dev/null 2>&1; }
eventually silent
check "a killed run leaves its socket behind" [ -S "$socket" ]
check "and the next one takes it over" start --spares 1
check "it ends well" stop
lost_server() { # the rank that serves the socket dies, its launcher does not
    start || return 1
    local ranks
    ranks=$(cat /proc/$run_pid/task/*/children)
    kill -KILL "${ranks%% *}"
    wait $run_pid
    [ $? -eq 1 ] && run_pid= && grep -q "expert [0-9]*: .* was on lost ranks alone" "$work/run.err" &&
        [ ! -e "$socket" ]
}
check "a run that lost the rank behind the socket removes it" lost_server
finish
