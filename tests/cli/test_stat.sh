#!/bin/bash
# ballast stat: its three forms, with a plan and a topology, and its memory.
. tests/tap.sh

cat >"$work/toy.json" <<'END'
{"name":"toy","num_hidden_layers":4,"moe_layers":[1,2,3],"num_experts":16,"num_experts_per_tok":2,
 "hidden_size":8,"moe_intermediate_size":8}
END
cat >"$work/wide.json" <<'END'
{"name":"wide","num_hidden_layers":8,"moe_layers":[0,1,2,3,4,5,6,7],"num_experts":64,"num_experts_per_tok":2,
 "hidden_size":8,"moe_intermediate_size":8}
END
trace=$work/t.blt plan=$work/p.json
"$ballast" synth --model "$work/toy.json" --steps 40 --tokens-per-step 64 --ranks 4 --drift 2 -o "$trace" || exit 1
"$ballast" plan --trace "$trace" --model "$work/toy.json" --topology hgx-h100:nodes=1 --ranks 4 --redundant 4 \
    -o "$plan" >/dev/null 2>&1 || exit 1
stat() { "$ballast" stat "$@"; }

# table NAME HEADER ROWS: the CSV table has this header and so many rows behind it
table() {
    stat --csv --table "$1" --plan "$plan" "$trace" >"$work/csv" && [ "$(head -1 "$work/csv")" = "$2" ] &&
        [ "$(tail -n +2 "$work/csv" | wc -l)" -eq "$3" ]
}
check "table of experts" table experts layer,phase,expert,count,share 48
check "table of layers" table layers "layer,tokens,assignments,empty,conserved,max_over_mean_experts,hottest_expert,idle_experts,entropy,effective_experts,padding_rows,dummy_tokens" 3
check "table of ranks" table ranks layer,kind,n,mean,p50,p95,p99,max,balancedness 4
check "table of slots" table slots layer,kind,slot,rank,expert,load,share 60
check "table of pairs" table pairs layer,a,b,tokens,lift 24
check "table of transitions" table transitions layer,next,a,b,count,lift 16
check "table of sources" table sources layer,source,expert,count 192
check "table of traffic" table traffic source,destination,assignments 16
check "table of drift" table drift steps,distance,noise 5

sums() {
    [ "$(stat --csv "$trace" | awk -F, 'NR > 1 { n += $4 } END { print n }')" -eq $((40 * 64 * 2 * 3)) ] &&
        [ "$(stat --csv --table traffic --plan "$plan" "$trace" | awk -F, 'NR > 1 { n += $3 } END { printf "%.0f", n }')" -eq $((40 * 64 * 2 * 3)) ]
}
check "counts and traffic sum to tokens x k x layers" sums

json() {
    stat --json --plan "$plan" --topology hgx-h100:nodes=1 "$trace" >"$work/json" || return 1
    local key
    for key in tokens steps layers layer assignments empty conserved max_over_mean_experts dropped entropy \
        predicted balancedness p95 gap coactivation lift transition normalised sources traffic matrix levels \
        drift half_life window_steps step_to_step noise; do
        grep -q "\"$key\":" "$work/json" || { echo "# no key $key"; return 1; }
    done
    ! grep -q '"realised"' "$work/json"
}
check "stat --json with plan and topology" json
one_phase_some_steps() {
    stat --json --steps 10:20 --phase decode "$trace" | grep -q '"steps": 10,' &&
        fails_with "no tokens of this phase" "$ballast" stat --phase prefill "$trace" &&
        fails_with "the trace has 40 steps" "$ballast" stat --steps 40:50 "$trace"
}
check "one phase, some steps" one_phase_some_steps
p95_of() { grep -A12 "\"$1\"" | grep -o '"p95": [0-9.]*' | head -1 | command cut -c1-12; }
same_as_replay() { # RULE: one definition: what replay says of a plan on steps, stat says too
    "$ballast" plan --trace "$trace" --model "$work/toy.json" --topology hgx-h100:nodes=1 --ranks 4 --redundant 4 \
        --rule "$1" --steps 0:10 -o "$work/q.json" >/dev/null 2>&1 || return 1
    local a b
    a=$("$ballast" replay --trace "$trace" --topology hgx-h100:nodes=1 --steps 10:40 --json "$work/q.json" 2>/dev/null |
        p95_of imbalance)
    b=$(stat --steps 10:40 --json --plan "$work/q.json" --topology hgx-h100:nodes=1 "$trace" | p95_of predicted)
    echo "# replay $a, stat $b"
    [ -n "$a" ] && [ "$a" = "$b" ]
}
for rule in even nearest fixed per-step; do
    check "stat and replay agree, $rule" same_as_replay $rule
