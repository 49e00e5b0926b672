#!/bin/bash
# What went wrong for others, tried from the outside: each check names the public report it comes
# from. Loads go in by `import`, answers come out by `plan`, `replay`, `diff`, `stat` and `size`.
. tests/tap.sh
case $ballast in /*) ;; *) ballast=$PWD/$ballast ;; esac
cd "$work" || exit 1

# model FILE E LAYERS MOE_LAYERS: a model.json of E experts, top-2.
model() {
    printf '{"name":"toy","num_hidden_layers":%d,"moe_layers":%s,"num_experts":%d,"num_experts_per_tok":2,
        "hidden_size":64,"moe_intermediate_size":32}\n' "$3" "$4" "$2" >"$1"
}
# load NAME MODEL JSON: NAME.blt from the loads given, steps × layers × experts.
load() {
    printf '{"load":%s}\n' "$3" >"$1.json"
    "$ballast" import --from load-json "$1.json" --model "$2" --layers moe -o "$1.blt" 2>"$1.err"
}
quietly() { "$@" >/dev/null 2>&1; }
plan() { quietly "$ballast" plan --topology hgx-h100:nodes=32 --threads 1 "$@"; }
# is FILE EXPRESSION: the expression is true of the JSON document d in FILE.
is() {
    python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); sys.exit(0 if eval("(" + sys.argv[2] + ")") else 1)' "$@"
}
stat_is() {
    "$ballast" stat "$1" --json >stat.json 2>/dev/null && is stat.json "$2"
}

model m4.json 4 1 '[0]'
model m5.json 5 1 '[0]'
model m8.json 8 1 '[0]'

# ---- plans that greedy gets wrong: busiest rank, exact by brute force ---------------------------
peak_is() { # LOADS SLOTS RANKS PEAK NAME
    local name=$5 experts
    experts=$(python3 -c 'import sys; print(len(eval(sys.argv[1])))' "$1")
    load k "m$experts.json" "[[$1]]" || return 1
    plan --trace k.blt --model "m$experts.json" --ranks "$3" --slots "$2" -o k.plan.json || return 1
    python3 - "$1" "$4" "$name" <<'END'
import json, sys
load, peak = eval(sys.argv[1]), float(sys.argv[2])
layer = json.load(open("k.plan.json"))["layers"][0]
copies = [sum(e in rank for rank in layer["slots"]) for e in range(len(load))]
ranks = [sum(load[e] / copies[e] for e in rank) for rank in layer["slots"]]
assert all(len(set(rank)) == len(rank) for rank in layer["slots"]), layer["slots"]
assert min(copies) >= 1 and abs(max(ranks) - peak) < 1e-3, (copies, ranks)
assert layer["gap"] < 1e-9
END
}
check "[8,8,8,8] on 4 ranks of 2 slots: 8, no expert twice on a rank (eplb #22)" peak_is '[8,8,8,8]' 8 4 8
check "[16,12,11,15,0] on 2 ranks of 3 slots: 27, a cold expert has two copies" peak_is '[16,12,11,15,0]' 6 2 27
check "[600,560,120,...] on 8 ranks of 2 slots: 196.667" peak_is '[600,560,120,120,20,10,10,10]' 16 8 196.6667

# ---- no load, odd load --------------------------------------------------------------------------
check "no traffic at all is an error, not a trace" fails_with "it holds no tokens" \
    "$ballast" import --from load-json <(printf '{"load":[[0,0,0,0,0,0,0,0]]}') --model m8.json --layers moe -o none.blt
check "and leaves nothing behind" test ! -e none.blt
printf '{"load":[[1,NaN,3,4,5,6,7,8]]}' >nan.json
check "a count that is no number is refused (ascend #12154)" fails_with "nan.json" \
    "$ballast" import --from load-json nan.json --model m8.json --layers moe -o nan.blt
model two.json 8 2 '[0,1]'
load idle two.json '[[[9,1,1,1,1,1,1,1],[0,0,0,0,0,0,0,0]]]'
idle_layer_stays() {
    "$ballast" plan --topology hgx-h100 --ranks 4 --trace idle.blt --model two.json --slots 12 -o idle.plan.json >/dev/null 2>idle.txt
    is idle.plan.json 'len(d["layers"]) == 2 and d["layers"][1]["slots"] == [[0,1,2],[3,4,5],[6,7,0],[1,2,3]]' && grep -q 'layer 1\b' idle.txt
}
check "a layer without load keeps the placement that engines start with, and is named" idle_layer_stays

# ---- what the tracer counts ---------------------------------------------------------------------
load even m4.json '[[[10,10,10,10]]]'
check "true loads [10,10,10,10] are level (padding is no load)" stat_is even.blt \
    'd["layers"][0]["assignments"] == 40 and d["layers"][0]["max_over_mean_experts"] == 1 and d["layers"][0]["conserved"]'
load short two.json '[[[10,10,10,10,0,0,0,0],[10,10,10,9,0,0,0,0]]]'
check "40 assignments in one layer and 39 in another: flagged (vllm #21883)" stat_is short.blt \
    '[l["conserved"] for l in d["layers"]] == [True, False]'
check "and refused by layer" fails_with "layer 1" "$ballast" plan --topology hgx-h100 --ranks 4 --trace short.blt --model two.json --slots 12 -o short.plan.json
model m58.json 8 61 "[$(seq -s, 3 60)]"
printf '{"load":[%s%s]}' '[9,1,1,1,1,1,1,1]' "$(for _ in $(seq 57); do printf ',[0,0,0,0,0,0,0,0]'; done)" >first.json
quietly "$ballast" import --from load-json first.json --model m58.json --layers moe -o first.blt
check "58 layers expected, counts in one: refused (kvcache-ai/sglang #45)" fails_with "1 of the 58" \
    "$ballast" plan --topology hgx-h100 --trace first.blt --model m58.json --slots 16 -o first.plan.json
load other m4.json '[[[4,3,2,1]]]'
load mine m8.json '[[[4,3,2,1,1,1,1,1]]]'
check "two models with a layer 0 are kept apart (vllm #48622)" fails_with "other.blt" \
    "$ballast" plan --topology hgx-h100 --ranks 4 --trace mine.blt --trace other.blt --model m8.json --slots 8 -o mix.plan.json

# top_k E HIGHEST: a dump of two tokens, the second with one empty slot; the highest id survives.
top_k() {
    model wide.json "$1" 1 '[0]'
    printf 'pos,layer,e0,e1\n0,0,0,%d\n1,0,%d,-1\n' "$2" "$2" >wide.csv
    quietly "$ballast" import --from topk-csv wide.csv --model wide.json --layers all -o wide.blt || return 1
    stat_is wide.blt "d['tokens'] == 2 and d['layers'][0]['assignments'] == 3 and d['layers'][0]['empty'] == 1
        and d['layers'][0]['hottest_expert'] == $2"
}
for e in 256 512 65536; do
    check "$e experts: id $((e - 1)) and an empty slot in one file (prime-rl #3051)" top_k $e $((e - 1))
done

# ---- layers -------------------------------------------------------------------------------------
# A model like DeepSeek-V3: 61 decoder layers, the first 3 dense.
rows() { printf '{"load":[%s]}' "$(for i in $(seq "$1"); do printf '%s[%d,9,8,7,6,5,4,3]' "$([ "$i" = 1 ] || printf ,)" "$((i + 8))"; done)"; }
rows 58 >r58.json
rows 61 >r61.json
rows 62 >r62.json
takes() { "$ballast" import --from load-json "$1" --model m58.json "${@:2}" -o rows.blt >/dev/null 2>&1; }
refuses() { ! takes "$@"; }
check "58 rows as the MoE layers" takes r58.json --layers moe
check "they are decoder layers 3 to 60" stat_is rows.blt '[l["layer"] for l in d["layers"]] == list(range(3, 61))'
check "58 rows are not all decoder layers" refuses r58.json --layers all
check "61 rows are not the MoE layers" refuses r61.json --layers moe
check "62 rows are neither" refuses r62.json --layers moe
check "62 rows are no decoder layers of 61" refuses r62.json --layers all

hole() { # a plan in which expert 5 of layer 17 has no slot
    model m18.json 8 18 '[17]'
    load one m18.json '[[[9,8,7,6,5,4,3,2]]]' && plan --trace one.blt --model m18.json --ranks 4 --slots 8 -o hole.plan.json
    python3 - <<'END'
import json
d = json.load(open("hole.plan.json"))
for rank in d["layers"][0]["slots"]:
    for i, e in enumerate(rank):
        if e == 5:
            rank[i] = next(x for x in range(8) if x not in rank)
del d["digest"]
for layer in d["layers"]:
    layer.pop("split", None)
json.dump(d, open("hole.plan.json", "w"))
END
    fails_with "expert 5 has no slot" "$ballast" export hole.plan.json --to sglang -o hole.json
}
check "a plan without expert 5: layer and expert are named" hole

# ---- sizes --------------------------------------------------------------------------------------
for case in 256:3:2 384:36:12 60:8:4; do
    IFS=: read -r e g r <<<"$case"
    remedy() {
        model h.json "$e" 1 '[0]'
        "$ballast" size --model h.json --ep "$g" --redundant 0 | grep -q "R = (-$e) mod $g = $r makes them equal"
    }
    check "$e experts on $g ranks: $r redundant slots make them equal (vllm #52435)" remedy
done
slots_are() { # EXPERTS RANKS SLOTS-OF-EACH
    model h.json "$1" 1 '[0]'
    load hot h.json "[[$(seq -s, "$1")]]" && plan --trace hot.blt --model h.json --ranks "$2" --redundant 0 -o h.plan.json &&
        is h.plan.json "[len(s) for s in d['layers'][0]['slots']] == $3"
}
check "30 experts on 8 ranks without copies: 4,4,4,4,4,4,3,3 (trt #13888)" slots_are 30 8 '[4,4,4,4,4,4,3,3]'
check "128 experts on 6 ranks: 22,22,21,21,21,21" slots_are 128 6 '[22,22,21,21,21,21]'

# ---- moves that are not worth it ----------------------------------------------------------------
moves_are() { # PLAN PLAN N
    "$ballast" diff "$1" "$2" --json >diff.json && is diff.json "d['moves'] == $3"
}
noisy() {
    model m256.json 256 1 '[0]'
    python3 - <<'END'
import json, random
random.seed(7)
base = [1000 * random.paretovariate(1.3) for _ in range(256)]
def total(row): # top-2: an even number of assignments
    row = [round(x) for x in row]
    row[0] += sum(row) % 2
    return row
json.dump({"load": [[total(base)]]}, open("base.json", "w"))
json.dump({"load": [[total([x * random.uniform(0.99, 1.01) for x in base])]]}, open("noise.json", "w"))
END
    for t in base noise; do
        quietly "$ballast" import --from load-json $t.json --model m256.json --layers moe -o $t.blt || return 1
    done
    plan --trace base.blt --model m256.json --ranks 32 --slots 288 -o base.plan.json &&
        plan --trace base.blt --model m256.json --ranks 32 --current base.plan.json -o same.plan.json &&
        plan --trace noise.blt --model m256.json --ranks 32 --current base.plan.json -o noise.plan.json
}
check "Pareto loads on 32 ranks are planned, and planned again" noisy
check "unchanged load: no move" moves_are base.plan.json same.plan.json 0
check "1 % of noise on every expert: no move" moves_are base.plan.json noise.plan.json 0
in_time() { # whatever the clock allows, there is a whole plan (vllm #30131)
    plan --trace base.blt --model m256.json --ranks 32 --slots 288 --time 0.001 -o quick.plan.json
    is quick.plan.json 'sorted(set(sum(d["layers"][0]["slots"], []))) == list(range(256))'
}
check "a time limit returns the best plan so far (vllm #30131)" in_time

# ---- memory, lost ranks -------------------------------------------------------------------------
priced() {
    "$ballast" plan --topology hgx-h100:nodes=32 --ranks 32 --slots 288 --threads 1 --trace base.blt --model m256.json -o p.plan.json 2>&1 |
        grep -q 'extra copies *32 per layer'
}
check "a plan says what its copies cost (vllm #24537)" priced
masked() {
    load lost m8.json '[[[9,8,7,6,5,4,3,2]]]' && plan --trace lost.blt --model m8.json --ranks 4 --slots-per-rank 3,3,3,3 --mask 2 -o lost.plan.json &&
        is lost.plan.json 'd["layers"][0]["slots"][2] == [] and sorted(set(sum(d["layers"][0]["slots"], []))) == list(range(8))'
}
check "rank 2 of 4 is lost: the others cover every expert" masked
check "too few slots left: said with numbers" fails_with "8 experts" \
    "$ballast" plan --topology hgx-h100 --ranks 4 --trace lost.blt --model m8.json --slots-per-rank 2,2,2,2 --mask 2 -o none.plan.json
finish
