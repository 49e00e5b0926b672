#!/bin/bash
# ballast plan, replay, diff and export: the way from recorded loads to an engine's file.
. tests/tap.sh

# holds FILE EXPRESSION: the expression is true of the JSON document d.
holds() {
    python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); sys.exit(0 if eval("(" + sys.argv[2] + ")") else 1)' "$@"
}

# Decoder layers 0..3, the first one dense; 8 experts, top-2. Twelve steps of different traffic.
cd "$work" || exit 1
cat >model.json <<'END'
{"name":"toy","num_hidden_layers":4,"moe_layers":[1,2,3],"num_experts":8,"num_experts_per_tok":2,
 "hidden_size":64,"moe_intermediate_size":32}
END
python3 - <<'END'
import json, random
random.seed(5)
def row(hot):
    w = [1 + random.random() + (9 if e == hot else 3 if e == hot + 1 else 0) for e in range(8)]
    t = [int(2000 * x / sum(w)) for x in w]
    t[0] += 2000 - sum(t)
    return t
steps = [[row(1), row(4), row(6)] for _ in range(12)]
json.dump({"load": steps}, open("steps.json", "w"))
json.dump({"load": steps[0]}, open("one.json", "w"))
json.dump({"load": [r if l != 1 else [0] * 8 for l, r in enumerate(steps[0])]}, open("idle.json", "w"))
END
cd - >/dev/null || exit 1
b() { (cd "$work" && "$ballast" "$@"); }
case $ballast in /*) ;; *) ballast=$PWD/$ballast ;; esac

imports() {
    b import --from load-json steps.json --model model.json --layers moe -o steps.blt 2>/dev/null &&
        b import --from load-json one.json --model model.json --layers moe -o one.blt 2>/dev/null
}
check "loads are imported" imports
toy() { b plan --model model.json --topology hgx-h100 --ranks 4 "$@"; }
quiet() { "$@" 2>/dev/null; }

check "plan" quiet toy --trace steps.blt --slots 12 --steps 0:6 -o a.plan.json
check "plan has the contract's keys" holds "$work/a.plan.json" '
    d["format"] == "ballast-plan" and d["version"] == 1 and d["ranks"] == 4 and d["epoch"] == 0
    and d["model"]["name"] == "toy" and d["model"]["experts"] == 8 and d["model"]["top_k"] == 2
    and [l["layer"] for l in d["layers"]] == [1, 2, 3] and len(d["digest"]) == 32
    and all(sorted(set(sum(l["slots"], []))) == list(range(8)) for l in d["layers"])
    and all(len(s) == 3 == len(set(s)) for l in d["layers"] for s in l["slots"])
    and all(l["split"]["rule"] == "even" for l in d["layers"])
    and all(l["score"]["max_over_mean"] >= l["bound"]["max_over_mean"] >= 1 for l in d["layers"])
    and all(abs(l["score"]["max_over_mean"] / l["bound"]["max_over_mean"] - 1 - l["gap"]) < 1e-9 for l in d["layers"])
    and d["provenance"]["rule"] == "even" and d["provenance"]["objective"] == "tokens"
    and d["provenance"]["steps"] == [0, 6] and d["provenance"]["algorithm"] == "auto"'
scores_are_true() {
    python3 - "$work" <<'END'
import json, sys
w = sys.argv[1]
plan = json.load(open(w + "/a.plan.json"))
steps = json.load(open(w + "/steps.json"))["load"][0:6]
for i, layer in enumerate(plan["layers"]):
    copies = [sum(e in s for s in layer["slots"]) for e in range(8)]
    peaks = [max(sum(step[i][e] / copies[e] for e in s) for s in layer["slots"]) for step in steps]
    score = 4 * sum(peaks) / sum(sum(step[i]) for step in steps)
    assert abs(score - layer["score"]["max_over_mean"]) < 1e-6, (score, layer["score"])
END
}
check "scores are those of the slots" scores_are_true
same_bytes() {
    quiet toy --trace steps.blt --slots 12 --steps 0:6 --threads 1 -o b.plan.json && cmp "$work/a.plan.json" "$work/b.plan.json"
}
check "same seed, same bytes" same_bytes
summary() { quiet toy --trace steps.blt --slots 12 -o c.plan.json --json >"$work/s.json"; }
check "plan --json is one object" summary
check "... with figures" holds "$work/s.json" '
    d["bound"]["mean"] <= d["score"]["mean"] <= d["greedy"]["mean"] and d["replicas"] == 4
    and d["replica_bytes"] == 4 * 3 * 3 * 64 * 32 * 2 and d["steps"] == 12'

# ---- sizes ----
slots_of() { # ARGS...: prints slots per rank of the first layer
    quiet b plan --model model.json --trace one.blt -o z.plan.json "$@" &&
        python3 -c 'import json,sys; print([len(s) for s in json.load(open(sys.argv[1]))["layers"][0]["slots"]])' "$work/z.plan.json"
}
is() { [ "$1" = "$2" ] || { echo "# got $1, wanted $2" && false; }; }
check "uneven slots are laid out" is "$(slots_of --ranks 3 --redundant 0)" "[3, 3, 2]"
check "auto shares evenly" is "$(slots_of --ranks 3 --redundant auto)" "[3, 3, 3]"
check "a list of slots" is "$(slots_of --ranks 3 --slots-per-rank 4,3,2)" "[4, 3, 2]"
check "masked ranks hold nothing" is "$(slots_of --ranks 4 --slots 12 --mask 1)" "[3, 0, 3, 3]"
remedy() { b plan --model model.json --trace one.blt --ranks 3 --redundant 0 -o z.plan.json 2>&1 >/dev/null | grep -q -- '--redundant 1 makes'; }
check "the remedy is a number" remedy

# ---- replay ----
replays() { quiet b replay --trace steps.blt --topology hgx-h100 a.plan.json --json "$@" >"$work/r.json"; }
check "replay" replays
check "replay leaves out what was planned on" holds "$work/r.json" '
    d["steps"] == 6 and d["verdict"] in ("recommend", "not worth it") and d["plans"][0]["name"] == "a.plan.json"
    and set(d["plans"][0]["imbalance"]) == {"mean", "p50", "p95", "p99", "max"}
    and d["plans"][0]["modelled"] is True and d["plans"][0]["step_us"]["mean"] > 0
    and d["plans"][0]["bytes"] == {}'
replay_is_true() {
    python3 - "$work" <<'END'
import json, sys
w = sys.argv[1]
plan = json.load(open(w + "/a.plan.json"))
steps = json.load(open(w + "/steps.json"))["load"][6:]
got = json.load(open(w + "/r.json"))["plans"][0]
x = []
for i, layer in enumerate(plan["layers"]):
    copies = [sum(e in s for s in layer["slots"]) for e in range(8)]
    for step in steps:
        loads = [sum(step[i][e] / copies[e] for e in s) for s in layer["slots"]]
        x.append(max(loads) * 4 / sum(loads))
x.sort()
def q(p):
    at = p * (len(x) - 1)
    lo = int(at)
    return x[lo] + (at - lo) * (x[min(lo + 1, len(x) - 1)] - x[lo])
want = {"mean": sum(x) / len(x), "p50": q(.5), "p95": q(.95), "p99": q(.99), "max": x[-1]}
for key in want:
    assert abs(want[key] - got["imbalance"][key]) < 1e-6, (key, want, got)
assert abs(sum(1 / v for v in x) / len(x) - got["balancedness"]) < 1e-6
END
}
check "imbalance is that of the slots" replay_is_true
own_steps_only() { replays --steps 0:6; }
check "nothing but own steps" own_steps_only
check "... is not enough evidence" holds "$work/r.json" 'd["steps"] == 0 and d["verdict"] == "not enough evidence"'
others_trace() { quiet b replay --trace one.blt --topology hgx-h100 a.plan.json --json >"$work/r.json"; }
check "another trace" others_trace
check "... leaves nothing out" holds "$work/r.json" 'd["steps"] == 1 and d["plans"][0]["imbalance"]["mean"] >= 1'
greedy_baseline() { replays --baseline greedy && holds "$work/r.json" 'd["baseline"]["name"] == "greedy"'; }
check "greedy baseline" greedy_baseline
plan_baseline() { replays --baseline a.plan.json && holds "$work/r.json" 'd["plans"][0]["moves"] == 0 and d["verdict"] == "not worth it"'; }
check "a plan against itself is not worth it" plan_baseline

# ---- diff, current ----
b plan --model model.json --topology hgx-h100 --ranks 4 --trace one.blt --slots 12 --algorithm contiguous -o start.plan.json 2>/dev/null
self_diff() { quiet b diff a.plan.json a.plan.json --topology hgx-h100 --json >"$work/d.json" && holds "$work/d.json" '
    d["moves"] == 0 and d["bytes"] == 0 and d["seconds"] == {"modelled": True, "value": 0.0}
    and d["layers"] == [{"layer": l, "moves": 0} for l in (1, 2, 3)]'; }
check "a plan differs from itself in nothing" self_diff
start_diff() {
    quiet b diff start.plan.json a.plan.json --topology hgx-h100 --json >"$work/d.json" && python3 - "$work" <<'END'
import json, sys
w = sys.argv[1]
d = json.load(open(w + "/d.json"))
a, b = (json.load(open(w + "/" + n + ".plan.json"))["layers"] for n in ("start", "a"))
moves = [sum(len(set(q) - set(p)) for p, q in zip(x["slots"], y["slots"])) for x, y in zip(a, b)]
assert d["moves"] == sum(moves) > 0 and [l["moves"] for l in d["layers"]] == moves
assert d["bytes"] == sum(moves) * 3 * 64 * 32 * 2 and d["seconds"]["value"] > 0
END
}
check "moves and bytes by hand" start_diff
unchanged() { quiet toy --trace steps.blt --steps 0:6 --current a.plan.json -o e.plan.json --json >"$work/s.json" && holds "$work/s.json" 'd["moves"] == 0 and d["slots"] == 12'; }
check "an unchanged load moves nothing" unchanged
budget() { quiet toy --trace steps.blt --current start.plan.json --max-moves 4 -o e.plan.json && quiet b diff start.plan.json e.plan.json --json >"$work/d.json" && holds "$work/d.json" 'd["moves"] <= 4' && holds "$work/e.plan.json" 'd["epoch"] == 1'; }
check "a budget of moves" budget

# ---- export ----
exports() { b export a.plan.json --to sglang -o map.json 2>"$work/flags"; }
check "export" exports
check "... is the map and nothing else" holds "$work/map.json" 'list(d) == ["physical_to_logical_map"]
    and len(d["physical_to_logical_map"]) == 4 and d["physical_to_logical_map"][0] == [0,1,2,3,4,5,6,7,0,1,2,3]'
map_is_plan() { python3 - "$work" <<'END'
import json, sys
w = sys.argv[1]
rows = json.load(open(w + "/map.json"))["physical_to_logical_map"]
for layer in json.load(open(w + "/a.plan.json"))["layers"]:
    assert rows[layer["layer"]] == sum(layer["slots"], [])
END
}
check "... row by row" map_is_plan
check "flags are named" grep -q -- '--init-expert-location map.json --ep-size 4 --ep-num-redundant-experts 4' "$work/flags"
as_current() { quiet toy --trace steps.blt --steps 0:6 --slots 12 --current map.json -o f.plan.json && quiet b diff a.plan.json f.plan.json --json >"$work/d.json" && holds "$work/d.json" 'd["moves"] == 0'; }
check "the map comes back as current placement" as_current
b plan --model model.json --ranks 3 --trace one.blt --redundant 0 -o uneven.plan.json 2>/dev/null
check "uneven ranks are not for this engine" fails_with 'plan with --redundant 1' b export uneven.plan.json --to sglang -o no.json
check "... and nothing is left behind" [ ! -e "$work/no.json" ]

# ---- per-step split ----
per_step() { quiet toy --trace steps.blt --slots 12 --steps 0:6 --rule per-step -o s.plan.json && holds "$work/s.plan.json" 'all(l["split"]["rule"] == "per-step" for l in d["layers"]) and d["provenance"]["rule"] == "per-step"'; }
check "a plan for the per-step split" per_step
scored_anew() {
    quiet b replay --trace steps.blt --topology hgx-h100 a.plan.json --json >"$work/e.json" &&
        quiet b replay --trace steps.blt --topology hgx-h100 a.plan.json --rule per-step --json >"$work/r.json" &&
        python3 -c 'import json,sys; e,r=[json.load(open(f))["plans"][0]["imbalance"]["mean"] for f in sys.argv[1:]]; sys.exit(not 1 <= r < e)' "$work/e.json" "$work/r.json"
}
check "replay splits each step anew" scored_anew
check "nearest without source ranks" fails_with 'where tokens come from' b replay --trace steps.blt --topology hgx-h100 a.plan.json --rule nearest

# ---- time
check "plan for time" quiet toy --trace one.blt --slots 12 --objective time --tokens-per-rank 16 --threads 1 -o time.plan.json
check "... has its time and bound, and the gap refers to them" holds "$work/time.plan.json" '
    d["provenance"]["objective"] == "time" and d["provenance"]["tokens_per_rank"] == 16
    and all(l["time"]["modelled"] is True and l["time"]["step_us"] >= l["time"]["bound_us"] > 0 for l in d["layers"])
    and all(abs(l["time"]["step_us"] / l["time"]["bound_us"] - 1 - l["gap"]) < 1e-9 for l in d["layers"])'
twice() { quiet toy --trace one.blt --slots 12 --objective time --tokens-per-rank 16 --threads 2 -o again.plan.json && cmp "$work/time.plan.json" "$work/again.plan.json"; }
check "... and is the same again" twice
beside() { quiet toy --trace one.blt --slots 12 --json -o tokens.plan.json >"$work/tokens.json"; }
check "plan for tokens" beside
check "... tells its time beside" holds "$work/tokens.json" 'd["objective"] == "tokens" and d["step_us"]["modelled"] and d["step_us"]["score"] >= d["step_us"]["bound"] > 0'

# ---- refusals ----
no_idle() { b import --from load-json idle.json --model model.json --layers moe -o idle.blt 2>/dev/null; }
no_idle
keeps() { b plan --model model.json --ranks 4 --slots 12 --trace idle.blt -o i.plan.json 2>"$work/warn" && grep -q 'layer 2.*keep their placement' "$work/warn" && holds "$work/i.plan.json" '2 in d["provenance"]["idle_layers"] + d["provenance"]["missing_layers"]'; }
check "a layer without load keeps its place, with one warning" keeps
check "... which --strict refuses" fails_with 'layer 2: has no load' b plan --model model.json --ranks 4 --slots 12 --trace idle.blt --strict -o no.plan.json
check "nearest without source ranks" fails_with 'where tokens come from' toy --trace one.blt --slots 12 --rule nearest -o no.plan.json
check "an objective over steps that is none" fails_with 'cvar:A' toy --trace one.blt --slots 12 --over max -o no.plan.json
check "time without a topology" fails_with 'needs --topology' b plan --model model.json --ranks 4 --trace one.blt --slots 12 --objective time -o no.plan.json
check "time under another rule" fails_with "'even' only" toy --trace one.blt --slots 12 --objective time --rule per-step -o no.plan.json
check "no slots" fails_with 'say how many slots' toy --trace one.blt -o no.plan.json
check "too few slots" fails_with '--redundant 0' toy --trace one.blt --slots 7 -o no.plan.json
check "too many ranks" fails_with '8 ranks, not 9' b plan --model model.json --topology hgx-h100 --ranks 9 --slots 9 --trace one.blt -o no.plan.json
check "moves from nowhere" fails_with '--current' toy --trace one.blt --slots 12 --max-moves 3 -o no.plan.json
check "no such step" fails_with 'steps' toy --trace one.blt --slots 12 --steps 5:9 -o no.plan.json
check "full disk" fails_with 'cannot write' toy --trace one.blt --slots 12 -o /dev/full
check "no folder" fails_with 'cannot create' toy --trace one.blt --slots 12 -o nowhere/no.plan.json
check "nothing half-written" [ ! -e "$work/no.plan.json" ]
head -c 300 "$work/a.plan.json" >"$work/cut.plan.json"
sed '0,/"ranks":4/s//"ranks":5/' "$work/a.plan.json" >"$work/ranks.plan.json"
sed 's/"version":1/"version":9/' "$work/a.plan.json" >"$work/version.plan.json"
sed 's/"top_k":2/"top_k":1/;s/"num_experts_per_tok":2/"num_experts_per_tok":1/' "$work/a.plan.json" >"$work/edited.plan.json"
for broken in cut:line ranks:ranks version:'version 9' edited:digest; do
    check "broken plan: ${broken%%:*}" fails_with "${broken#*:}" b diff "${broken%%:*}.plan.json" a.plan.json
done
check "a missing plan" fails_with 'cannot open' b diff a.plan.json nowhere.plan.json
json_error() { b diff cut.plan.json a.plan.json --json 2>/dev/null >"$work/err.json"; [ $? -eq 1 ] && holds "$work/err.json" 'd["error"]["code"] == "ERR_PARSE" and d["error"]["file"] == "cut.plan.json" and d["error"]["line"] >= 1'; }
check "errors in JSON" json_error

# ---- greedy is known to fail here: the cold expert must be copied ----
cat >"$work/k.model.json" <<'END'
{"name":"k","num_hidden_layers":1,"moe_layers":[0],"num_experts":5,"num_experts_per_tok":1,"hidden_size":8,"moe_intermediate_size":8}
END
echo '{"load":[[16,12,11,15,0]]}' >"$work/k.json"
cold() {
    b import --from load-json k.json --model k.model.json -o k.blt 2>/dev/null &&
        quiet b plan --model k.model.json --ranks 2 --slots 6 --trace k.blt -o k.plan.json &&
        holds "$work/k.plan.json" 'sorted(map(sorted, d["layers"][0]["slots"])) == [[0, 2, 4], [1, 3, 4]]
            and abs(d["layers"][0]["score"]["max_over_mean"] - 1) < 1e-9'
}
check "the cold expert is copied" cold

# ---- what must not be passed over ----
# notes TEXT COMMAND...: succeeds, and a line on standard error holds TEXT.
notes() {
    local text=$1 err
    shift
    err=$("$@" 2>&1 >/dev/null) && [[ $err == *"$text"* ]]
}
edited() { # EXPRESSION: one.plan.json changed by it, without its digest
    python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); d.pop("digest"); exec(sys.argv[3]); json.dump(d, open(sys.argv[2], "w"))' \
        "$work/base.plan.json" "$work/edited.plan.json" "$1"
}
base() { toy --trace one.blt --slots 12 --seed 3 -o base.plan.json 2>/dev/null && b synth --model model.json --steps 8 -o other.blt; }
check "a plan to edit" base
for steps in '[5,1]' '[-1,2]' '[1]' '"all"' '[0.5,2]' '[0,1,2]'; do
    edited "d['provenance']['steps'] = json.loads('$steps')"
    check "provenance.steps $steps" fails_with '"steps" of the provenance' b diff base.plan.json edited.plan.json
done
edited "d['epoch'] = 2**63 - 1"
check "the last epoch" fails_with "epoch 9223372036854775807" \
    toy --trace other.blt --slots 12 --current edited.plan.json --min-gain 0 -o x.plan.json
check "the last epoch leaves nothing behind" test ! -e "$work/x.plan.json"
sed 's/"toy"/"boat"/' "$work/model.json" >"$work/boat.json"
check "a trace of another model, planned" notes 'recorded from model "toy", not "boat"' \
    b plan --model boat.json --ranks 4 --slots 12 --trace one.blt -o boat.plan.json
check "a trace of another model, scored" notes 'recorded from model "toy", not "boat"' \
    b replay --trace steps.blt --topology hgx-h100 boat.plan.json
check "more steps than there are, planned" notes "has 12 steps, so --steps 3:99 ends at 12" \
    toy --trace steps.blt --slots 12 --steps 3:99 -o x.plan.json
check "more steps than there are, scored" notes "has 12 steps, so --steps 3:99 ends at 12" \
    b replay --trace steps.blt --topology hgx-h100 --steps 3:99 base.plan.json
check "a baseline misspelt" fails_with "did you mean greedy?" \
    b replay --trace steps.blt --topology hgx-h100 base.plan.json --baseline greddy
check "an empty file" fails_with "/dev/null: is empty" b diff base.plan.json /dev/null
cat >"$work/deep.json" <<'END'
{"name":"deep","num_hidden_layers":4,"moe_layers":[0,1,2],"num_experts":8,"num_experts_per_tok":2,
 "hidden_size":64,"moe_intermediate_size":32}
END
check "another model's layers" fails_with "layer 3: is not a MoE layer of deep" \
    b export base.plan.json --to sglang --model deep.json -o x.json
check "slots below none" fails_with "one number from 0 up or auto" toy --trace one.blt --redundant -4 -o x.plan.json
check "two numbers of slots" fails_with "one number from 0 up or auto" toy --trace one.blt --redundant 4,4 -o x.plan.json

# ---- several traces: what a plan has seen is told file by file ----
left_out() { # N TRACE... -- PLAN: replay leaves N steps out
    local want=$1 traces=()
    shift
    while [ "$1" != -- ]; do
        traces+=(--trace "$1")
        shift
    done
    b replay "${traces[@]}" --topology hgx-h100 --json "$2" 2>/dev/null >"$work/seen.json"
    holds "$work/seen.json" "d['steps_left_out'] == $want"
}
halves() {
    python3 - "$work" <<'END'
import json, os, sys
os.chdir(sys.argv[1])
steps = json.load(open("steps.json"))["load"]
for name, part in ("a", steps[:5]), ("b", steps[5:]):
    json.dump({"load": part}, open(name + ".json", "w"))
END
    for half in a b; do
        b import --from load-json $half.json --model model.json --layers moe -o $half.blt 2>/dev/null || return 1
    done
    toy8() { b plan --model model.json --topology hgx-h100 --slots 16 "$@" 2>/dev/null; }
    toy8 a.blt -o a.plan.json && toy8 b.blt --steps 0:3 -o b3.plan.json &&
        toy8 a.blt b.blt --steps 3:8 -o ab.plan.json
}
check "a trace in two files" halves
check "planned on the first, scored on both" left_out 5 a.blt b.blt -- a.plan.json
check "planned on the second, scored on both" left_out 3 a.blt b.blt -- b3.plan.json
check "in the other order" left_out 5 b.blt a.blt -- a.plan.json
check "the same file twice" left_out 10 a.blt a.blt -- a.plan.json
check "planned on both, scored on both" left_out 5 a.blt b.blt -- ab.plan.json
check "planned on both, scored in the other order" left_out 5 b.blt a.blt -- ab.plan.json
check "planned on both, scored on the first" left_out 2 a.blt -- ab.plan.json
check "planned on both, scored on the second" left_out 3 b.blt -- ab.plan.json
check "planned on the first, scored on the second" left_out 0 b.blt -- a.plan.json

# ---- what counts over the steps ----
check "over the worst steps" quiet toy --trace steps.blt --slots 12 --over cvar:0.75 --half-life 4 -o worst.plan.json
check "... says so" holds "$work/worst.plan.json" 'd["provenance"]["over"] == "cvar:0.75" and d["provenance"]["robust"] and d["provenance"]["half_life"] == 4'
check "over the mean" quiet toy --trace steps.blt --slots 12 --steps 0:6 -o mean.plan.json
check "... by default" holds "$work/mean.plan.json" 'd["provenance"]["over"] == "mean" and d["provenance"]["robust"]'
check "over these steps alone" quiet toy --trace steps.blt --slots 12 --steps 0:6 --over sample -o sample.plan.json
check "... is no worse on them" holds "$work/sample.plan.json" 'not d["provenance"]["robust"] and all(
    l["score"]["max_over_mean"] <= m["score"]["max_over_mean"] for l, m in zip(d["layers"], json.load(open("'"$work"'/mean.plan.json"))["layers"]))'

# ---- real loads, all the way ----
glm=$(cd "$shared" 2>/dev/null && pwd)
if [ -r "$glm/routing/glm-5.2/chat.load.json" ]; then
    config=$glm/configs/aiconfigurator/zai-org--GLM-5.2_config.json
    way() {
        for domain in chat news; do
            b import --from load-json "$glm/routing/glm-5.2/$domain.load.json" --model "$config" -o $domain.blt || return 1
            b plan --trace $domain.blt --model "$config" --topology hgx-h100:nodes=4 --slots 288 -o $domain.plan.json || return 1
        done
        b replay --trace news.blt --topology hgx-h100:nodes=4 chat.plan.json --json >"$work/r.json" &&
            b diff chat.plan.json news.plan.json --topology hgx-h100:nodes=4 --json >"$work/d.json" &&
            b export news.plan.json --to sglang -o news.json
    }
    check "real loads from import to export" quiet way
    check "gap at most 0.1 %" holds "$work/chat.plan.json" 'sum(l["gap"] for l in d["layers"]) / 75 <= 0.001'
    check "another domain is told apart" holds "$work/r.json" 'd["steps"] == 1 and d["plans"][0]["imbalance"]["mean"] > 1.4'
    check "most of the copies would move" holds "$work/d.json" 'd["moves"] > 75 * 200 and d["seconds"]["value"] > 0'
    check "78 rows of 288 slots" holds "$work/news.json" '[len(r) for r in d["physical_to_logical_map"]] == [288] * 78'
else
    skip "real loads from import to export" "no $shared"
fi
finish