done

by_source() { # a rule that looks at where tokens come from needs to know the machines
    sed 's/"rule": *"even"/"rule":"fixed"/g; s/"digest": *"[0-9a-f]*"/"digest":null/' "$plan" >"$work/fixed.json"
    fails_with "a topology tells" "$ballast" stat --plan "$work/fixed.json" "$trace" &&
        stat --plan "$work/fixed.json" --topology hgx-h100:nodes=1 "$trace" >"$work/text" &&
        grep -q "plan, fixed" "$work/text" && grep -q "assignments stay on their rank [0-9.]*%, go over nvlink" "$work/text"
}
check "a rule that looks at sources" by_source

map() {
    COLUMNS=40 stat "$trace" >"$work/text" && grep -q "experts 0 to 15, 1 to a cell" "$work/text" &&
        ! grep -q $'\033' "$work/text" && COLUMNS=18 stat "$trace" | grep -q "experts 0 to 15, 2 to a cell"
}
check "heat map in plain characters" map
colours() { # only a terminal gets them
    command -v script >/dev/null || return 77
    TERM=xterm-256color script -qec "$ballast stat $trace" /dev/null | grep -q $'\033\[48;5;' &&
        ! NO_COLOR=1 TERM=xterm-256color script -qec "$ballast stat $trace" /dev/null | grep -q $'\033\[48;5;'
}
if command -v script >/dev/null; then
    check "heat map in colours" colours
else
    skip "heat map in colours" "no script(1) to make a terminal"
fi

check "topology without a plan" fails_with "goes with --plan" "$ballast" stat --topology hgx-h100 "$trace"
check "table without --csv" fails_with "goes with --csv" "$ballast" stat --table ranks "$trace"
check "no steps" fails_with "half-open range" "$ballast" stat --steps 5:5 "$trace"
other_model() {
    sed 's/"num_experts":16/"num_experts":12/' "$work/toy.json" >"$work/other.json"
    "$ballast" synth --model "$work/other.json" --steps 2 -o "$work/other.blt" &&
        fails_with "a plan for 16 experts, but the trace has 12" "$ballast" stat --plan "$plan" "$work/other.blt"
}
check "a plan of another model" other_model

torn() { # a trace that was cut while it was written: what is whole counts, and it is said
    "$ballast" synth --model "$work/wide.json" --steps 30 --tokens-per-step 8192 --ranks 4 -o "$work/whole.blt" || return 1
    head -c $(($(wc -c <"$work/whole.blt") * 2 / 3)) "$work/whole.blt" >"$work/torn.blt"
    stat --json "$work/torn.blt" >"$work/json" 2>"$work/err" && grep -q "was not closed: cut at byte" "$work/err" &&
        grep -q '"complete": false' "$work/json" && ! grep -q '"conserved": false' "$work/json" &&
        ! grep -q '"steps": 30,' "$work/json" && head -c 600 "$trace" >"$work/stump.blt" &&
        fails_with "holds no tokens: $work/stump.blt was not closed: cut at byte" "$ballast" stat "$work/stump.blt"
}
check "a torn trace is said" torn

# Memory: ten times the ids, the same memory.
peak() {
    "$ballast" synth --model "$work/wide.json" --steps "$1" --tokens-per-step 8192 --ranks 4 -o "$work/large.blt" &&
        "$BUILD/tests/tools/peak_memory" "$ballast" stat --csv --table layers "$work/large.blt" 2>&1 >/dev/null |
        sed -n 's/^peak memory: \([0-9]*\) KiB$/\1/p'
    rm -f "$work/large.blt"
}
memory() {
    local small large
    small=$(peak 39) large=$(peak 382) # 5.1e6 and 5.0e7 ids
    echo "# $small KiB, $large KiB"
    [ -n "$small" ] && [ -n "$large" ] && [ "$large" -le $((small + 2048)) ]
}
case $BUILD in
*address* | *thread* | *undefined*) skip "memory does not grow with the trace" "a sanitizer's memory does" ;;
*) check "memory does not grow with the trace" memory ;;
esac
finish
