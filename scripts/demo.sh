#!/bin/bash
# demo.sh: the whole path on a small trained model and four ranks. Records routing while the topic of
# the traffic shifts, plans from the trace, scores the plan on steps it has not seen, applies it to
# the running cluster, and checks that every token equals the run in which nothing moved.
set -eu
ballast=$(realpath "${BALLAST:-build/release/ballast}")
model=$(realpath examples/tiny-moe)
ranks=4 slots=40 max_tokens=48
work=$(mktemp -d)
server=
cd "$work"
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() {
    echo "  \$ ballast $*" | sed "s|$model|examples/tiny-moe|"
    "$ballast" "$@" 2>&1
}
# field FILE KEY: the first number behind "KEY": in a JSON answer.
field() { grep -o "\"$2\":[0-9.]*" "$1" | head -1 | cut -d: -f2; }

# The traffic: prompts about C and English first, then Chinese and French.
times() { # N FILE...: the files' prompts, N times
    local n=$1
    shift
    for _ in $(seq "$n"); do for file in "$@"; do cat "$file"; echo ---; done; done
}
topics=$model/prompts
times 4 $topics/c.txt $topics/english.txt >shift.txt
times 8 $topics/chinese.txt $topics/french.txt >>shift.txt
times 4 $topics/chinese.txt $topics/french.txt >evening.txt

say "1. Serve on $ranks ranks, experts where engines start with them, and record the routing"
echo "  \$ ballast run -n $ranks --model examples/tiny-moe --slots $slots --prompts shift.txt --record traffic.blt --json"
"$ballast" run -n $ranks --model $model --slots $slots --prompts shift.txt --batch 4 \
    --max-tokens $max_tokens --record traffic.blt --json >recorded.json
"$ballast" stat traffic.blt | head -12
steps=$(field recorded.json steps)
# The shift lies a third into the run: plan on the steps behind it, keep the last ones unseen.
from=$((steps / 2)) to=$((steps * 3 / 4))

say "2. Measure the ways between ranks, and plan on steps $from to $to; the steps behind stay unseen"
run topo probe -n $ranks --base local -o cluster.json
planning="--trace traffic.blt --model $model --topology cluster.json --slots $slots --steps $from:$to"
"$ballast" plan $planning --algorithm contiguous -o start.plan.json 2>/dev/null
"$ballast" plan $planning --algorithm greedy -o greedy.plan.json 2>/dev/null
run plan $planning --current start.plan.json -o new.plan.json

say "3. Score start layout, greedy and the plan on steps that neither was made from"
run replay --trace traffic.blt --topology cluster.json --steps $to: \
    --baseline start.plan.json greedy.plan.json new.plan.json

say "4. Apply the plan to a running cluster while it serves"
serve="run -n $ranks --model $model --plan start.plan.json --prompts evening.txt --repeat 6
       --batch 4 --max-tokens $max_tokens --json"
"$ballast" $serve >still.json
"$ballast" $serve --spares 2 --socket ballast.sock >moved.json &
server=$!
# Let it serve a while as it is; counted in steps, so that it works on machines of any speed.
for _ in $(seq 600); do
    step=$("$ballast" status --socket ballast.sock 2>/dev/null | awk '$1 == "step" {print $2}')
    [ "${step:-0}" -lt 100 ] || break
    sleep 0.05
done
run apply new.plan.json --socket ballast.sock --dry-run | tail -3
run apply new.plan.json --socket ballast.sock --wait
run status --socket ballast.sock
wait $server
server=

say "5. What it did, measured in that run"
around() { # before|during|after: steps, median and 99th percentile of step time, mean imbalance
    local part
    part=$(grep -o "\"$1\":{\"steps\".*" moved.json | sed 's/}},.*//')
    printf '  %-8s %6s steps   step %7.2f ms (p99 %7.2f)   max/mean over ranks %.3f\n' "$1" \
        "$(grep -o '"steps":[0-9]*' <<<"$part" | head -1 | cut -d: -f2)" \
        "$(grep -o '"p50":[0-9.]*' <<<"$part" | head -1 | cut -d: -f2 | awk '{print $1 / 1000}')" \
        "$(grep -o '"p99":[0-9.]*' <<<"$part" | head -1 | cut -d: -f2 | awk '{print $1 / 1000}')" \
        "$(grep -o '"imbalance":{"mean":[0-9.]*' <<<"$part" | head -1 | sed 's/.*://')"
}
around before
around during
around after
tokens() { grep -o '"tokens":\[\[[][0-9, ]*\]\]' "$1"; }
tokens still.json >still.tokens
tokens moved.json >moved.tokens
if [ -s still.tokens ] && cmp -s still.tokens moved.tokens; then
    echo "  all $(grep -o '[0-9]\+' moved.tokens | wc -l) tokens equal the run in which nothing moved"
else
    echo "  TOKENS DIFFER from the run in which nothing moved" >&2
    exit 1
fi
