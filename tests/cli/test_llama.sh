#!/bin/bash
# A real llama.cpp on a small random model, traced: what is recorded is what its router's scores say.
. tests/tap.sh
what="llama.cpp's routing is recorded as its router scored it"
if [[ ${BUILD:?} == *address* || $BUILD == *undefined* || $BUILD == *thread* ]]; then
    skip "$what" "its libraries are not built for a sanitizer"
    finish
fi
scripts/llama.sh >"$work/log" 2>&1
case $? in
0) ;;
77) skip "$what" "no llama.cpp in ${LLAMA_HOME:-build/llama} (make llama fetches one)"; finish ;;
*) cat "$work/log"; check "$what" false; finish ;;
esac

# Rows of the router's scores, ranked, against the counts of the trace: layer,phase,expert,count.
expected() {
    awk '{phase = $1 == 0 ? "prefill" : "decode"
          for (j = 3; j <= NF; j++) n[$2 "," phase "," $j]++}
         END {for (key in n) print key "," n[key]}' "$work/scores" | sort
}
recorded() {
    "$ballast" stat --csv --table experts "$work/trace" 2>/dev/null | awk -F, 'NR > 1 && $4 > 0 {print $1 "," $2 "," $3 "," $4}' | sort
}
routing() {
    "$ballast" record --ring "llama-$$" --wait 60s -o "$work/trace" 2>"$work/err" &
    mkfifo "$work/go"
    exec 3<>"$work/go" # so that opening it waits for nobody
    timeout 60 "$BUILD/tests/llama/trace_llama" "${LLAMA_HOME:-build/llama}/lib" "llama-$$" "$work/moe.gguf" \
        <"$work/go" >"$work/scores" 2>"$work/llama.err" &
    local engine=$!
    eventually test -e "$work/trace/rank-00000.000001.blt" # it has made its file when it has the ring
    echo >&3
    wait $engine || { cat "$work/llama.err"; kill %1; return 1; }
    wait
    [ "$(wc -l <"$work/scores")" -eq $((3 * 16 + 6)) ] && diff <(expected) <(recorded)
}
check "$what" routing
adds_up() { ! "$ballast" stat --json "$work/trace" | grep -q '"conserved": *false'; }
check "and every layer adds up, also the last, which routes outputs only" adds_up
finish
