#!/bin/bash
# ballast plan: groups kept whole, fault domains, spares, byte budgets, dead ranks.
. tests/tap.sh

holds() {
    python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); sys.exit(0 if eval("(" + sys.argv[2] + ")") else 1)' "$@"
}

# 2 MoE layers of 16 experts in 4 groups; 4 hosts with one NVLink domain per pair of hosts.
cd "$work" || exit 1
cat >model.json <<'END'
{"name":"toy","num_hidden_layers":3,"moe_layers":[1,2],"num_experts":16,"num_experts_per_tok":2,
 "n_group":4,"topk_group":2,"hidden_size":64,"moe_intermediate_size":32}
END
python3 - <<'END'
import json
def figure(v): return {"value": v, "source": "assumed"}
def level(n): return {"name": n, "latency_s": figure(1e-5), "message_s": figure(1e-6),
                      "out_bytes_per_s": figure(1e9), "in_bytes_per_s": figure(1e9), "ports": figure(1)}
json.dump({"format": "ballast-topology", "version": 1, "name": "pairs", "description": "",
    "devices": [{"name": "X", "memory_bytes": figure(1e10), "memory_bytes_per_s": figure(1e12),
                 "expert_share": figure(0.5), "flop_per_s": {"bf16": figure(1e14)}}],
    "levels": [level("nvlink"), level("cluster")],
    "ranks": [{"path": f"n{r // 4}", "host": f"h{r // 2}"} for r in range(8)]}, open("pairs.json", "w"))
