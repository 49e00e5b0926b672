#!/bin/bash
# ballast export to every engine, and every engine's file back in as the current placement.
. tests/tap.sh
case $ballast in /*) ;; *) ballast=$PWD/$ballast ;; esac
b() { (cd "$work" && "$ballast" "$@"); }
quiet() { "$@" 2>/dev/null; }

# Decoder layers 0..3, the first one dense; 8 experts on 4 ranks, 12 slots.
cat >"$work/model.json" <<'END'
{"name":"toy","num_hidden_layers":4,"moe_layers":[1,2,3],"num_experts":8,"num_experts_per_tok":2,
 "hidden_size":64,"moe_intermediate_size":32}
END
echo '{"load":[[90,10,20,30,40,50,60,70],[5,95,20,30,40,50,60,70],[5,10,20,80,40,90,60,65]]}' >"$work/steps.json"
toy() { quiet b plan --model model.json --trace steps.blt "$@"; }
quiet b import --from load-json steps.json --model model.json --layers moe -o steps.blt
check "plan" toy --ranks 4 --slots 12 -o a.plan.json
check "uneven plan" toy --ranks 3 --redundant 0 -o uneven.plan.json

same_plan() { # FILE: planning from it moves nothing, and the plan is the one that was exported
    toy --ranks 4 --current "$1" -o back.plan.json &&
        quiet b diff a.plan.json back.plan.json --json | grep -q '"moves": *0[,}]'
}
uneven() {
    fails_with "as many on every rank: plan with --redundant 1" b export uneven.plan.json --to "$1" -o no.file &&
        [ ! -e "$work/no.file" ]
}
again() { # ENGINE FILE
    quiet b export a.plan.json --to "$1" -o "again.${2##*.}" && cmp -s "$work/$2" "$work/again.${2##*.}"
}
while read -r engine file told; do
    name="$engine, ${file##*.}"
    b export a.plan.json --to "$engine" -o "$file" 2>"$work/told"
    check "$name: export" [ -s "$work/$file" ]
    check "$name: the start is told" grep -qF -- "$told" "$work/told"
    check "$name: the same plan, the same bytes" again "$engine" "$file"
    check "$name: comes back as it went" same_plan "$file"
    check "$name: uneven ranks are refused, nothing is written" uneven "$engine"
    check "$name: a full disk" fails_with "cannot write" b export a.plan.json --to "$engine" -o /dev/full
done <<'END'
sglang map.json --init-expert-location map.json --ep-size 4 --ep-num-redundant-experts 4
trtllm balance.yaml --ep_size 4, and in the file of --extra_llm_api_options "moe_config: {load_balancer: balance.yaml}"
vllm-ascend ascend.json on 4 expert-parallel ranks with: --enable-expert-parallel --additional-config '{"expert_map_path": "ascend.json"}'
omni pattern.npy pattern_path: pattern.npy in its placement configuration, which must allow 3 experts per rank
eplb tables.json tables.json holds phy2log, log2phy, logcnt for num_replicas 12, num_gpus 4; row 0 is decoder layer 1
eplb phy2log.npy phy2log.npy holds phy2log for num_replicas 12
vllm-offline record.jsonl it needs a patched vLLM, with pull request #41141
vllm-patched rows.json it needs a patched vLLM, with pull request #49572
END

# An engine's file says nothing of ranks: the wrong number is found out by what does not fit.
refuses() { # TEXT FILE RANKS
    fails_with "$1" b plan --model model.json --ranks "$3" --trace steps.blt --current "$2" -o no.plan.json
}
check "map for other ranks" refuses 'map.json: 12 slots do not divide over 5 ranks' map.json 5
check "expert map for other ranks" refuses 'layer 1: the file is for 4 devices and lists 4, not 2' ascend.json 2
check "pattern for other ranks" refuses 'the pattern is for 4 ranks and 8 experts, not for 2 and 8' pattern.npy 2
head -3 "$work/balance.yaml" >"$work/short.yaml"
check "a layer is missing" refuses 'short.yaml: layer 2: is a MoE layer of toy, but the file has no row for it' short.yaml 4
sed 's/^num_slots/ep_size: 4\nnum_slots/' "$work/balance.yaml" >"$work/extra.yaml"
check "a key too many" refuses 'extra.yaml: key "ep_size" does not belong in this file' extra.yaml 4
printf 'a: 1\nb: *x\n' >"$work/alias.yaml"
check "not the YAML that is read" refuses 'alias.yaml: line 2: aliases are not read' alias.yaml 4
check "a model instead of a placement" refuses 'is not a placement Ballast knows' model.json 4
check "unknown engine" fails_with 'sglang' b export a.plan.json --to sglan -o no.file
sed 's/"num_experts":8/"num_experts":9/' "$work/model.json" >"$work/other.json"
check "another model" fails_with 'the plan is for top-2 of 8' b export a.plan.json --to trtllm -o no.file --model other.json
finish
