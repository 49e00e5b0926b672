#!/bin/bash
# bench_predict.sh: predicted beside measured time of `ballast run` on tiny-moe, two and four ranks as
# processes: costs fitted to the first half of the steps, errors of the second half. Whole steps; MoE
# layers, by costs fitted in the same run and by a topology calibrated from the run before; and of a layer the
# slowest rank's experts and the exchanges alone. Runs one after another; where others compute as well, their
# turns on the processors are in the measured times and in no prediction.
set -u
command -v python3 >/dev/null || { echo "# bench_predict: no python3" >&2; exit 0; }
model=examples/tiny-moe
ballast=${BUILD:?}/ballast rounds=${BENCH_PREDICT_ROUNDS:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for ranks in 2 4; do
    topology=local:ranks=$ranks
    for round in $(seq 0 "$rounds"); do # the first makes the topology of the next
        "$ballast" run -n $ranks --model $model --prompts $model/prompts/mixed.txt --max-tokens 64 --repeat 4 \
            --batch 4 --topology "$topology" --record "$work/trace.blt" --stage-times --json \
            >"$work/$ranks.$round.json" 2>/dev/null || exit 1
        "$ballast" topo calibrate --trace "$work/trace.blt" --model $model/config.json \
            --base local:ranks=$ranks -o "$work/topology.$round.json" 2>/dev/null || exit 1
        topology=$work/topology.$round.json
    done
done
python3 - "$work" "$rounds" <<'END'
import json, sys
work, rounds = sys.argv[1], int(sys.argv[2])
def row(name, unit, values):
    v = sorted(values)
    print("%s,%.4g,%s,%d,%.4g,%.4g,%.4g" % (name, v[len(v) // 2], unit, len(v), v[0], v[len(v) // 2], v[-1]))
for ranks in (2, 4):
    runs = [json.load(open("%s/%d.%d.json" % (work, ranks, r)))["predicted"] for r in range(1, rounds + 1)]
    runs = [r for r in runs if r["n"] > 0]
    if not runs:
        print("# bench_predict: nothing was predicted on %d ranks" % ranks, file=sys.stderr)
        continue
    parts = (("step", lambda r: r), ("layer", lambda r: r["layer"]), ("layer.calibrated", lambda r: r["by_topology"]),
             ("experts", lambda r: r["experts"]), ("exchanges", lambda r: r["exchanges"]))
    for name, of in parts:
        name = "predict.%d.%s" % (ranks, name)
        row(name + ".measured", "us", [of(r)["measured_us"]["p50"] for r in runs])
        row(name + ".predicted", "us", [of(r)["predicted_us"]["p50"] for r in runs])
        row(name + ".error", "%", [100 * of(r)["error"]["median"] for r in runs])
        row(name + ".error.p95", "%", [100 * of(r)["error"]["p95"] for r in runs])
    told = [r["constants"]["experts_us"][0]["row"]["us"] for r in runs]
    row("predict.%d.row" % ranks, "us", [t for t in told if t] or [0])
END