load = [[100 * (e + 1) % 700 + 40 for e in range(16)], [900 if e == 5 else 100 for e in range(16)]]
for row in load: row[0] += sum(row) % 2
m = max(map(sum, load))
for row in load: row[1] += m - sum(row)
json.dump({"load": [load]}, open("load.json", "w"))
END
cd - >/dev/null || exit 1
case $ballast in /*) ;; *) ballast=$PWD/$ballast ;; esac
b() { (cd "$work" && "$ballast" "$@"); }
quiet() { "$@" 2>/dev/null; }
check "loads are imported" quiet b import --from load-json load.json --model model.json --layers moe -o t.blt
plan() { b plan --model model.json --trace t.blt --topology pairs.json "$@"; }
says() {
    local text=$1
    shift
    "$@" 2>&1 | grep -qF -- "$text"
}

# ---- groups ----
check "groups whole on an NVLink domain" quiet plan --slots 24 --keep-groups --node nvlink -o groups.json
whole() {
    holds "$work/groups.json" 'all(len({r // '"$1"' for r, s in enumerate(l["slots"]) for e in s if e // 4 == g}) == 1
        for l in d["layers"] for g in range(4)) and d["provenance"]["groups_kept"] == 4'
}
check "... they are" whole 4
check "... and it says what that costs" says "4 groups whole on a nvlink (nodes proven best in 2 layers): max/mean" \
    plan --slots 24 --keep-groups --node nvlink -o groups.json
check "groups whole on a host" quiet plan --slots 24 --keep-groups -o groups.json
check "... they are on hosts" whole 2
check "the hierarchical policy keeps them whole" quiet plan --slots 24 --algorithm greedy-hierarchical --node nvlink -o hier.json
check "... says so" holds "$work/hier.json" 'd["provenance"]["algorithm"] == "greedy-hierarchical" and all(
    len({r // 4 for r, s in enumerate(l["slots"]) for e in s if e // 4 == g}) == 1 for l in d["layers"] for g in range(4))'
check "a level that is none" fails_with 'neither rank, host nor a level of topology pairs, whose first is nvlink' \
    plan --slots 24 --keep-groups --node rack -o x.json
check "more nodes than groups" fails_with '4 groups of experts cannot be kept whole on 8 nodes: 4 nodes would hold nothing' \
    plan --slots 24 --keep-groups --node rank -o x.json
check "groups need a cluster" fails_with 'name the cluster with --topology' \
    b plan --model model.json --trace t.blt --ranks 8 --slots 24 --keep-groups -o x.json
check "... and a model with groups" fails_with 'has no groups of experts' \
    b plan --model <(sed 's/"n_group":4,//; s/"topk_group":2,//' "$work/model.json") --trace t.blt --topology pairs.json --slots 24 --keep-groups -o x.json

# ---- fault domains ----
check "two copies on two hosts" quiet plan --slots 40 --min-copies 2 --fault-domain host -o guard.json
check "... of every expert" holds "$work/guard.json" 'all(len({r // 2 for r, s in enumerate(l["slots"]) if e in s}) >= 2
    for l in d["layers"] for e in range(16)) and d["provenance"]["fault_domains"]["least"] == 2'
check "two copies of the hottest alone" quiet plan --slots 24 --min-copies 2 --min-copies-for 4 --fault-domain nvlink -o hot.json
check "... on both domains" holds "$work/hot.json" 'all(len({r // 4 for r, s in enumerate(l["slots"]) if e in s}) == 2
    for l in d["layers"][1:] for e in [5, 1])'
check "too few slots for that" fails_with 'all experts together need 32 copies there, and the slots take 24; 8 more slots' \
    plan --slots 24 --min-copies 2 --fault-domain host -o x.json
check "too few domains for that" fails_with 'must be in 3 fault domains, but only 2 of them' \
    plan --slots 64 --min-copies 3 --fault-domain nvlink -o x.json
check "ranks that died with their host" quiet plan --slots 48 --current guard.json --mask 2,3 --min-copies 2 --fault-domain host -o after.json
check "... every expert is on two others" holds "$work/after.json" 'all(len({r // 2 for r, s in enumerate(l["slots"]) if e in s}) >= 2
    for l in d["layers"] for e in range(16)) and all(l["slots"][2] == [] == l["slots"][3] for l in d["layers"])
    and "orphans" not in d["provenance"]'

# ---- a dead rank without such copies: every expert has a live slot, and what was lost is listed ----
check "a plan without copies" quiet plan --slots 16 -o bare.json
check "rank 2 is dead" quiet plan --slots-per-rank 3,3,3,3,3,3,3,3 --current bare.json --mask 2 -o alive.json
lost() {
    python3 - "$work" <<'END'
import json, sys
w = sys.argv[1]
bare, alive = (json.load(open(f"{w}/{n}.json")) for n in ("bare", "alive"))
want = [{"layer": l["layer"], "experts": sorted(l["slots"][2])} for l in bare["layers"]]
live = all({e for s in l["slots"] for e in s} == set(range(16)) and l["slots"][2] == [] for l in alive["layers"])
sys.exit(0 if live and alive["provenance"]["orphans"] == want else 1)
END
}
check "... every expert lives, the orphans are named" lost
check "... and told" says "4 experts had no copy but on masked ranks" \
    plan --slots-per-rank 3,3,3,3,3,3,3,3 --current bare.json --mask 2 -o alive.json
check "too few live slots" fails_with 'expert 14: has no slot, nor has 1 other: 14 slots on the 7 ranks that serve cannot hold 16' \
    plan --slots 16 --current bare.json --mask 2 -o x.json

# ---- what moves and spares cost ----
bytes=$((3 * 64 * 32 * 2))
check "a budget in bytes" quiet plan --slots 24 --current hier.json --min-gain 0 --max-bytes $((5 * bytes + 100)) -o few.json
check "... is kept" holds "$work/few.json" 'd["provenance"]["moves"] <= 5'
check "... and needs a placement" fails_with '--max-bytes counts moves from a placement' plan --slots 24 --max-bytes 1M -o x.json
spares() {
    b plan --model model.json --trace t.blt --topology pairs.json --slots 24 --spares 2 -o s.json --json 2>/dev/null >"$work/s.out" &&
        holds "$work/s.out" 'd["spare_bytes"] == '$((2 * bytes)) && holds "$work/s.json" 'd["provenance"]["spares"] == 2
            and all(sum(map(len, l["slots"])) == 24 for l in d["layers"])'
}
check "spares are priced and not filled" spares

# ---- one budget of copies over the layers ----
check "3 slots per rank over 2 layers" quiet plan --replica-budget 3 -o budget.json
check "... are kept, and every rank of a layer has the same" holds "$work/budget.json" 'all(len({len(s) for s in l["slots"]}) == 1 for l in d["layers"])
    and sum(len(l["slots"][0]) - 2 for l in d["layers"]) == d["provenance"]["replica_budget"]["given_out"] == 3
    and d["provenance"]["replica_budget"]["proven"]'
check "the layers differ in slots" holds "$work/budget.json" 'len(d["layers"][0]["slots"][0]) != len(d["layers"][1]["slots"][0])'
check "... which an engine refuses by name" fails_with 'SGLang needs as many on every rank' b export budget.json --to sglang -o x.json
check "in bytes: 2 slots" says "of 2 slots per rank given out, proven best by GLPK" plan --replica-budget $(((2 * bytes + 1023) / 1024))K -o x.json
check "tokens of a cache that is not known" fails_with "the size of a token's KV cache of toy is not known" plan --replica-budget 100tok -o x.json
check "nonsense" fails_with '--replica-budget takes slots per rank (96), bytes per rank (6G) or tokens' plan --replica-budget 3x -o x.json
check "two ways to say it" fails_with 'leave out --slots' plan --replica-budget 3 --slots 24 -o x.json
replayed() { b replay --trace t.blt --topology pairs.json budget.json --json 2>/dev/null >"$work/replay.json"; }
check "replayed like any other" replayed

# ---- what decided ----
explained() {
    b plan --model model.json --trace t.blt --topology pairs.json --slots 24 --explain --json -o e.json 2>/dev/null >"$work/e.out" &&
        holds "$work/e.out" '[l["layer"] for l in d["explain"]["layers"]] == [1, 2] and d["explain"]["solver"] == "GLPK"
            and sum(d["explain"]["bounds"].values()) == 2 and d["explain"]["phases"]["layers"] == 2
            and all(l["start"] + 1e-9 >= l["search"] >= l["pairs"] - 1e-9 and l["pairs"] + 1e-9 >= l["plan"] >= l["bound"]["max_over_mean"]
                    for l in d["explain"]["layers"])
            and d["explain"]["layers"][1]["copies"][0]["expert"] == 1 and d["explain"]["glpk"]["improved_layers"] >= 0'
}
check "--explain as JSON" explained
check "... in words" says "binding bound" plan --slots 24 --explain -o e.json
check "... by layer" says "layer 2: before" plan --slots 24 --explain -o e.json
check "not unless asked" holds "$work/s.out" '"explain" not in d'
# ---- options that would change nothing -------------------------------------------------------
useless() { # useless TEXT OPTION...: refused for want of its companion
    local text=$1
    shift
    fails_with "$text" plan --slots 24 "$@" -o useless.json && [ ! -e "$work/useless.json" ]
}
check "a threshold without a placement" useless "name it with --current" --min-gain 0.1
check "a fault domain without a rule" useless "goes with --min-copies" --fault-domain host
check "the hottest experts without a rule" useless "goes with --min-copies" --min-copies-for 4
check "a node without groups" useless "goes with --keep-groups" --node nvlink
# ---- the same question again ------------------------------------------------------------------
# What a search goes on to find from its own answer is chance: nothing moves, whatever the rule.
b synth --model model.json --steps 8 --ranks 8 --tokens-per-step 64 --seed 7 -o drift.blt
same_again() { # OPTION...
    quiet b plan --model model.json --trace drift.blt --topology pairs.json --slots 24 "$@" -o once.json &&
        quiet b plan --model model.json --trace drift.blt --topology pairs.json --slots 24 "$@" --current once.json -o twice.json --json >"$work/twice" &&
        grep -q '"moves": 0,' "$work/twice"
}
check "the same question moves nothing" same_again
for rule in nearest fixed fractions per-step local; do
    check "... under the rule $rule" same_again --rule $rule
done
check "... for time" same_again --objective time
check "... for the tail" same_again --over p95
check "... with older steps counting less" same_again --half-life 3
# Nor when the plan in force came from another one, on other steps.
follow() { b plan --model model.json --trace drift.blt --topology pairs.json --slots 24 "$@" >"$work/follow" 2>/dev/null; }
follow_again() { # OPTION...
    follow "$@" --steps 0:4 -o first.json &&
        follow "$@" --steps 4:8 --current first.json --min-gain 0 -o second.json &&
        follow "$@" --steps 4:8 --current second.json --min-gain 0 -o third.json --json &&
        grep -q '"moves": 0,' "$work/follow"
}
for rule in even local; do
    check "a plan from a plan, asked again, under $rule" follow_again --rule $rule
done
check "... for time" follow_again --objective time
finish
