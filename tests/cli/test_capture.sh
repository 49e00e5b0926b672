#!/bin/bash
# ballast record and live on running ranks: patterns, parts, modes switched from outside, live windows,
# disks that fill up, signals, and kill -9 of either side.
. tests/tap.sh
engine=$BUILD/tests/tools/busy_engine
ring=clicap-$$
dir() { mkdir -p "$work/$1" && echo "$work/$1"; }
rings() { ls /dev/shm/ballast-trace-"$ring"* 2>/dev/null; }
key() { grep -o "\"$2\":[^,}]*" "$1" | head -1 | cut -d: -f2; }

# Two ranks, found by a pattern; the ledger of the answer balances with what the engines counted.
two_ranks() {
    (sleep 0.3; "$engine" "$ring.0" 0 2 3000 65536 6000 >"$work/e0") &
    (sleep 0.3; "$engine" "$ring.1" 1 2 3000 65536 6000 >"$work/e1") &
    "$ballast" record --ring "$ring.*" --wait 20s --rotate-size 20K -o "$(dir two)" --json \
        >"$work/two.json" 2>"$work/err"
    local rc=$?
    wait
    [ $rc -eq 0 ] || return 1
    local pushed kept dropped
    pushed=$(awk '{s += $1} END {print s}' "$work/e0" "$work/e1")
    kept=$(awk '{s += $2} END {print s}' "$work/e0" "$work/e1")
    dropped=$(awk '{s += $3} END {print s}' "$work/e0" "$work/e1")
    [ "$(key "$work/two.json" pushed)" -eq "$pushed" ] &&
        [ "$(key "$work/two.json" written)" -eq "$kept" ] &&
        [ "$(key "$work/two.json" dropped)" -eq "$dropped" ] &&
        [ "$(ls "$work/two" | wc -l)" -ge 2 ] &&
        "$ballast" stat "$work/two" --json | grep -q '"complete": *true'
}
check "two ranks by a pattern, in parts; the ledger balances" two_ranks

# From outside, while it is recorded: one of 4 steps as counts, then all ids again.
modes() {
    "$engine" "$ring.0" 0 1 1000000 262144 200 >"$work/e0" &
    local engine_pid=$! recorder
    "$ballast" record --ring "$ring.0" --wait 20s --live "$ring" -o "$(dir modes)" --json \
        >"$work/modes.json" 2>"$work/err" &
    recorder=$!
    eventually test -s "$work/modes/rank-00000.000001.blt" &&
        "$ballast" record --ring "$ring.*" --sample 1/4 --counts --set-only --json | grep -q '"rings": *1' &&
        sleep 0.3 && "$ballast" record --ring "$ring.0" --sample 1/1 --set-only 2>/dev/null && sleep 0.3
    local ok=$?
    live_is_right && fails_with "reads the ring" "$ballast" record --ring "$ring.0" -o "$(dir second)" || ok=1
    kill -HUP $recorder
    wait $recorder || ok=1
    kill $engine_pid
    wait $engine_pid
    [ $ok -eq 0 ] && [ "$(key "$work/modes.json" skipped)" -gt 0 ] &&
        [ "$(key "$work/modes.json" rejected)" -eq 0 ] &&
        "$ballast" stat "$work/modes" --json | grep -q '"conserved": *true'
}
live_is_right() {
    "$ballast" live "$ring" --window minutes --json >"$work/live.json" &&
        grep -q '"live": *true' "$work/live.json" && [ "$(key "$work/live.json" unmapped)" -eq 0 ] &&
        "$ballast" live "$ring" | grep -qE '^ +3 +[0-9]+ +[0-9]+ ' &&
        "$ballast" live "$ring" --phase prefill | grep -qE '^ +3 +0 +0 '
}
check "modes are switched from outside, windows are live, SIGHUP ends it well" modes
# Its engine was stopped without closing: what it left is taken by the next recorder, with its ring.
rest() {
    "$ballast" record --ring "$ring.0" -o "$work/modes" 2>"$work/err" && [ -z "$(rings)" ]
}
check "the next recorder goes on in the same directory and removes a dead engine's ring" rest
check "no windows any more" fails_with "no live windows" "$ballast" live "$ring"
check "--sample must be a fraction" fails_with "1/N" "$ballast" record --sample 10 -o "$(dir bad)"
check "--output is needed" fails_with "--output" "$ballast" record

check "--sample takes no sign" fails_with "1/N" "$ballast" record --sample 1/-4 -o "$work/bad"
check "--set-only sets something" fails_with "name one" "$ballast" record --set-only
check "--set-only records nothing" fails_with "leave out --output" "$ballast" record --set-only --counts -o "$work/bad"
check "--live is a name" fails_with "--live wants" "$ballast" record --live a/b -o "$work/bad"
check "--output is no file" fails_with "no directory" "$ballast" record -o "$work/err"
no_ring() { # nothing is left behind
    fails_with "is an engine tracing" "$ballast" record --ring "$ring-none*" -o "$work/none" && [ ! -e "$work/none" ]
}
check "without a ring there is no directory" no_ring

# What is no ring, but is called like one, is named and passed over; so are rings of another model that come.
foreign() {
    yes | head -c 200000 >"/dev/shm/ballast-trace-$ring.zero"
    "$engine" "$ring.0" 0 1 3000 65536 1000 >/dev/null &
    sleep 0.2
    "$ballast" record --ring "$ring.*" --counts --set-only 2>/dev/null &&
        "$ballast" record --ring "$ring.*" --wait 20s -o "$(dir foreign)" --json >"$work/foreign.json" 2>"$work/err"
    local rc=$?
    wait
    rm "/dev/shm/ballast-trace-$ring.zero"
    [ $rc -eq 0 ] && [ "$(grep -c "\"$ring.zero\" is left out" "$work/err")" -eq 1 ] &&
        [ "$(key "$work/foreign.json" pushed)" -gt 0 ]
}
check "what is no ring is named and passed over" foreign

