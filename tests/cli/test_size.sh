#!/bin/bash
# ballast size: a page to read, an answer for scripts, and what is refused.
. tests/tap.sh

cat >"$work/config.json" <<'END'
{"name": "hand", "model_type": "qwen3_moe", "num_hidden_layers": 2, "num_experts": 10, "num_experts_per_tok": 2,
 "hidden_size": 1024, "moe_intermediate_size": 512, "intermediate_size": 4096, "head_dim": 64,
 "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 8000, "decoder_sparse_step": 1}
END
# Experts of 1 572 864 weights; attention 2 359 424 a layer; 2 x 8000 x 1024 of embedding.
page() {
    diff - <("$ballast" size --model "$work/config.json" --topology hgx-h100 --tp 2 --spares 1) <<'END'
hand (qwen3_moe, bf16): 2 MoE layers of 2, 10 experts, top-2
parameters   52.59 M in all, 27.42 M active per token
  routed experts   31.46 M    59.8 %
  router           20.48 k     0.0 %
  attention        4.719 M     9.0 %
  embedding        16.38 M    31.2 %
  norms            5.12 k      0.0 %
weights      105 MB (0.09795 GiB)
one expert   3.15 MB in one layer, 6.29 MB in all 2
KV cache     1.02 kB per token

layout       8 ranks: tp 2, dp 4, ep 8; 10 + 0 slots per MoE layer
resident     128.7 M parameters on all ranks
binds        rank 0: 2 slots: experts 12.6 MB + spares 3.15 MB + the rest 21.2 MB = 36.9 MB of 80 GB; 72 GB left of 0.9 of it
lightest     rank 2: 1 slots: experts 6.29 MB + spares 3.15 MB + the rest 21.2 MB = 30.6 MB of 80 GB; 72 GB left of 0.9 of it
KV tokens    140.6 M per replica, 562.2 M on all 4; one slot more in all layers costs 6.29 MB, or 12.29 k tokens
uneven       10 slots on 8 ranks; R = (-10) mod 8 = 6 makes them equal

redundant slots/rank   experts/rank  KV tokens per replica
        6          2        12.6 MB  140.6 M
       14          3        18.9 MB  140.5 M
       22          4        25.2 MB  140.5 M
END
}
alone() { ! "$ballast" size --model "$work/config.json" | grep -q layout; }
answer() { # answer ARGS... then a Python condition on t
    local condition=${!#}
    "$ballast" size --model "$work/config.json" --json "${@:1:$#-1}" |
        python3 -c "import json,sys; t=json.load(sys.stdin); assert $condition, t"
}
untold() {
    echo '{"model_type": "new", "num_hidden_layers": 2, "moe_layers": [0], "num_experts": 4,
 "num_experts_per_tok": 2, "hidden_size": 64, "moe_intermediate_size": 32}' >"$work/new.json"
    "$ballast" size --model "$work/new.json" --topology local |
        grep -q 'not told by the config: attention, dense layers and embedding: the layers of type "new" are not known'
}

check "a page with a layout" page
check "without a layout only the model" alone
check "what the config does not tell is said" untold
if command -v python3 >/dev/null; then
    check "counts are whole numbers" answer 't["parameters"]["total"] == 52_585_728 and t["weights_bytes"] == 105_171_456'
    check "no layout, no remedies" answer '"layout" not in t and "remedies" not in t'
    check "a layout without a topology" answer --ep 4 't["layout"]["kv_tokens"] is None and t["remedies"][0]["redundant"] == 2'
    check "redundancy by hand" answer --ep 4 --redundant 6 't["layout"]["binding"]["slots"] == 4 and not t["layout"]["uneven"]'
    check "redundancy auto" answer --ep 5 --redundant auto 't["layout"]["redundant"] == 5'
else
    for name in "counts are whole numbers" "no layout, no remedies" "a layout without a topology" "redundancy by hand" "redundancy auto"; do
        skip "$name" "no python3"
    done
fi
check "a model is needed" fails_with "--model" "$ballast" size
check "tp that does not divide" fails_with "tp 2 would do" "$ballast" size --model "$work/config.json" --tp 3 --dp 1
check "redundancy that is no number" fails_with "a number or auto" "$ballast" size --model "$work/config.json" --redundant 3x
check "a share above one" fails_with "memory-share" "$ballast" size --model "$work/config.json" --memory-share 1.5
finish
