#!/bin/bash
# memory.sh [IDS]: write a made-up trace of IDS ids (default 2e9, about 2 GB under TMPDIR), stream it
# through `ballast stat`, and print CSV rows: peak memory of a tenth of it and of all, and the time.
# Exits with 1 when the larger one needs more than 4 MiB more.
set -u
ids=${1:-2000000000}
build=${BUILD:?}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
layers=$(seq -s, 3 77)
cat >"$work/model.json" <<END
{"name":"large","num_hidden_layers":78,"moe_layers":[$layers],"num_experts":256,
 "num_experts_per_tok":8,"hidden_size":8,"moe_intermediate_size":8}
END
needed=$((ids * 11 / 10 / 1024))
free=$(df -Pk "$work" | awk 'NR == 2 { print $4 }')
if [ "$free" -lt "$needed" ]; then
    echo "memory.sh: $work has $free KiB free, $needed are needed" >&2
    exit 1
fi

# stat_of IDS: peak KiB and seconds of `ballast stat` over a trace of so many ids
stat_of() {
    local steps=$((($1 + 1228799) / 1228800)) from to # 2048 tokens x 75 layers x 8
    "$build/ballast" synth --model "$work/model.json" --steps "$steps" --tokens-per-step 2048 \
        --ranks 8 -o "$work/large.blt" || return 1
    from=$(date +%s)
    "$build/tests/tools/peak_memory" "$build/ballast" stat --json "$work/large.blt" \
        >"$work/out.json" 2>"$work/err" || return 1
    to=$(date +%s)
    echo "$(sed -n 's/^peak memory: \([0-9]*\) KiB$/\1/p' "$work/err") $((to - from))"
    rm -f "$work/large.blt"
}

read -r small _ <<<"$(stat_of $((ids / 10)))"
read -r large seconds <<<"$(stat_of "$ids")"
[ -n "${small:-}" ] && [ -n "${large:-}" ] || exit 1
echo "stat_memory_tenth,$small,KiB,1,$small,$small,$small"
echo "stat_memory_$ids,$large,KiB,1,$large,$large,$large"
echo "stat_seconds_$ids,$seconds,s,1,$seconds,$seconds,$seconds"
[ "$large" -le $((small + 4096)) ]