second() { # a second recorder says who has the ring
    "$engine" "$ring.0" 0 1 1000000 65536 1000 >/dev/null &
    local engine_pid=$! ok
    sleep 0.2
    "$ballast" record --ring "$ring.*" --wait 20s -o "$(dir first)" 2>/dev/null &
    eventually test -s "$work/first/rank-00000.000001.blt" &&
        fails_with "reads the ring" "$ballast" record --ring "$ring.*" -o "$work/second" &&
        fails_with "reads the ring" "$ballast" record --ring "$ring.*" -o "$work/first"
    ok=$?
    kill -9 $engine_pid
    wait
    return $ok
}
check "a second recorder is told who has the ring" second

# A status file while it records, and a last one that equals the answer. One that cannot be written ends nothing.
status() {
    "$engine" "$ring.0" 0 1 1000000 262144 1000 >/dev/null &
    local engine_pid=$! ok
    "$ballast" record --ring "$ring.0" --wait 20s -o "$(dir status)" --status "$work/status.json" --json \
        >"$work/answer.json" 2>"$work/err" &
    local recorder=$!
    eventually grep -q '"over":false' "$work/status.json" 2>/dev/null
    ok=$?
    [ "$(key "$work/status.json" rings)" -eq 1 ] && [ "$(key "$work/status.json" written)" -gt 0 ] || ok=1
    kill $recorder
    wait $recorder || ok=1
    grep -q '"over":true' "$work/status.json" && [ "$(wc -l <"$work/status.json")" -eq 1 ] &&
        [ "$(key "$work/status.json" written)" = "$(key "$work/answer.json" written)" ] || ok=1
    "$ballast" record --ring "$ring.0" --wait 20s -o "$work/status" --status "$work/none/x" 2>"$work/err" &
    recorder=$!
    eventually grep -q "cannot write the status" "$work/err" || ok=1
    kill -9 $engine_pid
    wait $recorder || ok=1
    wait
    return $ok
}
check "a status file while it records" status

# A small disk: it fills up, the engine goes on, room is made, and the recording goes on.
in_small_disk() { # SIZE COMMAND...: with a disk of that size at $work/disk
    unshare -rm bash -c 'mount -t tmpfs -o size="$1" none "$0" && shift && exec "$@"' "$work/disk" "$@"
}
full_disk() { # OPTION...
    (sleep 0.3; exec "$engine" "$ring.0" 0 1 60000 262144 100 >"$work/e0") &
    local engine_pid=$!
    "$ballast" record --ring "$ring.0" --wait 20s --rotate-size 32K "$@" -o "$work/disk/rec" --json \
        >"$work/full.json" 2>"$work/full.err" &
    local recorder=$!
    eventually grep -q "NOT WRITING" "$work/full.err"
    local ok=$?
    [ $ok -eq 0 ] && cp "$work"/disk/rec/*.000001.blt "$work/first.blt" && "$ballast" stat "$work/first.blt" >/dev/null
    ok=$?
    mkdir "$work/saved"
    for _ in $(seq 300); do # somebody ships the closed files away
        local files=("$work"/disk/rec/*.blt)
        [ ${#files[@]} -gt 1 ] && mv "${files[@]:0:${#files[@]}-1}" "$work/saved/"
        kill -0 $recorder 2>/dev/null || break
        sleep 0.1
    done
    wait $engine_pid
    wait $recorder || ok=1
    mv "$work"/disk/rec/*.blt "$work/saved/"
    "$ballast" stat "$work/saved" --json >"$work/saved.json" || ok=1
    [ $ok -eq 0 ] && [ "$(key "$work/full.json" dropped)" -gt 0 ] &&
        [ "$(key "$work/saved.json" dropped)" -eq "$(key "$work/full.json" dropped)" ] &&
        [ $(($(key "$work/full.json" written) + $(key "$work/full.json" dropped))) -eq "$(cut -d' ' -f1 "$work/e0")" ] &&
        grep -q '"conserved": *true' "$work/saved.json" && ! grep -q '"conserved": *false' "$work/saved.json"
    ok=$?
    rm -rf "$work/saved"
    return $ok
}
mkdir -p "$work/disk"
if in_small_disk 64k true 2>/dev/null; then
    export -f full_disk eventually key in_small_disk
    export work ring engine ballast
    check "a full disk is waited out" in_small_disk 256k bash -c full_disk
    check "a guard for free space stops before it is full" in_small_disk 640k bash -c 'full_disk --min-free 64K'
    small_shm() { # shared memory of 256 KiB, a ring of 1 MiB: an error at once, and nothing left behind
        unshare -rm bash -c 'mount -t tmpfs -o size=256k none /dev/shm &&
            "$0" full-shm 0 1 10 1048576 0; [ $? -eq 1 ] && [ -z "$(ls /dev/shm)" ]' "$engine" 2>"$work/err" &&
            grep -q "out of memory" "$work/err"
    }
    check "a ring that shared memory has no room for is refused at once" small_shm
else
    skip "a ring that shared memory has no room for is refused at once" "no file systems can be mounted"
    skip "a full disk is waited out" "no file systems can be mounted"
    skip "a guard for free space stops before it is full" "no file systems can be mounted"
fi

mkdir "$work/soak"
check "30 kills of either side" timeout 120 "$BUILD/tests/tools/soak_capture" 30 "$$" "$work/soak"
check "no ring is left behind" eval '[ -z "$(rings)" ]'
finish
