#!/bin/bash
# Traffic from the command line: where experts live follows where their tokens are born.
. tests/tap.sh

holds() {
    python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); sys.exit(0 if eval("(" + sys.argv[2] + ")") else 1)' "$@"
}

# 16 sequences of 20 tokens, dealt out to 4 ranks: those of ranks 0 and 1 pick experts 0 and 2, the
# others 1 and 3. Rows are 128 bytes (64 values of bf16).
cd "$work" || exit 1
cat >model.json <<'END'
{"name":"toy","num_hidden_layers":1,"moe_layers":[0],"num_experts":4,"num_experts_per_tok":2,
 "hidden_size":64,"moe_intermediate_size":32}
END
{
    echo seq,pos,layer,e0,e1
    for seq in $(seq 0 15); do
        for pos in $(seq 0 19); do
            if [ $((seq % 4)) -lt 2 ]; then echo "$seq,$pos,0,0,2"; else echo "$seq,$pos,0,1,3"; fi
        done
    done
} >tokens.csv
topology() { # NAME "PATHS": hosts are the paths
    python3 - "$@" <<'END'
import json, sys
f = lambda x: {"value": x, "source": "assumed"}
level = lambda name, rate: {"name": name, "latency_s": f(1e-6), "message_s": f(1e-7), "out_bytes_per_s": f(rate),
                            "in_bytes_per_s": f(rate), "ports": f(1)}
json.dump({"format": "ballast-topology", "version": 1, "name": sys.argv[1], "description": "",
           "devices": [{"name": "any", "memory_bytes": f(8e10), "memory_bytes_per_s": f(3e12), "expert_share": f(.5),
                        "flop_per_s": {"bf16": f(1e15)}}],
           "levels": [level("nvlink", 4e11), level("fabric", 5e10)],
           "ranks": [{"path": p, "host": p} for p in sys.argv[2].split()]}, open(sys.argv[1] + ".json", "w"))
END
}
topology blocks "a a b b"
topology interleaved "a b a b"
cd - >/dev/null || exit 1
b() { (cd "$work" && "$ballast" "$@"); }
check "import" b import --from topk-csv tokens.csv --model model.json --compose batch=16,ranks=4 -o t.blt
plan() { b plan --trace t.blt --model model.json --slots 4 --steps 0:10 "$@" 2>"$work/said"; }

for rule in even nearest fixed local; do
    check "plan under $rule" plan --topology blocks.json --rule $rule -o $rule.json
    check "... experts live where their tokens are born" holds "$work/$rule.json" \
        '[sorted(sum(d["layers"][0]["slots"][a:a+2], [])) for a in (0, 2)] == [[0, 2], [1, 3]]'
    check "... which the plan tells" holds "$work/$rule.json" \
        'd["provenance"]["traffic"]["remote_nodes_per_token"] == {"before": 1.0, "plan": 0.0} and d["provenance"]["traffic"]["locality_gain"] == 1'
done

# From the start layout, which is level already: two copies cross for traffic alone, and nothing when asked again.
check "the start layout" plan --topology blocks.json --algorithm contiguous -o start.json
for rule in even nearest fixed local; do
    check "from it, under $rule" plan --topology blocks.json --rule $rule --current start.json -o moved.json
    check "... two experts change places" holds "$work/moved.json" \
        'd["provenance"]["moves"] == 2 and d["provenance"]["traffic"]["remote_nodes_per_token"] == {"before": 1.0, "plan": 0.0}'
    check "... once" eval 'plan --topology blocks.json --rule $rule --current moved.json -o again.json && holds "$work/again.json" "d[\"provenance\"][\"moves\"] == 0"'
done
check "for time" plan --topology blocks.json --objective time --current start.json -o moved.json
check "... as well" holds "$work/moved.json" 'd["provenance"]["moves"] == 2 and d["provenance"]["traffic"]["locality_gain"] == 1'

# Times are those of the rows that really travel, as replay prices them on the other ten steps, which are alike.
for rule in even nearest fixed local fractions; do
    check "time under $rule" eval 'b plan --trace t.blt --model model.json --slots 5 --steps 0:10 --topology blocks.json --rule $rule -o $rule.json --json 2>/dev/null >"$work/time.json" &&
        b replay --trace t.blt --topology blocks.json $rule.json --json >"$work/replay.json" 2>/dev/null'
    python3 -c 'import json,sys; d=[json.load(open(p)) for p in sys.argv[1:]]; json.dump(d, open(sys.argv[1], "w"))' "$work/time.json" "$work/replay.json"
    check "... is what replay tells" holds "$work/time.json" \
        'abs(d[0]["step_us"]["score"] / d[1]["plans"][0]["step_us"]["mean"] - 1) < 1e-9 and d[0]["step_us"]["bound"] <= d[0]["step_us"]["score"]'
done
for rule in even nearest fixed local; do plan --topology blocks.json --rule $rule -o $rule.json; done

# Ten unseen steps of 16 tokens: 320 rows, 256 bytes there and back; half of them stay on their rank.
check "replay" eval 'b replay --trace t.blt --topology blocks.json even.json --json >"$work/replay.json" 2>/dev/null'
check "... bytes by domain" holds "$work/replay.json" 'd["plans"][0]["bytes"] == {"nvlink": 160 * 256, "fabric": 0}'
check "... and of the start layout, by hand" holds "$work/replay.json" 'd["baseline"]["bytes"] == {"nvlink": 80 * 256, "fabric": 160 * 256}'
check "... rows between ranks" holds "$work/replay.json" \
    'd["baseline"]["traffic"]["pairs"]["dispatch"] == [[40, 0, 40, 0], [40, 0, 40, 0], [0, 40, 0, 40], [0, 40, 0, 40]]'
check "... remote nodes per token" holds "$work/replay.json" \
    'd["baseline"]["traffic"]["remote_nodes_per_token"] == 1 and d["plans"][0]["traffic"]["remote_nodes_per_token"] == 0'
check "interleaved ranks" eval 'b replay --trace t.blt --topology interleaved.json even.json --json >"$work/other.json" 2>/dev/null'
check "... change what crosses" holds "$work/other.json" 'd["plans"][0]["bytes"]["fabric"] == 160 * 256'

check "plan for allgather" plan --topology blocks.json --dispatch allgather -o gather.json
check "... says that locality gains nothing" grep -q 'locality gains 0' "$work/said"
check "... and 0 in figures" holds "$work/gather.json" 'd["provenance"]["traffic"]["locality_gain"] == 0'
check "once per node" eval 'b replay --trace t.blt --topology blocks.json gather.json --dispatch dedup-node --combine dedup-rank --json >"$work/node.json" 2>/dev/null'
check "... a token crosses once" holds "$work/node.json" 'sum(d["plans"][0]["traffic"]["rows"]["dispatch"][x] for x in ["fabric"]) <= 160'

# ---- refusals ----
summed() { b import --from topk-csv tokens.csv --model model.json -o summed.blt 2>/dev/null; }
summed
check "a trace without ranks under nearest" fails_with 'summed over ranks' b plan --trace summed.blt --model model.json --topology blocks.json --slots 4 --rule nearest -o no.json
check "... and in replay" fails_with 'where tokens come from' b replay --trace summed.blt --topology blocks.json nearest.json
check "nearest without a topology" fails_with 'name the cluster with --topology' b plan --trace t.blt --model model.json --ranks 4 --slots 4 --rule nearest -o no.json
check "a dispatch that is none" fails_with 'dedup-node' b plan --trace t.blt --model model.json --topology blocks.json --slots 4 --dispatch dedup-nodes -o no.json
finish
