#!/bin/bash
# ballast run: real processes that hold what the plan gives them and say the same whatever it is.
. tests/tap.sh
model=examples/tiny-moe
reference=$model/reference
tools=$BUILD/tests/tools

run() { "$ballast" run --model $model "$@"; }
logits() { # OUT OPTION...: logits of the first reference prompt
    local out=$1
    shift
    run --tokens $reference/0.tokens.npy --logits "$out" "$@"
}
key() { grep -o "\"$2\":[^]}]*[]}]*" "$1" | head -1; }

# ---- processes ------------------------------------------------------------------------------

four_processes() {
    run -n 4 --prompts $model/prompts/json.txt --max-tokens 4 --json >"$work/four.json" || return 1
    [ "$(key "$work/four.json" pids | grep -oE '[0-9]+' | sort -u | wc -l)" -eq 4 ]
}
check "run -n 4 is four processes" four_processes

# Start a run that goes on until it is stopped, and wait until it serves, which shows in its trace;
# sets `launcher` and `pids`.
has_trace() { [ "$(stat -c %s "$work/long.blt" 2>/dev/null || echo 0)" -gt 2000 ]; }
start_long_run() { # RANKS
    rm -f "$work/long.blt"
    "$ballast" run --model $model -n "$1" --prompts $model/prompts/mixed.txt --repeat 1000000 \
        --record "$work/long.blt" >"$work/long.out" 2>"$work/long.err" &
    launcher=$!
    eventually has_trace
    pids=$(cat /proc/$launcher/task/*/children)
}
stop_long_run() {
    kill -TERM $launcher
    wait $launcher
}

contiguous_experts() { # RANK RANKS: what it holds of 32
    for layer in 0 1 2 3 4 5; do
        echo "layer $layer: $(seq -s ' ' $((32 / $2 * $1)) $((32 / $2 * ($1 + 1) - 1)))"
    done
}
start_long_run 4
rank=0 readable=yes same=yes mapped=no
for pid in $pids; do
    "$tools/scan_memory" "$pid" $model >"$work/held.$rank" 2>/dev/null
    [ $? -eq 77 ] && readable=no
    cmp -s "$work/held.$rank" <(contiguous_experts $rank 4) || same=no
    grep -q safetensors /proc/"$pid"/maps && mapped=yes
    rank=$((rank + 1))
done
if [ $readable = yes ]; then
    check "four ranks are running" [ $rank -eq 4 ]
    check "a rank's memory has its experts' bytes and no others" [ $same = yes ]
else
    skip "a rank's memory has its experts' bytes and no others" "/proc/PID/mem cannot be read"
fi
check "no rank maps the checkpoint" [ $mapped = no ]
check "an interrupted run ends well" stop_long_run
stopped() { grep -q "stopped with [0-9]* of [0-9]*000000 continuations complete" "$work/long.err"; }
check "it says how far it came" stopped

start_long_run 3
victim=$(awk '{print $2}' <<<"$pids")
kill -KILL "$victim"
lost_rank() {
    wait $launcher
    [ $? -eq 1 ] && [ "$(wc -l <"$work/long.err")" -eq 1 ] && grep -q "signal 9" "$work/long.err" &&
        [ ! -s "$work/long.out" ]
}
check "a rank that is killed ends the run with one line that says so" lost_rank
left_over() { for pid in $pids; do [ -e "/proc/$pid" ] && return 0; done; return 1; }
check "no rank outlives its run" eval '! left_over'

# ---- the same bits --------------------------------------------------------------------------

logits "$work/1.npy" -n 1 --topk "$work/topk.npy"
data() { tail -c "$2" "$1"; }
check "top-k ids are the reference's" cmp -s <(data "$work/topk.npy" 1560) \
    <(data $reference/0.topk.npy 1560)
for ranks in 2 3 4; do
    logits "$work/$ranks.npy" -n $ranks
    check "logits on $ranks ranks equal those on one" cmp -s "$work/1.npy" "$work/$ranks.npy"
done
logits "$work/copies.npy" -n 4 --slots 53
check "logits with copies equal those without" cmp -s "$work/1.npy" "$work/copies.npy"
logits "$work/local.npy" -n 4 --transport local
check "logits of threads equal those of processes" cmp -s "$work/1.npy" "$work/local.npy"

# ---- texts ----------------------------------------------------------------------------------

run -n 1 --prompts $reference/prompts.txt --max-tokens 64 >"$work/texts.1"
check "the first continuation is the reference's" grep -qxF \
    " and the start of the string the string the string the strince t" "$work/texts.1"
check "texts are separated like prompts" [ "$(grep -cx -- --- "$work/texts.1")" -eq 7 ]
run -n 4 --slots 40 --batch 1 --prompts $reference/prompts.txt --max-tokens 64 >"$work/texts.4"
check "texts on four ranks equal those on one" cmp -s "$work/texts.1" "$work/texts.4"
run -n 2 --repeat 2 --prompts $reference/prompts.txt --max-tokens 64 >"$work/texts.2"
twice() { cat "$work/texts.1"; echo ---; cat "$work/texts.1"; }
check "--repeat serves the list again" cmp -s "$work/texts.2" <(twice)

# Rules change where rows go and no token; bytes between ranks add up.
ruled() {
    for rule in nearest fixed local per-step; do
        run -n 4 --slots 48 --rule $rule --topology hgx-h100:nodes=2 --prompts $reference/prompts.txt \
            --max-tokens 64 --json >"$work/rule.$rule.json" || return 1
    done
    run -n 4 --slots 48 --prompts $reference/prompts.txt --max-tokens 64 --json >"$work/rule.even.json" &&
        python3 - "$work" "$work/texts.1" <<'END'
import json, sys
texts = open(sys.argv[2], "rb").read().rstrip(b"\n").split(b"\n---\n")
for rule in ("even", "nearest", "fixed", "local", "per-step"):
    d = json.load(open("%s/rule.%s.json" % (sys.argv[1], rule)))
    assert d["rule"] == rule and len(d["tokens"]) == 8
    assert [bytes(t).rstrip(b"\n") for t in d["tokens"]] == [t.rstrip(b"\n") for t in texts], rule
    both = [d["traffic"][way] for way in ("dispatch", "combine")]
    assert sum(sum(map(sum, way["bytes"])) for way in both) == d["sent"]["bytes"]
    for way in both:
        assert all(way["bytes"][r][r] == 0 for r in range(4))
        assert rule == "even" or sum(way["domains"].values()) == sum(map(sum, way["bytes"]))
steps = {r: json.load(open("%s/rule.%s.json" % (sys.argv[1], r)))["imbalance"]["mean"] for r in ("even", "per-step")}
assert steps["per-step"] < steps["even"], steps
END
}
check "every rule gives the same tokens; bytes by rank and domain add up; per-step is leveller" ruled
# Two boxes of two ranks: what crosses between boxes is least when a box gets each token once.
two_boxes() {
    python3 - topologies/catalogue/local.json "$work/boxes.json" <<'END'
import copy, json, sys
d = json.load(open(sys.argv[1]))
far = copy.deepcopy(d["levels"][0])
far["name"] = "net"
d.update(name="two boxes", levels=d["levels"] + [far], shape=[2, 2], ranks_per_host=2, parameters={})
json.dump(d, open(sys.argv[2], "w"))
END
}
deduped() {
    two_boxes
    for dispatch in assignment dedup-rank dedup-node; do
        run -n 4 --slots 48 --dispatch $dispatch --topology "$work/boxes.json" \
            --prompts $reference/prompts.txt --max-tokens 64 --json >"$work/$dispatch.json" || return 1
    done
    python3 - "$work" <<'END'
import json, sys
one, rank, node = (json.load(open("%s/%s.json" % (sys.argv[1], f)))
                   for f in ("assignment", "dedup-rank", "dedup-node"))
assert one["tokens"] == rank["tokens"] == node["tokens"]
total = lambda d: sum(map(sum, d["traffic"]["dispatch"]["bytes"]))
far = lambda d: d["traffic"]["dispatch"]["domains"]["net"]
assert total(rank) < 0.9 * total(one), (total(rank), total(one))
assert far(node) < 0.9 * far(rank) < 0.9 * far(one), (far(node), far(rank), far(one))
END
}
check "one row per token and rank, or node: the same tokens, fewer bytes" deduped
check "nodes must be told" fails_with "needs --topology" \
    run -n 2 --dispatch dedup-node --prompts $model/prompts/c.txt
check "fractions need a plan" fails_with "needs a --plan" \
    run -n 2 --rule fractions --prompts $model/prompts/c.txt

# How requests come and how long prompts are fed change no text; what is drawn depends on the seed.
printf 'seconds,prompt,max_tokens\n0,0,64\n0.01,1,64\n0.05,2,64\n' >"$work/arrivals.csv"
arriving() {
    run -n 2 --prompts $reference/prompts.txt --arrivals "$work/arrivals.csv" --prefill-tokens 5 \
        --keep-prefixes --json >"$work/arriving.json" &&
        python3 - "$work/arriving.json" "$work/texts.1" <<'END'
import json, sys
d = json.load(open(sys.argv[1]))
texts = open(sys.argv[2], "rb").read().split(b"\n---\n")
assert [bytes(t) for t in d["tokens"]] == texts[:3]
assert d["decoded_tokens"] == 192 and d["tokens_per_s"] > 0
for what in ("first_token_us", "between_tokens_us", "per_token_us"):
    f = d["latency"][what]
    assert 0 < f["p50"] <= f["p95"] <= f["p99"] <= f["max"], (what, f)
END
}
check "requests that arrive over time, prompts in pieces: the same texts, and their latencies" arriving
draws() { run --prompts $reference/prompts.txt --max-tokens 32 --temperature 0.8 --top-p 0.9 "$@"; }
draws -n 1 --seed 4 >"$work/drawn.1"
draws -n 3 --slots 40 --batch 2 --seed 4 >"$work/drawn.3"
draws -n 1 --seed 5 >"$work/drawn.5"
check "drawn text is the same on any ranks" cmp "$work/drawn.1" "$work/drawn.3"
differs() { ! cmp -s "$work/drawn.1" "$work/drawn.5"; }
check "and another with another seed" differs
check "an arrival that goes back in time is named by line" fails_with "line 3" \
    run -n 1 --prompts $model/prompts/c.txt --arrivals <(printf 'seconds,prompt\n1,0\n0,0\n')

run -n 2 --prompts $model/prompts/chinese.txt --max-tokens 20 --json >"$work/chinese.json"
cut_characters() { # 20 bytes are six characters of three bytes and a piece of one
    [ "$(grep -oF $'\xef\xbf\xbd' "$work/chinese.json" | wc -l)" -ge 2 ] &&
        grep -qF '"texts":["到可以参数可' "$work/chinese.json"
}
check "pieces of characters are replaced in JSON texts" cut_characters

# ---- plans ----------------------------------------------------------------------------------

plan() { # RANKS RULE SLOTS...: the same slots in all six layers
    local ranks=$1 rule=$2 layers="" layer
    shift 2
    for layer in 0 1 2 3 4 5; do
        layers+=",{\"layer\":$layer,\"slots\":[$(IFS=,; echo "$*")],\"split\":{\"rule\":\"$rule\"}"
        layers+=",\"score\":{\"max_over_mean\":1},\"bound\":{\"max_over_mean\":1,\"kind\":\"mean\"},\"gap\":0}"
    done
    echo "{\"format\":\"ballast-plan\",\"version\":1,\"model\":{\"name\":\"tiny-moe\",\"experts\":32,\"top_k\":4},
        \"ranks\":$ranks,\"epoch\":1,\"layers\":[${layers:1}],\"provenance\":{\"rule\":\"$rule\"}}"
}
list() { echo "[$(seq -s , "$1" "$2")]"; }
plan 2 even "$(list 16 31)" "[0,$(seq -s , 1 15),20]" >"$work/swapped.json"
logits "$work/swapped.npy" -n 2 --plan "$work/swapped.json"
check "logits under a plan equal those without" cmp -s "$work/1.npy" "$work/swapped.npy"
check "a plan is run by its own rule" fails_with "made for the rule even, not per-step" \
    run -n 2 --rule per-step --plan "$work/swapped.json" --prompts $model/prompts/c.txt
check "a plan for other ranks is refused" fails_with "run it with -n 2" \
    logits "$work/x.npy" -n 4 --plan "$work/swapped.json"
plan 2 even "$(list 0 15)" "$(list 16 30)" >"$work/hole.json"
check "a plan that forgets an expert is refused" fails_with "expert 31" \
    logits "$work/x.npy" -n 2 --plan "$work/hole.json"

# ---- recording ------------------------------------------------------------------------------

recorded() { # TRANSPORT: every layer of every rank and step: 6 layers, 3 ranks, 4 steps of decoding
    run -n 3 --prompts $model/prompts/c.txt --max-tokens 4 --batch 8 --transport "$1" \
        --record "$work/$1.blt" --json >"$work/rec.json" &&
        grep -q '"trace":{"pushed":72,"written":72,"dropped":0,"rejected":0}' "$work/rec.json" &&
        [ -s "$work/$1.blt" ]
}
check "routing is recorded from processes" recorded ucx
check "routing is recorded from threads" recorded local
check "a trace that cannot be written is an error" fails_with "no-such-dir" \
    run -n 2 --prompts $model/prompts/c.txt --record "$work/no-such-dir/t.blt"

# A disk that fills up while the ranks serve: they do not wait for their recorder.
in_small_disk() { # COMMAND...: with a disk of 64 KiB at $work/disk
    unshare -rm sh -c 'mount -t tmpfs -o size=64k none "$0" && exec "$@"' "$work/disk" "$@"
}
full_disk() {
    local job=(--model $model -n 2 --prompts $model/prompts/mixed.txt --repeat 20 --max-tokens 8)
    in_small_disk "$ballast" run "${job[@]}" --record "$work/disk/full.blt" \
        >"$work/full.texts" 2>"$work/full.err"
    [ $? -eq 1 ] && grep -q "full.blt: cannot write" "$work/full.err" &&
        "$ballast" run "${job[@]}" | cmp -s - "$work/full.texts"
}
mkdir "$work/disk"
if in_small_disk true 2>/dev/null; then
    check "a full disk costs the trace and nothing else" full_disk
else
    skip "a full disk costs the trace and nothing else" "no file systems can be mounted"
fi
start_long_run 2
kill -KILL $launcher
wait $launcher 2>/dev/null
leftover() { ls /dev/shm/ballast-trace-run.$launcher.* >/dev/null 2>&1; }
check "a killed run leaves its rings behind" leftover
run -n 1 --prompts $model/prompts/c.txt --max-tokens 1 --record "$work/next.blt" >/dev/null
check "and the next one removes them" eval '! leftover'

# ---- mistakes -------------------------------------------------------------------------------

check "neither prompts nor tokens" fails_with "either --prompts or --tokens" run -n 1
check "tokens without logits" fails_with "--logits" run -n 1 --tokens $reference/0.tokens.npy
check "no model" fails_with "config.json" "$ballast" run -n 1 --model /nowhere --prompts x
other_config() { # EDIT: the checkpoint under an edited config
    mkdir -p "$work/other"
    sed "$1" $model/config.json >"$work/other/config.json"
    ln -sf "$PWD/$model/model.safetensors" "$work/other/model.safetensors"
    "$ballast" run -n 2 --model "$work/other" --prompts $model/prompts/c.txt --max-tokens 1
}
check "a checkpoint with more layers than the config is refused" fails_with \
    "tensor model.layers.5." other_config 's/"num_hidden_layers": 6/"num_hidden_layers": 5/'
check "and one with fewer" fails_with \
    "no tensor model.layers.6." other_config 's/"num_hidden_layers": 6/"num_hidden_layers": 7/'
added_tensor() { # NAME: the checkpoint with one more tensor, of no bytes
    local bytes header
    bytes=$(od -An -tu8 -N8 $model/model.safetensors | tr -d ' ')
    header="{\"$1\":{\"dtype\":\"BF16\",\"shape\":[0],\"data_offsets\":[0,0]},"
    header+=$(tail -c +10 $model/model.safetensors | head -c "$((bytes - 1))")
    mkdir -p "$work/added"
    cp $model/config.json "$work/added/"
    {
        printf "$(printf '%016x\n' ${#header} | fold -w2 | tac | sed 's/^/\\x/' | tr -d '\n')"
        printf '%s' "$header"
        tail -c "+$((bytes + 9))" $model/model.safetensors
    } >"$work/added/model.safetensors"
    "$ballast" run -n 2 --model "$work/added" --prompts $model/prompts/c.txt --max-tokens 1
}
for tensor in model.layers.0.self_attn.q_proj.bias model.layers.3.mlp.shared_expert.up_proj.weight \
    model.layers.0.mlp.experts.32.up_proj.weight model.layers.00.mlp.gate.weight model.mtp.weight; do
    check "a tensor that the engine would leave out is refused: $tensor" \
        fails_with "tensor $tensor has no part" added_tensor $tensor
done
check "a rotary table of old exports is not" \
    eval 'added_tensor model.layers.0.self_attn.rotary_emb.inv_freq >/dev/null'
damaged() { # BYTE: the checkpoint with a weight at BYTE of its data that is no number
    local bytes
    bytes=$(od -An -tu8 -N8 $model/model.safetensors | tr -d ' ')
    mkdir -p "$work/damaged"
    cp $model/config.json $model/model.safetensors "$work/damaged/"
    printf '\377\377' | dd of="$work/damaged/model.safetensors" bs=1 seek="$((8 + bytes + $1))" \
        conv=notrunc status=none
    shift
    "$ballast" run -n 2 --model "$work/damaged" "$@"
}
head_at=$(head -c 400 $model/model.safetensors | grep -oaE '"lm_head.weight":[^}]*' | grep -oE '\[[0-9]+,' | tail -1 | tr -d '[,')
check "a damaged output head gives no texts" fails_with "the model's logits are not finite" \
    damaged "$head_at" --prompts $model/prompts/c.txt --max-tokens 1
check "and no logits" fails_with "the model's logits are not finite" \
    damaged "$head_at" --tokens $reference/0.tokens.npy --logits "$work/nan.npy"
check "no prompts file" fails_with "nowhere.txt" run -n 1 --prompts "$work/nowhere.txt"
printf 'a\n---\n\n---\nb\n' >"$work/empty.txt"
check "an empty prompt is named by line" fails_with "line 3: prompt 2 is empty" \
    run -n 1 --prompts "$work/empty.txt"
head -c 600 /dev/zero | tr '\0' x >"$work/long.txt"
check "a prompt that is too long names the limit" fails_with "max_position_embeddings is 512" \
    run -n 1 --prompts "$work/long.txt"
check "too few slots" fails_with "32" run -n 2 --slots 31 --prompts $model/prompts/c.txt
check "--slots with --plan" fails_with "without --plan" \
    run -n 2 --slots 40 --plan "$work/swapped.json" --prompts $model/prompts/c.txt
mkdir -p "$work/cut"
cp $model/config.json "$work/cut"
head -c 9000000 $model/model.safetensors >"$work/cut/model.safetensors"
check "a cut checkpoint is one line" fails_with "leave the file's" \
    "$ballast" run -n 2 --model "$work/cut" --prompts $model/prompts/c.txt
alone() { run -n 2 --prompts $model/prompts/c.txt --max-tokens 1 "$@"; }
for option in "--rest 3" "--top-p 0.5" "--window 3" "--move-bytes 64K"; do
    # shellcheck disable=SC2086
    check "an option that would change nothing is refused: $option" \
        fails_with "${option% *} goes with" alone $option
done
check "a silence that every pause exceeds is refused" fails_with "--silence is 1e-09 s" alone --silence 1ns
check "more buffers than a wave can fill are refused" fails_with "--spares is 33" alone --spares 33
few_files() { (ulimit -n 40 && exec "$ballast" run -n 4 --model $model --prompts $model/prompts/c.txt); }
check "too few open files are named before the ranks wait for one another" \
    fails_with "open files, and the limit is 40" few_files
soft_limit() { (ulimit -Sn 24 && run -n 4 --prompts $model/prompts/c.txt --max-tokens 1 >"$work/soft.txt") && alone | cmp - "$work/soft.txt"; }
check "a soft limit is raised" soft_limit
check "logits into nowhere" fails_with "no-such-dir" logits "$work/no-such-dir/l.npy" -n 1
check "nothing half-written is left" [ -z "$(ls "$work" | grep -E 'tmp|^x\.npy')" ]

finish
