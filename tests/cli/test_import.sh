#!/bin/bash
# ballast import: dumps and replies of engines.
. tests/tap.sh

cat >"$work/toy.json" <<'END'
{"name":"toy","num_hidden_layers":3,"moe_layers":[1,2],"num_experts":4,"num_experts_per_tok":2,
 "hidden_size":8,"moe_intermediate_size":8}
END
import() { "$ballast" import "$@" -o "$work/out.blt" 2>"$work/err"; }
refuses() { # TEXT FORMAT INPUT...: says why, and leaves nothing behind
    local text=$1 format=$2
    shift 2
    fails_with "$text" "$ballast" import --from "$format" --model "$work/toy.json" "$@" -o "$work/no.blt" &&
        [ ! -e "$work/no.blt" ]
}
row() { "$ballast" stat --csv "$work/out.blt" 2>/dev/null | grep "^$1,"; }

every_format_is_in_help() {
    local format
    "$ballast" import --help >"$work/help" || return 1
    for format in $(sed -n 's/.*{\.name = "\([a-z-]*\)",/\1/p' tracer/import.c); do
        grep -q -- "$format" "$work/help" || { echo "# $format"; return 1; }
    done
}
check "every format is in --help" every_format_is_in_help

echo '{"choices":[{"routed_experts":[[[0,1],[2,3]],[[0,2],[0,0]],[[-1,-1],[-1,-1]]]}]}' >"$work/vllm.json"
vllm() {
    import --from vllm-reply --model "$work/toy.json" "$work/vllm.json" &&
        [ "$(row 1)" = "1,2,4,0,true,2,0,1" ] && [ "$(row 2)" = "2,2,2,2,true,2,2,2" ] &&
        grep -q "1 tokens of which no layer has an id left out" "$work/err" &&
        grep -q "1 rows of 2 equal ids left out" "$work/err"
}
vllm_composed() {
    import --from vllm-reply --model "$work/toy.json" --compose batch=2,ranks=2 --phase decode \
        "$work/vllm.json" "$work/vllm.json" &&
        "$ballast" stat --json "$work/out.blt" >"$work/json" &&
        grep -q '"composed": true' "$work/json" && grep -q '"steps": 2' "$work/json"
}
check "vllm-reply" vllm
check "replies are composed into steps" vllm_composed
check "vllm-reply needs a model" fails_with "give --model" \
    "$ballast" import --from vllm-reply "$work/vllm.json" -o "$work/no.blt"
check "a document without routes" refuses "no \"routed_experts\"" vllm-reply "$work/toy.json"

# int32, 2 tokens, 3 decoder layers, top-2: the dense layer reads as zeros
printf '{"meta_info":{"prompt_tokens":2,"completion_tokens":1,"routed_experts":"%s"}}' \
    AAAAAAAAAAAAAAAAAQAAAAIAAAADAAAAAAAAAAAAAAABAAAAAgAAAAMAAAAAAAAA >"$work/sglang.json"
sglang() {
    import --from sglang-reply --model "$work/toy.json" "$work/sglang.json" &&
        grep -q "1 dense layer left out" "$work/err" &&
        [ "$(row 1)" = "1,2,4,0,true,2,1,1" ] && [ "$(row 2)" = "2,2,4,0,true,2,3,1" ]
}
check "sglang-reply" sglang
sed 's/"prompt_tokens":2/"prompt_tokens":3/' "$work/sglang.json" >"$work/short.json"
check "sglang-reply: tokens must be all there" refuses "or 3 tokens" sglang-reply "$work/short.json"
check "dumps with steps are not composed" refuses "sglang-stat holds steps already" sglang-stat --compose batch=2 \
    "$work/sglang.json"
check "errors in JSON" bash -c '"$1" import --json --from vllm-reply --model "$2" "$2" -o "$3" 2>/dev/null |
    grep -q "\"code\": *\"ERR_PARSE\""' - "$ballast" "$work/toy.json" "$work/no.blt"
finish
