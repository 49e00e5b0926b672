#!/bin/bash
# bench_record.sh: what tracing costs a real engine: `ballast run` on tiny-moe with and without --record, one
# rank as a thread (batches of 8 sequences, one prefill of them and decoding), the recorder as another. By
# callgrind, which counts instructions of each thread, where it is installed; and by the median step, runs
# taken in turns. The text must be the same.
set -u
model=examples/tiny-moe
ballast=${BUILD:?}/ballast rounds=${BENCH_RECORD_ROUNDS:-11}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
serve() { # TOKENS [OPTION...]
    local tokens=$1
    shift
    "${under[@]}" "$ballast" run -n 1 --transport local --model "$model" --prompts "$model/prompts/mixed.txt" \
        --max-tokens "$tokens" "$@" 2>/dev/null
}

# The thread that serves has nearly all the instructions; the recorder's is the next.
instructions() { # DIR: of its threads, most first
    sed -n 's/^totals: //p' "$1"/out.* | sort -rn | head -2 | tr '\n' ' '
}
under=()
if command -v valgrind >/dev/null; then
    for dir in without with; do
        mkdir "$work/$dir"
        record=()
        [ $dir = without ] || record=(--record "$work/a.blt")
        under=(valgrind -q --tool=callgrind --separate-threads=yes "--callgrind-out-file=$work/$dir/out.%p")
        serve 8 "${record[@]}" >"$work/$dir.txt" || exit 1
    done
    under=()
    cmp -s "$work/without.txt" "$work/with.txt" || { echo "# bench_record: the texts differ" >&2; exit 1; }
    echo "$(instructions "$work/without") $(instructions "$work/with")" | awk '{
        printf "record.instructions.rank,%.4f,%% of its thread,1,,,\n", ($3 / $1 - 1) * 100
        printf "record.instructions.recorder,%.3f,%% of the rank'\''s thread,1,,,\n", $4 / $1 * 100}'
else
    echo "# bench_record: no valgrind" >&2
fi

# The median step of each run, and its time on the processor, the recorder's included. Where others compute,
# medians are of them rather than of us: the least of the runs says more.
step() { grep -o '"step_us":{[^}]*}' | grep -o '"p50":[0-9.]*' | cut -d: -f2; }
measure() { # OPTION...: median step in us, processor time in ms
    local TIMEFORMAT='%U %S' us
    us=$({ time serve 48 --json "$@" >"$work/answer"; } 2>"$work/times"; step <"$work/answer")
    awk -v us="$us" '{printf "%s %.0f ", us, ($1 + $2) * 1000}' "$work/times"
}
for _ in $(seq "$rounds"); do
    echo "$(measure) $(measure --record "$work/b.blt")"
done >"$work/rounds"
row() { # NAME UNIT EXPRESSION: least, median and largest over the rounds; the value is the least
    awk "{print $3}" "$work/rounds" | sort -g | awk -v name="$1" -v unit="$2" '{v[NR] = $1}
        END {printf "%s,%.3f,%s,%d,%.3f,%.3f,%.3f\n", name, v[1], unit, NR, v[1], v[int((NR + 1) / 2)], v[NR]}'
}
row record.step.without us '$1'
row record.step.with us '$3'
row record.cpu.without ms '$2'
row record.cpu.with ms '$4'
