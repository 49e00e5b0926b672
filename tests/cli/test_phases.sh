#!/bin/bash
# Prefill and decode apart, in plans and in replays; what a replay does not take on trust.
. tests/tap.sh
case $ballast in /*) ;; *) ballast=$PWD/$ballast ;; esac
cd "$work" || exit 1
b() { "$ballast" "$@" 2>>log; }
holds() { python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); sys.exit(not ('"$2"'))' "$1"; }

echo '{"name":"toy","num_hidden_layers":2,"moe_layers":[0,1],"num_experts":8,"num_experts_per_tok":1,
 "hidden_size":4096,"moe_intermediate_size":2048}' >model.json
sed 's/"toy"/"boat"/' model.json >boat.json
python3 - <<'END'
import json
def steps(hot, rows, n):
    return [[[rows if e == hot else 0 for e in range(8)] for _ in range(2)] for _ in range(n)]
json.dump({"load": steps(0, 10000, 8)}, open("prefill.json", "w"))
json.dump({"load": steps(3, 100, 8)}, open("decode.json", "w"))
json.dump({"load": [[[100] * 8] * 2] * 12}, open("level.json", "w"))
json.dump({"load": [[[100 + 10 * ((e + s) % 2) for e in range(8)] for _ in range(2)] for s in range(12)]}, open("noise.json", "w"))
END
for phase in prefill decode; do b import --from load-json $phase.json --model model.json --phase $phase -o $phase.blt; done
for load in level noise; do b import --from load-json $load.json --model model.json --phase decode -o $load.blt; done
plan() { b plan --model model.json --topology hgx-h100 --ranks 4 --slots 12 "$@"; }
replay() { b replay --topology hgx-h100 "$@"; }
mixed=(--trace prefill.blt --trace decode.blt)

# ---- plans ------------------------------------------------------------------------------------

# ascend #9061
decode_copies_3() { plan "${mixed[@]}" --phase decode -o decode.plan.json && holds decode.plan.json 'all(sum(3 in r for r in l["slots"]) == 4 for l in d["layers"])'; }
prefill_copies_0() { plan "${mixed[@]}" --phase prefill -o prefill.plan.json && holds prefill.plan.json 'all(sum(0 in r for r in l["slots"]) == 4 for l in d["layers"])'; }
check "prefill on expert 0, decode on 3: the decode plan copies 3" decode_copies_3
check "... and the prefill plan copies 0" prefill_copies_0
timed_decode() { plan "${mixed[@]}" --phase decode --objective time -o t.plan.json && holds t.plan.json 'all(sum(3 in r for r in l["slots"]) == 4 for l in d["layers"])'; }
check "... for time as well" timed_decode
warns() { "$ballast" plan --model model.json --topology hgx-h100 --ranks 4 --slots 12 "${mixed[@]}" "$@" -o mix.plan.json 2>&1 | grep -q 'phases of different traffic'; }
check "a plan of mixed phases says so" warns
quiet_all() { ! warns --phase all; }
check "... unless --phase all asks for it" quiet_all
check "it predicts each phase, by layer" holds mix.plan.json '
    sorted(d["predicted"]) == ["decode", "prefill"] and d["predicted"]["decode"]["steps"] == 8
    and all(p["imbalance"]["mean"] <= p["imbalance"]["p95"] <= p["imbalance"]["p99"] <= p["imbalance"]["worst"] for p in d["predicted"].values())
    and all([l["layer"] for l in p["layers"]] == [0, 1] and p["modelled"] for p in d["predicted"].values())'
tail_is_told() { plan --trace noise.blt --over cvar:0.75 --json -o cvar.plan.json >cvar.json && holds cvar.json 'd["predicted"]["decode"]["imbalance"]["tail"]["part"] == 0.25'; }
check "--over cvar:A is told beside" tail_is_told

# ---- replays ----------------------------------------------------------------------------------

phases_apart() { replay "${mixed[@]}" decode.plan.json --json >r.json; }
check "replay of two phases" phases_apart
check "... gives the figures of each" holds r.json '
    sorted(d["phases"]) == ["decode", "prefill"]
    and d["phases"]["decode"]["steps"] == 0 and d["phases"]["decode"]["steps_left_out"] == 8
    and d["phases"]["prefill"]["steps"] == 8 and d["phases"]["prefill"]["plans"][0]["imbalance"]["mean"] > 1.0
    and d["phases"]["prefill"]["verdict"] == "not worth it" and d["verdict"] in ("not worth it", "not enough evidence")'
greedy() {
    plan "${mixed[@]}" --steps 8:12 --phase decode -o part.plan.json &&
        replay "${mixed[@]}" part.plan.json --baseline greedy --json >r.json &&
        holds r.json 'd["baseline"]["name"] == "greedy" and d["phases"]["prefill"]["baseline"]["name"] == "contiguous" and d["phases"]["decode"]["baseline"]["name"] == "greedy"'
}
check "a phase that greedy has seen nothing of is compared with the start layout" greedy
one_phase() { replay "${mixed[@]}" decode.plan.json --phase prefill --json >r.json && holds r.json 'list(d["phases"]) == ["prefill"] and d["steps"] == 8'; }
check "one phase alone" one_phase
requests() {
    b synth --model model.json --steps 6 --ranks 4 --tokens-per-step 400 -o synth.blt && replay --trace synth.blt decode.plan.json --json >r.json &&
        holds r.json 'd["phases"]["decode"]["requests"]["ranks"] == 4 and d["phases"]["decode"]["requests"]["max_over_mean"]["mean"] == 1.0'
}
check "requests are apart from experts" requests
unknown_sources() { replay --trace level.blt decode.plan.json --json >r.json && holds r.json 'd["phases"]["decode"]["requests"]["max_over_mean"]["mean"] is None'; }
check "... and null where sources are summed" unknown_sources
# sgl #6017
level_gain() {
    b plan --model model.json --topology hgx-h100 --ranks 4 --slots 8 --trace level.blt --steps 0:4 -o level.plan.json && replay --trace level.blt level.plan.json >r.txt &&
        grep -q 'at most 1 %' r.txt && replay --trace level.blt level.plan.json --json >r.json && holds r.json 'd["gain"] <= 0.01 and d["verdict"] == "not worth it"'
}
check "uniform load: the gain is at most 1 %, not worth it" level_gain
noise_floor() { replay --trace noise.blt decode.plan.json --json >r.json && holds r.json '1.0 < d["noise_floor"]["mean"] < 1.1 and d["noise_floor"]["statistic"] is True'; }
check "the noise floor is a statistic" noise_floor
point() {
    replay --trace noise.blt decode.plan.json --json >r1.json && replay --trace noise.blt decode.plan.json --tokens-per-rank 4096 --json >r2.json &&
        holds r2.json 'd["plans"][0]["step_us"]["mean"] > 5 * json.load(open("r1.json"))["plans"][0]["step_us"]["mean"]'
}
check "times at another operating point" point

# ---- what is not taken on trust -----------------------------------------------------------------

b synth --model model.json --steps 12 --ranks 4 --tokens-per-step 200000 -o synth.blt # several chunks
head -c $(($(stat -c %s synth.blt) / 2)) synth.blt >cut.blt
plan --trace cut.blt -o cut.plan.json
# (a note about the sample of so many tokens comes before the error)
not_trusted() { ! "$ballast" replay --trace synth.blt --topology hgx-h100 cut.plan.json 2>err && tail -1 err | grep -q 'with --steps A:B'; }
check "a plan of a cut trace against the whole one" not_trusted
named() { replay --trace synth.blt cut.plan.json --steps 10:12 --json >r.json && holds r.json 'd["steps"] == 2'; }
check "... is scored where the user says what it has not seen" named
own_cut() { replay --trace cut.blt cut.plan.json --json >r.json && holds r.json 'd["steps"] == 0 and d["steps_left_out"] > 0'; }
check "... and against the cut one, which it knows" own_cut
b import --from load-json level.json --model boat.json --phase decode -o boat.blt
passes() { replay --trace boat.blt decode.plan.json >r.txt && grep -q 'boat' log; }
check "another model's name passes, with a warning" passes
check "... but not with --strict" fails_with 'is of boat' "$ballast" replay --trace boat.blt --topology hgx-h100 decode.plan.json --strict
check "... nor in a plan" fails_with 'is of boat' "$ballast" plan --model model.json --ranks 4 --slots 12 --trace boat.blt --strict -o no.json
finish
