#!/bin/bash
# A foreign engine (examples/embed.c) linked with libballast: plans are applied and weights reloaded
# while its four processes serve, and every row they compute stays exact.
. tests/tap.sh
socket=$work/s
pids=()
trap 'kill -KILL "${pids[@]}" 2>/dev/null; rm -rf "$work"' EXIT

cat >"$work/model.json" <<'END'
{"name": "embed", "num_hidden_layers": 5, "moe_layers": [3, 4], "num_experts": 8, "num_experts_per_tok": 2,
 "hidden_size": 64, "moe_intermediate_size": 32}
END
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
. tests/status.sh

# start PROGRAM OPTION...: four ranks, launched as torchrun would.
start() {
    local port rank
    [ ${#pids[@]} -eq 0 ] || { kill -KILL "${pids[@]}"; wait "${pids[@]}"; } 2>/dev/null
    port=$(free_port)
    rm -f "$work"/network "$work"/err.? "$work"/out.?
    pids=()
    for rank in 0 1 2 3; do
        RANK=$rank WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            "$BUILD/examples/$1" "${@:2}" "$work/network" "$socket" >"$work/out.$rank" 2>"$work/err.$rank" &
        pids+=($!)
    done
    eventually grep -qs serving "$work/err.0" && return 0
    cat "$work"/err.*
    return 1
}
stop() { # the first rank that lives decides
    local pid rc=0
    kill -TERM "${pids[0]}"
    for pid in "${pids[@]}"; do
        wait "$pid" || rc=1
    done
    pids=()
    [ $rc -eq 0 ] || sed 's/^/# /' "$work"/err.* "$work"/out.*
    return $rc
}
plan() { # SEED: a plan of its own
    "$ballast" synth --model "$work/model.json" --steps 20 --tokens-per-step 256 --ranks 4 --seed "$1" -o "$work/t.$1.blt" &&
        "$ballast" plan --trace "$work/t.$1.blt" --model "$work/model.json" --topology hgx-h100 --ranks 4 --slots 12 \
            --seed "$1" -o "$work/plan.$1.json"
} >/dev/null 2>>"$work/plan.err"
apply() { "$ballast" apply --force --socket "$socket" --wait "$work/plan.$1.json" >/dev/null 2>>"$work/apply.err"; }
# The slots a plan gives to a layer, rank by rank; within a rank in any order.
slots_of_plan() { python3 -c '
import json, sys
for l in json.load(open(sys.argv[1]))["layers"]:
    print("layer", l["layer"], [sorted(r) for r in l["slots"]])' "$1"; }
slots_served() { # FILE
    python3 -c '
import sys
for line in open(sys.argv[1]):
    if line.startswith("layer"):
        head, tail = line.split(":")
        s = [int(x) for x in tail.split()]
        print(head, [sorted(s[r * 3:r * 3 + 3]) for r in range(4)])' "${1:-$work/out.0}"; }
counts() { sed -n "s/.* \([0-9]*\) $1.*/\1/p" "$work"/out.?; }

check "plans for the engine's model" eval 'plan 1 && plan 2 && plan 3'

moves() { # PROGRAM OPTION...
    start "$@" || return 1
    for seed in 1 2 3 1 2; do
        apply $seed || { tail -3 "$work/apply.err"; return 1; }
    done
    stop || return 1
    sed 's/^/# /' "$work/out.0"
    diff <(slots_of_plan "$work/plan.2.json") <(slots_served) || return 1
    [ "$(counts 'wrong' | sort -u)" = 0 ] && [ "$(counts commits | sort -n | head -1)" -ge 5 ]
}
check "five plans, every row exact, in the end the last plan's placement" moves embed
check "the same with the static library" moves embed_static
check "the same by pointers" moves embed --pointers

reloads() { # weights change while nothing moves, in the middle of moves, and after them
    local n
    start embed || return 1
    for n in 1 2 3 4 5 6 7 8; do
        kill -USR1 "${pids[0]}"
        "$ballast" apply --force --socket "$socket" "$work/plan.$((n % 3 + 1)).json" >/dev/null 2>>"$work/apply.err"
        sleep 0.0$((n % 4))1
        kill -USR1 "${pids[0]}"
        sleep 0.05
    done
    eventually is_stable
    apply 3 || { tail -3 "$work/apply.err"; return 1; }
    stop || return 1
    sed 's/^/# /' "$work/out.1"
    diff <(slots_of_plan "$work/plan.3.json") <(slots_served) || return 1
    [ "$(counts wrong | sort -u)" = 0 ] && [ "$(counts reloads | sort -u | wc -l)" -eq 1 ] && [ "$(counts reloads | head -1)" -ge 8 ]
}
check "weights are reloaded under bl_drain() while plans are applied" reloads

automatic() { # the engine's own counts become windows of load, and --auto moves by them
    start embed || return 1
    timeout 60 "$ballast" rebalance --auto --moves 1 --windows 1 --trigger 1.0001 --margin 1 --rest 0 --socket "$socket" \
        >"$work/auto.out" 2>"$work/auto.err"
    local rc=$?
    sed 's/^/# /' "$work/auto.out" "$work/auto.err" | head -5
    stop && [ $rc -eq 0 ] && [ "$(counts wrong | sort -u)" = 0 ] && [ "$(counts commits | sort -n | head -1)" -ge 1 ]
}
check "rebalance --auto moves by what the engine counts" automatic

# Anonymous memory of the ranks after the first moves and after many more, over one connection.
# BALLAST_MOVES: how many (10000 takes a minute or two).
moved_memory() {
    start embed || return 1
    timeout 600 python3 - "$socket" "${BALLAST_MOVES:-1500}" "$work"/plan.[123].json "${pids[@]}" <<'END' || return 1
import json, socket, sys
path, wanted, plans, pids = sys.argv[1], int(sys.argv[2]), sys.argv[3:6], sys.argv[6:]
plans = [json.load(open(plan)) for plan in plans]
door = socket.socket(socket.AF_UNIX)
door.connect(path)
lines = door.makefile("rw")

def ask(request):
    lines.write(json.dumps(request) + "\n")
    lines.flush()
    answer = json.loads(lines.readline())
    assert answer["ok"], answer
    return answer

def move(at_least):
    made = 0
    while made < at_least:
        for plan in plans:
            made += ask({"op": "apply", "plan": plan})["moves"]
            while True:
                status = ask({"op": "status", "wait": True})
                if status["state"] == "stable" and status["outcome"] != "running":
                    break
            assert status["outcome"] == "moved", status
    return made

def resident():
    fields = [dict(line.split(":", 1) for line in open(f"/proc/{pid}/status")) for pid in pids]
    return [int(field["RssAnon"].split()[0]) for field in fields]

move(100)
before = resident()
made = move(wanted)
after = resident()
print(f"# {made} moves; KiB of the four ranks: {before} before, {after} after")
sys.exit(any(b > a + 256 for a, b in zip(before, after)))
END
    stop && [ "$(counts wrong | sort -u)" = 0 ]
}
if [[ $BUILD == *address* || $BUILD == *thread* ]]; then
    skip "memory after 1500 moves is memory after 100" "sanitizers keep freed memory"
else
    check "memory after 1500 moves is memory after 100" moved_memory
fi

# Rank RANK is killed, perhaps while a move is under way. The others go on with its experts; the lowest of
# them answers at the socket, and moves to a plan without the lost.
goes_on_without() { # RANK
    local state
    state=$("$ballast" status --socket "$socket" --json 2>/dev/null)
    grep -q "\"lost\": *\[$1\]" <<<"$state" && grep -q '"state": *"stable"' <<<"$state"
}
applies_masked() { "$ballast" apply --force --socket "$socket" --wait "$work/masked.json" >/dev/null 2>"$work/masked.err"; }
loses() { # RANK PLAN OPTION...
    local dead=$1 first=$(($1 == 0))
    start embed "${@:3}" || return 1
    [ -z "$2" ] || "$ballast" apply --force --socket "$socket" "$work/$2" >/dev/null 2>>"$work/apply.err"
    kill -KILL "${pids[$dead]}"
    wait "${pids[$dead]}" 2>/dev/null
    unset "pids[$dead]"
    pids=("${pids[@]}")
    eventually goes_on_without "$dead"
    "$ballast" status --socket "$socket" --json | tr -d '\n' | sed 's/^/# /' | cut -c1-300
    echo
    "$ballast" plan --trace "$work/t.2.blt" --model "$work/model.json" --topology hgx-h100 --ranks 4 --slots 12 --mask "$dead" \
        --seed 2 -o "$work/masked.json" >/dev/null 2>>"$work/plan.err" || { tail -2 "$work/plan.err"; return 1; }
    eventually applies_masked || tail -1 "$work/masked.err" # until the survivors have repaired it, moves are held
    stop || return 1
    sed 's/^/# /' "$work/out.$first"
    diff <(slots_of_plan "$work/masked.json" | sed 's/\[\]/[-1, -1, -1]/') <(slots_served "$work/out.$first") || return 1
    [ "$(counts wrong | sort -u)" = 0 ]
}
check "rank 2 is killed: the others go on with its experts" loses 2 ""
check "two layers, of which experts 6 and 7 were on it alone" eval '[ "$(counts fetched | awk "{n += \$1} END {print n}")" = 4 ]'
check "rank 0 is killed in the middle of a move: the socket moves to rank 1" loses 0 plan.1.json --pointers

refused() { # a plan for other slots
    start embed || return 1
    sed 's/"experts": *8/"experts": 9/' "$work/plan.1.json" >"$work/bad.json"
    ! "$ballast" apply --socket "$socket" "$work/bad.json" >/dev/null 2>"$work/bad.err" || return 1
    stop
}
check "a plan that does not fit is refused, and serving goes on" refused
finish
