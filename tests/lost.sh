# shellcheck shell=bash
# lost.sh: sourced behind tap.sh by tests in which ranks of a running cluster are lost, and come back.
model=examples/tiny-moe
socket=$work/s
run_pid=
trap '[ -n "$run_pid" ] && kill -KILL $run_pid 2>/dev/null; rm -rf "$work"' EXIT

for text in python french json english; do
    for i in 0 1 2 3; do
        [ -s "$work/prompts" ] && echo ---
        printf '#%s\n' "$(tail -c +$((i * 60 + 1)) "$model/prompts/$text.txt" | head -c 60 | tr -d '\n')"
    done
done >"$work/prompts"
n_prompts=16

. tests/status.sh
start() { # REPEAT OPTION...
    "$ballast" run -n 4 --model $model --prompts "$work/prompts" --max-tokens 24 --batch 2 --repeat "$1" \
        --socket "$socket" "${@:2}" >"$work/out" 2>"$work/err" &
    run_pid=$!
    eventually is_stable
    ranks=($(cat /proc/$run_pid/task/*/children))
    [ ${#ranks[@]} -eq 4 ]
}
# Until the ranks that the cluster counts as lost are these, "" or "2" or "2,3".
lost_now() { "$ballast" status --socket "$socket" --json 2>/dev/null | tr -d ' \n' | grep -o '"lost":\[[^]]*\]'; }
counts_as_lost() { [ "$(lost_now)" = "\"lost\":[$1]" ]; }
lost_are() { eventually counts_as_lost "$1"; }
is_over() { ! kill -0 $run_pid 2>/dev/null; }
# The run ends by itself; returns its exit code.
ends() {
    eventually is_over
    if kill -0 $run_pid 2>/dev/null; then
        echo "# it hangs"
        kill -KILL $run_pid
    fi
    wait $run_pid
    code=$?
    run_pid=
    return $code
}
# Some steps on: so many, or as many that every rank has answered some requests.
has_served() { [ "$(status step)" -ge "$1" ] 2>/dev/null || is_over; }
serve_on() { # [STEPS]
    eventually has_served 1 && eventually has_served $(($(status step) + ${1:-100}))
}
said() { grep -qE "$1" "$work/err" || is_over; }
# The others have gone on: let them serve, then stop them.
go_on() { # TEXT in the run's messages
    eventually said "$1"
    grep -qE "$1" "$work/err" || { sed 's/^/# /' "$work/err"; return 1; }
    serve_on
    kill -TERM $run_pid
    ends
    [ $code -eq 1 ]
}
# Continuations of the living are those of a run in which nobody died: request i is of rank i mod 4.
# Requests that were cut off by a stop begin like them. RANKS: the dead.
survivors_are_exact() { # RANKS [LEAST [FILE]]
    [ -s "$work/whole" ] || "$ballast" run -n 4 --model $model --prompts "$work/prompts" --max-tokens 24 >"$work/whole" 2>/dev/null
    awk -v dead=" $1 " -v n=$n_prompts -v least="${2:-1}" '
        BEGIN { RS = "(^|\n)---\n" }
        { sub(/\n$/, "") }
        NR == FNR { want[NR - 1] = $0; next }
        { i = FNR - 1
          if (index(dead, " " (i % 4) " ")) { next }
          text = want[i % n]
          if ($0 == text) full++
          else if (substr(text, 1, length($0)) == $0) cut++
          else { print "# continuation " i " differs"; bad = 1 } }
        END { print "# " full + 0 " continuations are equal, " cut + 0 " cut off"; exit bad || full < least }' \
        "$work/whole" "${3:-$work/out}"
}

lose() { # SIGNAL RANK...: while it serves
    local signal=$1
    shift
    sleep 0.2
    for rank in "$@"; do kill -"$signal" "${ranks[$rank]}"; done
}
