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
layers() { "$ballast" stat --csv --table layers "$work/out.blt" | cut -d, -f1-8; }
row() { layers 2>/dev/null | grep "^$1,"; }

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

printf 'pos,layer,e0,e1\n0,1,0,1\n0,2,2,3\n1,1,0,2\n1,2,1,3\n' >"$work/topk.csv"
topk_csv() {
    import --from topk-csv --model "$work/toy.json" "$work/topk.csv" &&
        [ "$(row 1)" = "1,2,4,0,true,2,0,1" ] && [ "$(row 2)" = "2,2,4,0,true,2,3,1" ]
}
check "topk-csv" topk_csv
echo "1,0,1" >"$work/bare.csv"
check "topk-csv needs its header" refuses "line 1: the header needs a column" topk-csv "$work/bare.csv"

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

sets() { # which experts, not in which order: the same figures
    printf 'seq,pos,layer,e0,e1\n0,0,1,3,0\n0,0,2,1,2\n0,1,1,2,1\n0,1,2,0,3\n' >"$work/t.csv"
    import --from topk-csv --compose batch=2,ranks=1 --model "$work/toy.json" "$work/t.csv" && cp "$work/out.blt" "$work/order.blt" &&
        import --from topk-csv --compose batch=2,ranks=1 --model "$work/toy.json" --sets "$work/t.csv" &&
        ! cmp -s "$work/out.blt" "$work/order.blt" &&
        [ "$("$ballast" stat --csv "$work/out.blt")" = "$("$ballast" stat --csv "$work/order.blt")" ]
}
check "tokens as sets" sets

if [ -d "$shared/fixtures" ]; then
    lite=$shared/configs/moe-lrc/deepseek2.config.json fixtures=$shared/fixtures
    passes() { # FILE...
        import --from sglang-pass --model "$lite" "$@" &&
            "$ballast" stat --json "$work/out.blt" >"$work/json" 2>"$work/stat_err"
    }
    all_ranks() {
        passes "$fixtures"/sglang_per_token_?.pt && grep -q '"tokens": 1536' "$work/json" &&
            [ "$(layers | grep -c ',1536,9216,0,true,')" -eq 26 ]
    }
    missing_rank() {
        passes "$fixtures"/sglang_per_token_[013].pt && grep -q "incomplete: rank 2" "$work/err" &&
            grep -q "incomplete: rank 2" "$work/stat_err"
    }
    last_rank() {
        passes --ranks 4 "$fixtures"/sglang_per_token_[012].pt && grep -q "incomplete: rank 3" "$work/err"
    }
    trtllm() {
        import --from trtllm-stat "$fixtures/trtllm_stat" &&
            [ "$(layers | grep -c ',2048,12288,0,true,')" -eq 26 ]
    }
    same_rank() {
        fails_with "import one recording at a time" "$ballast" import --from sglang-pass --model "$lite" \
            "$fixtures/sglang_per_token_1.pt" "$fixtures/sglang_per_token_1.pt" -o "$work/no.blt"
    }
    check "sglang-pass: four ranks" all_ranks
    check "sglang-pass: a missing rank is named" missing_rank
    check "sglang-pass: the last rank is missing" last_rank
    check "sglang-pass: one rank twice" same_rank
    check "trtllm-stat" trtllm
    check "sglang-stat names the right format" fails_with "import it with --from sglang-pass" \
        "$ballast" import --from sglang-stat --model "$lite" "$fixtures/sglang_per_token_0.pt" -o "$work/no.blt"
else
    skip "recordings of ranks" "no shared data"
fi
check "trtllm-stat: a folder without ranks" refuses "no rank<r>.safetensors in it" trtllm-stat "$work"
check "--ranks is for files of ranks" refuses "--ranks is for files of single ranks" vllm-reply --ranks 2 \
    "$work/vllm.json"
check "errors in JSON" bash -c '"$1" import --json --from vllm-reply --model "$2" "$2" -o "$3" 2>/dev/null |
    grep -q "\"code\": *\"ERR_PARSE\""' - "$ballast" "$work/toy.json" "$work/no.blt"
finish
