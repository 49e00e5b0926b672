#!/bin/bash
# What happens to hosts, on four of them (network namespaces with shaped links), one rank on each, as
# torchrun would start them: a rank is killed or stopped, a link goes down, the network falls into halves,
# links are slow; mostly while experts move. The survivors name the lost within the stated time, and what
# they answer is what one process answers.
. tests/tap.sh
. tests/hosts.sh
. tests/live.sh
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE \
    BALLAST_RENDEZVOUS

# Instrumented ranks are too slow for two seconds of silence.
if [[ $BUILD == *address* ]] || ! hosts_work; then
    for name in "a rank is killed" "a rank is stopped" "a link goes down" "the network falls into halves" \
        "the leader is cut off" "links are slow"; do
        skip "$name" "needs root, network namespaces and no sanitizer"
    done
    finish
fi
pids=()
trap 'kill -9 "${pids[@]}" 2>/dev/null; hosts_down; rm -rf "$work"' EXIT
for text in python french json chinese; do
    for i in 0 1 2; do
        [ -s "$work/prompts" ] && echo ---
        printf '#%s\n' "$(tail -c +$((i * 60 + 1)) "$model/prompts/$text.txt" | head -c 60 | tr -d '\n')"
    done
done >"$work/prompts"
"$ballast" run -n 1 --model $model --prompts "$work/prompts" --max-tokens 24 >"$work/reference"
for i in 1 2 3; do "$BUILD/tests/tools/random_plan" $i $model 4 16 >"$work/plan.$i"; done

is_serving() { [ "$(status state 2>/dev/null)" = stable ] && [ "$(status step)" -gt 8 ]; }
# Rank I on host I; returns when they serve.
start() { # SPARES OPTION...
    local rank
    rm -f "$work"/err.? "$work"/out.?
    for rank in 0 1 2 3; do
        ip netns exec "$(hosts_name $rank)" env RANK=$rank WORLD_SIZE=4 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 \
            "$ballast" run --model $model --prompts "$work/prompts" --max-tokens 24 --repeat 100000 --batch 2 \
            --slots 64 --socket "$socket" --spares "$@" >"$work/out.$rank" 2>"$work/err.$rank" &
        pids[rank]=$!
    done
    eventually is_serving
}
is_moving() { [ "$(status moves_done)" -ge 2 ]; }
moving() { # PLAN: it is being applied, in small pieces
    "$ballast" apply "$work/plan.$1" --force --socket "$socket" >/dev/null && eventually is_moving &&
        [ "$(status outcome)" = running ]
}
# Since the fault ranks LOST are lost; LEADER, the lowest of the others, says so and answers operators.
has_named() { grep -q "lost so far: rank $2;" "$work/err.$1"; }
goes_on() { [ "$(status state 2>/dev/null)" = stable ] && [ "$(status lost)" != "[]" ]; }
has_reached() { [ "$(status step)" -ge "$1" ]; } # STEP
survivors_go_on() { # LEADER LOST
    local begun=$SECONDS
    eventually has_named "$1" "$2" || return 1
    echo "# named after $((SECONDS - begun)) s or less"
    [ $((SECONDS - begun)) -lt 20 ] && eventually goes_on && # two of silence, and a busy machine's
        eventually has_reached $(($(status step) + 60)) # a text takes 24
}
# They are stopped; LEADER prints, and ends with status 1, for requests were lost.
ends_well() { # LEADER LOST
    local rank rc bad=0
    for rank in 0 1 2 3; do [[ " $2 " == *" $rank "* ]] || kill -TERM ${pids[rank]}; done
    for rank in 0 1 2 3; do
        [[ " $2 " == *" $rank "* ]] && continue
        wait ${pids[rank]}
        rc=$?
        sed "s/^/# rank $rank: /" "$work/err.$rank"
        [ $rc -eq $((rank == $1)) ] || { echo "# rank $rank: exit $rc" && bad=1; }
    done
    [ $bad -eq 0 ] && grep -qE "^ballast run: ranks? $2 (was|were) lost; the others went on" "$work/err.$1" &&
        survivors_equal "$work/out.$1" "$2"
}
# Who was cut off is too few to go on, says so and fails, by itself.
has_ended() { ! kill -0 ${pids[$1]} 2>/dev/null; }
stops_serving() { # RANK...
    local rank
    for rank in "$@"; do
        eventually has_ended "$rank" || return 1
        wait ${pids[rank]} && return 1
        sed "s/^/# rank $rank: /" "$work/err.$rank"
        grep -q "^ballast run: rank $rank stops serving: too few ranks are left to go on" "$work/err.$rank" || return 1
    done
}
all_together() { # every rank is told to stop, and rank 0 prints
    local rank bad=0
    for rank in 0 1 2 3; do kill -TERM ${pids[rank]}; done
    for rank in 0 1 2 3; do
        wait ${pids[rank]} || bad=1
        sed "s/^/# rank $rank: /" "$work/err.$rank"
    done
    [ $bad -eq 0 ] && survivors_equal "$work/out.0" ""
}

hosts_up 400mbit 200mbit 200mbit 100mbit

killed() {
    start 2 --silence 2 && kill -9 ${pids[2]} && { wait ${pids[2]} 2>/dev/null || survivors_go_on 0 2; }
}
check "a rank is killed: the others name it and go on" killed
check "and end well" ends_well 0 2

stopped() { start 2 --silence 2 --move-bytes 16K && moving 1 && kill -STOP ${pids[3]} && survivors_go_on 0 3; }
check "a rank is stopped while experts move: the others name it and go on" stopped
kill -CONT ${pids[3]}
check "the stopped one stops serving when it wakes up" stops_serving 3
check "and the others end well" ends_well 0 3

cut() { start 2 --silence 2 --move-bytes 16K && moving 2 && hosts_link 1 down && survivors_go_on 0 1; }
check "a link goes down while experts move: the others name its rank and go on" cut
check "the rank behind it stops serving" stops_serving 1
check "and the others end well" ends_well 0 1
hosts_link 1 up

# Two and two: the half with the lowest rank goes on.
halves() { start 2 --silence 2 --move-bytes 16K && moving 3 && hosts_split 2 3 && survivors_go_on 0 "2 3"; }
check "the network falls into halves while experts move: the half with the lowest rank goes on" halves
check "the other half stops serving" stops_serving 2 3
check "and what the first one answered is right" ends_well 0 "2 3"
hosts_heal

# One and three: the one that leads, and answers operators, is not the majority.
alone() { start 2 --silence 2 --move-bytes 16K && moving 1 && hosts_split 0 && survivors_go_on 1 0; }
check "the leader is cut off while experts move: the three others go on" alone
check "the leader stops serving" stops_serving 0
check "and the others end well, with another one that answers and prints" ends_well 1 0
hosts_heal
hosts_down

# Far hosts on thin links: 4 to 8 ms from one to another, and as long again for each bundle.
slow() {
    start 6 --move-bytes 128K &&
        "$ballast" apply "$work/plan.1" --force --wait --socket "$socket" >/dev/null 2>&1 && moving 2
}
if hosts_delay_works; then
    hosts_up 100mbit+2 50mbit+4 50mbit+4 100mbit+2
    check "links are slow: a plan is applied" slow
    check "and every token is right, in the middle of a move too" all_together
    hosts_down
else
    skip "links are slow: a plan is applied" "needs /dev/net/tun"
    skip "and every token is right, in the middle of a move too" "needs /dev/net/tun"
fi
finish
