#!/bin/bash
# Stage times become constants: recorded, put into a topology, planned with; and predicted beside
# measured step time of a run. How well they predict depends on the machine and is told, not tested.
. tests/tap.sh
model=examples/tiny-moe
run() { "$ballast" run -n 2 --model $model --prompts $model/prompts/chinese.txt --max-tokens 40 --batch 1 "$@"; }
calibrate() { "$ballast" topo calibrate --model $model/config.json --base local:ranks=2 "$@"; }
answer() { # FILE EXPRESSION
    python3 -c 'import json, math, sys; d = json.load(open(sys.argv[1])); sys.exit(not eval("(" + sys.argv[2] + ")"))' "$1" "$2"
}

run --record "$work/timed.blt" --stage-times --json >"$work/run.json" 2>"$work/run.err"
check "a run predicts the steps behind those it fitted costs to" answer "$work/run.json" '
    d["predicted"]["n"] == d["steps"] - d["predicted"]["fitted_steps"] >= 50
    and all(d["predicted"][k]["p50"] > 0 for k in ("measured_us", "predicted_us"))
    and all(math.isfinite(d["predicted"]["error"][k]) for k in ("median", "p95", "total"))'
check "step by step, and none of those it was fitted to" answer "$work/run.json" '
    sum("predicted_us" in s for s in d["per_step"]) == d["predicted"]["n"]
    and "predicted_us" not in d["per_step"][0] and "predicted_us" in d["per_step"][-1]'
check "what it measured is what the steps took" answer "$work/run.json" '
    abs(sorted(s["us"] for s in d["per_step"] if "predicted_us" in s)[d["predicted"]["n"] // 2]
        / d["predicted"]["measured_us"]["p50"] - 1) < 1e-6'
check "a cost is told, or why it is not" answer "$work/run.json" '
    all((t["us"] is None) == ("why" in t) and (t["us"] is None or t["us"] >= 0)
        for t in d["predicted"]["constants"]["experts_us"][0].values())'
check "nothing else is said under --json" [ ! -s "$work/run.err" ]
run --topology local:ranks=2 >/dev/null 2>"$work/run.err"
three_lines() {
    [ "$(wc -l <"$work/run.err")" -eq 3 ] && grep -q "a step: .* predicted, .* measured" "$work/run.err" &&
        grep -q "by the topology's constants: .* unseen layers" "$work/run.err"
}
check "for people: steps, layers, and layers by the topology's own constants" three_lines
"$ballast" run -n 2 --model $model --prompts $model/prompts/c.txt --max-tokens 4 --json >"$work/short.json" 2>"$work/short.err"
check "a short run says why there is nothing" answer "$work/short.json" '
    d["predicted"]["n"] == 0 and "too few" in d["predicted"]["why"]'
"$ballast" run -n 2 --model $model --prompts $model/prompts/c.txt --max-tokens 4 >/dev/null 2>"$work/short.err"
check "and nothing to people" [ ! -s "$work/short.err" ]

calibrate --trace "$work/timed.blt" -o "$work/made.json" --json >"$work/answer.json" 2>/dev/null
check "a trace with stage times becomes a topology" answer "$work/made.json" '
    d["devices"][0]["memory_bytes"]["source"] == "assumed" and len(d["sources"]) >= 4
    and any("experts: row" in s for s in d["sources"])'
check "every step counts, half of them for the fit" answer "$work/answer.json" '
    d["whole_steps"] == d["steps"] and d["fitted_layers"] == d["steps"] // 2 * 6
    and d["held_out"]["layer"]["n"] == (d["steps"] - d["steps"] // 2) * 6'
# On a machine that does other things besides, a cost may be lost in the noise: then the base's stays.
row_rate() {
    python3 - "$work/answer.json" "$work/made.json" <<'END'
import json, sys
answer, made = (json.load(open(f)) for f in sys.argv[1:])
row, rate = answer["constants"]["experts_us"][0]["row"]["us"], made["devices"][0]["flop_per_s"]["bf16"]
if not row:
    sys.exit(rate != {"value": 2e10, "source": "assumed"})
sys.exit(rate["source"] != "measured" or abs(6 * 128 * 64 / row * 1e6 / rate["value"] - 1) > 1e-6)
END
}
check "its rate is that of a row's cost" row_rate
plan() { "$ballast" plan --trace "$work/timed.blt" --model $model/config.json --slots 40 --objective time --phase all --topology "$@" --json 2>/dev/null; }
plan "$work/made.json" -o "$work/made.plan" >"$work/made.answer"
plan local:ranks=2 -o "$work/assumed.plan" >"$work/assumed.answer"
check "plans for time go by it" answer "$work/made.answer" '
    (d["step_us"]["score"] != json.load(open("'"$work"'/assumed.answer"))["step_us"]["score"])
    == (json.load(open("'"$work"'/answer.json"))["figures"] > 0) and d["gap"]["mean"] >= 0'
"$ballast" run -n 2 --model $model --plan "$work/made.plan" --prompts $model/prompts/chinese.txt --max-tokens 40 --batch 1 \
    --record "$work/planned.blt" --stage-times >/dev/null 2>&1
check "and so does what was recorded under a plan" eval \
    'calibrate --trace "$work/planned.blt" --plan "$work/made.plan" -o "$work/planned.json" 2>/dev/null'

# ---- mistakes -------------------------------------------------------------------------------

check "stage times without a recording" fails_with "goes with --record" run --stage-times
run --record "$work/untimed.blt" >/dev/null 2>&1
check "a trace without stage times says how to get them" fails_with "run --record OUT --stage-times" \
    calibrate --trace "$work/untimed.blt" -o "$work/no.json"
check "nothing half-written" [ ! -e "$work/no.json" ]
check "a base with fewer ranks" fails_with "2" "$ballast" topo calibrate --model $model/config.json \
    --base local:ranks=1 --trace "$work/timed.blt" -o "$work/no.json"
check "a plan for other ranks" fails_with "the plan is for" eval \
    '"$ballast" plan --trace "$work/timed.blt" --model $model/config.json --ranks 4 --slots 40 -o "$work/four.plan" >/dev/null 2>&1
    calibrate --trace "$work/timed.blt" --plan "$work/four.plan" -o "$work/no.json"'
check "something is missing" fails_with "--base T" "$ballast" topo calibrate --trace "$work/timed.blt" -o "$work/no.json"
check "the trace is not written over" fails_with "timed.blt" calibrate --trace "$work/timed.blt" -o "$work/timed.blt"
finish
