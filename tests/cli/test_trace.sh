#!/bin/bash
# ballast import, synth, stat, record: what scripts depend on.
. tests/tap.sh

cat >"$work/toy.json" <<'END'
{"name":"toy","num_hidden_layers":3,"moe_layers":[1,2],"num_experts":4,"num_experts_per_tok":2,
 "hidden_size":8,"moe_intermediate_size":8}
END
echo '[[3,2,2,1],[1,2,2,3]]' >"$work/moe.json"
echo '[[9,9,9,9],[3,2,2,1],[1,2,2,3]]' >"$work/all.json"
import() { "$ballast" import "$@" -o "$work/out.blt" 2>"$work/err"; }

# row LAYER: one line of the CSV answer
layers() { "$ballast" stat --csv --table layers "$@" | command cut -d, -f1-8; }
row() { layers "$work/out.blt" 2>/dev/null | grep "^$1,"; }
golden() {
    import --from load-json --model "$work/toy.json" "$work/moe.json" &&
        [ "$(row 1)" = "1,4,8,0,true,1.5,0,0" ] && [ "$(row 2)" = "2,4,8,0,true,1.5,3,0" ]
}
all_layers() {
    import --from load-json --model "$work/toy.json" --layers all "$work/all.json" &&
        grep -q "1 dense layer left out" "$work/err" && [ "$(row 1)" = "1,4,8,0,true,1.5,0,0" ]
}
json_keys() {
    "$ballast" stat --json "$work/out.blt" >"$work/stat.json" &&
        grep -q '"tokens": 4' "$work/stat.json" && grep -q '"steps": 1' "$work/stat.json" &&
        grep -q '"dropped": 0' "$work/stat.json" && grep -q '"layer": 1' "$work/stat.json" &&
        grep -q '"assignments": 8' "$work/stat.json" && grep -q '"empty": 0' "$work/stat.json" &&
        grep -q '"conserved": true' "$work/stat.json" &&
        grep -q '"max_over_mean_experts": 1.5' "$work/stat.json"
}
text() {
    "$ballast" stat "$work/out.blt" >"$work/text" &&
        grep -q '^toy: top-2 of 4 experts, 2 MoE layers, from load-json$' "$work/text" &&
        grep -q '^1 steps, 4 tokens' "$work/text"
}
check "import golden loads" golden
check "import all decoder layers" all_layers
check "stat --json has its keys" json_keys
check "stat in the terminal" text

check "rows are never guessed" fails_with "which decoder layers are they" \
    "$ballast" import --from load-json "$work/moe.json" --top-k 2 -o "$work/no.blt"
check "rows must fit the model" fails_with "2 MoE layers and 3 decoder layers" \
    "$ballast" import --from load-json --model "$work/toy.json" --layers all "$work/moe.json" -o "$work/no.blt"
check "unknown format with a hint" fails_with "did you mean load-json" \
    "$ballast" import --from load-jsn "$work/moe.json" -o "$work/no.blt"
check "loads cannot be composed" fails_with "holds steps already" \
    "$ballast" import --from load-json --compose batch=4 "$work/moe.json" -o "$work/no.blt"
check "a full disk" fails_with "No space left" \
    "$ballast" import --from load-json --model "$work/toy.json" "$work/moe.json" -o /dev/full
check "nothing half-written" test ! -e "$work/no.blt"

unusable() {
    echo '[[3,2,2,1],[1,2,2,4]]' >"$work/bad.json"
    import --from load-json --model "$work/toy.json" "$work/bad.json" &&
        "$ballast" stat --json "$work/out.blt" 2>"$work/err" | grep -q '"conserved": false' &&
        grep -q "layer 1 is unusable: step 0: counts sum to 8" "$work/err"
}
check "an unusable layer is named" unusable

synth() { "$ballast" synth --model "$work/toy.json" --steps 5 --tokens-per-step 10 --ranks 3 "$@"; }
same_seed() {
    synth --seed 7 -o "$work/a.blt" && synth --seed 7 -o "$work/b.blt" && synth --seed 8 -o "$work/c.blt" &&
        cmp -s "$work/a.blt" "$work/b.blt" && ! cmp -s "$work/a.blt" "$work/c.blt" &&
        layers "$work/a.blt" | grep -q '^2,50,100,0,true,'
}
check "synth: same seed, same bytes" same_seed

cut() {
    head -c 300 "$work/a.blt" >"$work/cut.blt"
    "$ballast" stat "$work/cut.blt" 2>"$work/err"
    grep -q "no tokens" "$work/err" || grep -q "cut at byte" "$work/err"
}
damaged() {
    { head -c 300 "$work/a.blt" && printf X && tail -c +302 "$work/a.blt"; } >"$work/damaged.blt"
    fails_with "damaged" "$ballast" stat "$work/damaged.blt"
}
check "a cut trace is said" cut
check "a damaged trace is refused" damaged
check "other files are no traces" fails_with "not a .blt trace" "$ballast" stat "$work/toy.json"
check "errors in JSON" bash -c '"$1" stat --json "$2" 2>/dev/null | grep -q "\"code\": *\"ERR_PARSE\""' - "$ballast" "$work/toy.json"

record() {
    local ring="clitest-$$" rank
    mkfifo "$work/go0" "$work/go1"
    for rank in 0 1; do
        "$BUILD/tests/tools/trace_engine" "$ring.$rank" $rank 3 20 <"$work/go$rank" >"$work/ready$rank" &
    done
    exec 8>"$work/go0" 9>"$work/go1"
    "$ballast" record --ring "$ring.0" --ring "$ring.1" --wait 30s --sets -o "$work/rec" 2>"$work/err" &
    local recorder=$!
    while ! [ -s "$work/rec/rank-00001.000001.blt" ]; do # it appears when the recorder has attached
        kill -0 $recorder || return 1
        sleep 0.05
    done
    echo >&8
    echo >&9
    exec 8>&- 9>&-
    wait $recorder || return 1
    layers "$work/rec" 2>"$work/err" | grep -q '^3,160,320,0,true,1.5,0,0$' &&
        grep -q "incomplete: rank 2" "$work/err"
}
check "record two ranks of three" record
kept_recording() {
    local before
    before=$(cat "$work"/rec/*.blt | cksum)
    fails_with "an earlier recording is there" "$ballast" record --ring "clitest-none-$$" -o "$work/rec" &&
        [ "$before" = "$(cat "$work"/rec/*.blt | cksum)" ]
}
check "an earlier recording is not overwritten" kept_recording
check "no such ring" fails_with "no ring" "$ballast" record --ring "clitest-none-$$" -o "$work/rec2"

if [ -d "$shared/routing" ]; then
    glm() {
        import --from load-json "$shared/routing/glm-5.2/chat.load.json" &&
            [ "$(layers "$work/out.blt" | grep -c ',157879,1263032,0,true,')" -eq 75 ]
    }
    composed() {
        import --from topk-npy --compose batch=64,ranks=4 "$shared/routing/deepseek-v2-lite/law.npy" &&
            "$ballast" stat --json "$work/out.blt" | grep -q '"composed": true'
    }
    check "GLM-5.2 conserves" glm
    check "composed for ever" composed
else
    skip "GLM-5.2 conserves" "no shared data"
    skip "composed for ever" "no shared data"
fi
finish
