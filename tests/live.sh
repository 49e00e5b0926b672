# shellcheck shell=bash
# live.sh: sourced behind tap.sh by tests of a cluster that serves until it is stopped. $work/prompts
# holds its prompts, $work/reference the continuations of a run in which nothing moved.
model=examples/tiny-moe
socket=$work/s
run_pid=
trap '[ -n "$run_pid" ] && kill -KILL $run_pid 2>/dev/null; rm -rf "$work"' EXIT

. tests/status.sh

# Four ranks, until they answer that they are stable; sets run_pid.
serve() { # OPTION...
    "$ballast" run -n 4 --model $model --prompts "$work/prompts" --max-tokens 24 --repeat 100000 \
        --socket "$socket" "$@" >"$work/run.out" 2>"$work/run.err" &
    run_pid=$!
    eventually is_stable && return 0
    sed 's/^/# /' "$work/run.err"
    return 1
}
stop() { # its exit code is the run's
    kill -TERM $run_pid
    wait $run_pid
    local rc=$?
    run_pid=
    return $rc
}

# Every continuation that was finished is the reference's, and the others, cut off when the run was
# stopped, begin like it. Prints how many were finished; fewer than four prove nothing.
tokens_equal() {
    awk -v n="$(grep -c '^---$' "$work/prompts")" '
        BEGIN { RS = "(^|\n)---\n"; n++ }
        { sub(/\n$/, "") }
        NR == FNR { want[NR - 1] = $0; next }
        { text = want[(FNR - 1) % n]
          if ($0 == text) full++
          else if (substr(text, 1, length($0)) == $0) cut++
          else { print "# continuation " FNR " differs"; bad = 1 } }
        END { print "# " full + 0 " continuations are equal, " cut + 0 " cut off"; exit bad || full < 4 }' \
        "$work/reference" "$work/run.out"
}

# Of four ranks some were lost: what FILE holds of the others' requests, i mod 4 not among RANKS, equals the
# reference or begins like it; what it holds of the lost ranks' is not looked at.
survivors_equal() { # FILE RANKS
    awk -v lost=" $2 " -v n="$(grep -c '^---$' "$work/prompts")" '
        BEGIN { RS = "(^|\n)---\n"; n++ }
        { sub(/\n$/, "") }
        NR == FNR { want[NR - 1] = $0; next }
        { i = FNR - 1; text = want[i % n]
          if (index(lost, " " (i % 4) " ")) next
          if ($0 == text) full++
          else if (substr(text, 1, length($0)) == $0) cut++
          else { print "# continuation " i " differs"; bad = 1 } }
        END { print "# " full + 0 " continuations are equal, " cut + 0 " cut off"; exit bad || full < 4 }' \
        "$work/reference" "$1"
}
