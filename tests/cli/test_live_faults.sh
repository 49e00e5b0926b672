#!/bin/bash
# What goes wrong around a cluster that moves: operators by the hundred, processes that stop, plans and
# files that are none. Each fault here was found by breaking it.
. tests/tap.sh
. tests/live.sh

plan() { "$BUILD/tests/tools/random_plan" "$1" $model 4 16 0 >"$work/plan.$1" && echo "$work/plan.$1"; }
start() { serve --batch 2 --slots 64 "$@"; }
moving() { [ "$(status outcome)" = running ] && [ "$(status moves_done)" -ge 2 ]; }
ranks() { cat /proc/$run_pid/task/*/children; }
for prompt in c english french html json python; do
    [ -s "$work/prompts" ] && echo ---
    head -c 60 $model/prompts/$prompt.txt
    echo
done >"$work/prompts"
"$ballast" run -n 4 --model $model --prompts "$work/prompts" --max-tokens 24 --slots 64 >"$work/reference" 2>/dev/null

# ---- what is none -------------------------------------------------------------------------------

touch "$work/plain"
check "a file is no socket" fails_with "plain: is no socket" "$ballast" status --socket "$work/plain"
mkfifo "$work/fifo"
for journal in "$work/fifo" /dev/full /dev/null; do
    check "$(basename $journal) is no journal" fails_with "is no file; a journal is one that grows" timeout 10 "$ballast" run -n 2 \
        --model $model --prompts "$work/prompts" --spares 1 --socket "$work/other" --journal "$journal"
done
check "a cluster starts" start --spares 2 --move-bytes 16K
named() {
    "$BUILD/tests/tools/random_plan" 1 "$work/large-moe" 4 16 0 >"$work/named" &&
        "$ballast" apply "$work/named" --dry-run --socket "$socket" 2>&1 >/dev/null |
        grep -q "^ballast apply: the plan names the model large-moe, the cluster serves tiny-moe$"
}
mkdir "$work/large-moe"
cp $model/*.json "$work/large-moe"
check "a plan of the same shape that names another model is worth a word" named

# ---- many operators -----------------------------------------------------------------------------

storm() {
    local pids=() failed=0 pid
    "$ballast" apply "$(plan 1)" --force --wait --socket "$socket" >"$work/applied" 2>"$work/applied.err" &
    local waiting=$!
    eventually moving
    for _ in $(seq 300); do
        "$ballast" status --socket "$socket" >/dev/null 2>>"$work/storm.err" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || failed=$((failed + 1)); done
    sort "$work/storm.err" | uniq -c | sed 's/^/# /'
    wait $waiting && [ $failed -eq 0 ]
}
check "300 at once are all answered, and the one who waits for its move is not dropped" storm

# ---- interrupts ---------------------------------------------------------------------------------

interrupted() {
    "$ballast" apply "$(plan 2)" --force --wait --socket "$socket" >/dev/null 2>"$work/int.err" &
    local pid=$!
    eventually moving
    kill -TERM $pid
    wait $pid
    [ $? -eq 1 ] && grep -q "apply: no longer waiting; the move goes on$" "$work/int.err" &&
        [ "$(status outcome)" = running ]
}
check "whoever waits may leave: the move goes on" interrupted
check "and ends" sh -c "'$ballast' drain --socket '$socket' >/dev/null"
check "moves are let in again" sh -c "'$ballast' drain --release --socket '$socket' >/dev/null"
asleep() { # all ranks stand still, for less than they count as lost
    local all pid rc
    all=$(ranks)
    "$ballast" rebalance --auto --socket "$socket" >/dev/null 2>"$work/reb.err" &
    pid=$!
    sleep 0.5
    kill -STOP $all
    sleep 0.3
    kill -TERM $pid
    timeout 60 tail --pid=$pid -f /dev/null
    rc=$?
    kill -CONT $all
    wait $pid && [ $rc -eq 0 ]
}
check "a controller ends when told to, also while the ranks stand still" asleep

# ---- somebody else ------------------------------------------------------------------------------

if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
    chmod 711 "$work"
    cp "$ballast" "$work/ballast"
    chmod 755 "$work/ballast"
    other() { fails_with "only the user who started a cluster may speak to it" setpriv --reuid 65534 --clear-groups "$work/ballast" status --socket "$socket"; }
    check "another user's cluster is out of reach, and the message says so" other
else
    skip "another user's cluster is out of reach" "needs root and setpriv"
fi

# ---- a leader that stops ------------------------------------------------------------------------

# the socket is still held by the stopped process
rank_0_is_lost() { timeout 5 "$ballast" status --socket "$socket" 2>/dev/null | grep -q '^lost      rank 0$'; }
first=$(ranks)
first=${first%% *}
kill -STOP "$first"
check "the next rank answers operators for a stopped leader" eventually rank_0_is_lost
kill -CONT "$first"
gone() { ! kill -0 "$first" 2>/dev/null; }
check "the leader stops serving when it wakes up" eventually gone
check "and leaves the socket alone" eventually rank_0_is_lost
ends() { # having lost a rank
    kill -TERM $run_pid
    wait $run_pid
    [ $? -eq 1 ] && run_pid=
}
check "the run ends" ends
check "every token equals the run without moves" tokens_equal
check "a cluster without spares starts" start --spares 0 --window 8
check "a controller says at once that nothing can move there" \
    fails_with "no spare buffers, so that nothing can move" timeout 60 "$ballast" rebalance --auto --quiet --socket "$socket"
finish
