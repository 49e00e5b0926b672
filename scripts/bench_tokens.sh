#!/bin/bash
# bench_tokens.sh: recorded tokens of gpt-oss-20b (256 a step) and DeepSeek-V2-Lite (2048 a step) composed into
# steps, planned on some sets and replayed on others, by the program as a user runs it. Steps are
# composed: which tokens share one is our choice, so the figures compare plans and are no engine's.
# (gpt-oss is composed as `mixed`: as decode, few of its sequences last to the end of a set, and most steps
# would hold a handful of tokens.)
set -u
shared=${BALLAST_TEST_DATA:-../shared/data}
routing=$shared/routing
[ -d "$routing/gpt-oss-20b" ] || { echo "# bench_tokens: no $routing/gpt-oss-20b" >&2; exit 0; }
ballast=${BUILD:?}/ballast
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# bench NAME CONFIG FOLDER PHASE BATCH "PLANNED SETS" "SCORED SETS" "RANKS:SLOTS..."
bench() {
    local name=$1 config=$2 folder=$3 phase=$4 batch=$5 planned=$6 scored=$7 shape set
    for shape in $8; do
        local ranks=${shape%:*} slots=${shape#*:} plan=() score=()
        for set in $planned $scored; do
            "$ballast" import --from topk-npy "$folder/$set.npy" --model "$config" --phase "$phase" \
                --compose "batch=$batch,ranks=$ranks" -o "$work/$set.blt" 2>/dev/null || return 1
        done
        for set in $planned; do plan+=(--trace "$work/$set.blt"); done
        for set in $scored; do score+=(--trace "$work/$set.blt"); done
        local topology=hgx-h100:nodes=$((ranks / 8))
        for algorithm in greedy search; do
            "$ballast" plan "${plan[@]}" --model "$config" --topology "$topology" --slots "$slots" \
                --algorithm $algorithm -o "$work/$algorithm.plan.json" 2>/dev/null || return 1
        done
        (cd "$work" && "$ballast" replay "${score[@]}" --topology "$topology" greedy.plan.json search.plan.json --json 2>/dev/null) |
            python3 -c '
import json, sys
d = json.load(sys.stdin)
for p in [d["baseline"]] + d["plans"]:
    for figure in ("mean", "p50", "p95", "p99"):
        print("tokens/%s/%s/%s/%s,%.4f,max/mean,%d,,," % (sys.argv[1], sys.argv[2], p["name"].split(".")[0], figure, p["imbalance"][figure], d["steps"]))
print("tokens/%s/%s/noise_floor,%.4f,max/mean,%d,,," % (sys.argv[1], sys.argv[2], d["noise_floor"]["mean"], d["steps"]))
' "$name" "${ranks}r${slots}s"
    done
}
ballast=$(realpath "$ballast")
bench gpt-oss-20b "$shared/configs/aiconfigurator/openai--gpt-oss-20b_config.json" "$routing/gpt-oss-20b" mixed 256 \
    "mmlu_test mmlu_dev mmlu_validation tulu3_persona_if" \
    "gpqa_extended gpqa_main mmlu_pro_validation Polyglot-or-Not_Fact-Completion" "8:40 16:48 32:64" || exit 1
bench deepseek-v2-lite "$shared/configs/moe-lrc/deepseek2.config.json" "$routing/deepseek-v2-lite" prefill 2048 \
    "law summary" "intent" "8:80 16:80 32:96"
