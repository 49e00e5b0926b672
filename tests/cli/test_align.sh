#!/bin/bash
# ballast apply: a plan that was made without looking at the placement in force is laid over it first,
# and copies come from near ranks.
. tests/tap.sh
. tests/live.sh

plan() { # SEED ORDER: path of a random plan with its ranks in another order
    "$BUILD/tests/tools/random_plan" "$1" $model 4 10 0 "$2" >"$work/plan.$1.$2" && echo "$work/plan.$1.$2"
}
apply() { "$ballast" apply --force --socket "$socket" "$@"; }
applied() { apply "$(plan 1 0123)" --wait >/dev/null 2>&1; }
start() { serve --batch 2 --slots 40 --spares 4 "$@"; }
head -c 60 $model/prompts/english.txt >"$work/prompts"
map() { "$ballast" drain --json --socket "$socket" | tr -d ' \n' | grep -o '"slots":[^"]*'; "$ballast" drain --release --socket "$socket" >/dev/null; }

# ---- where nobody knows the ranks' machines -------------------------------------------------------

check "a cluster starts" start
check "a plan is applied" apply "$(plan 1 0123)" --wait >/dev/null
map >"$work/map"
nothing() { [ "$(apply "$(plan 1 "$1")")" = "0 moves" ] && map | cmp - "$work/map"; }
check "the same plan with its slots in another order moves nothing" nothing 0123
check "nor with its ranks turned by one" nothing 1230
check "nor with its ranks in reverse" nothing 3210
moves() { apply --dry-run "$@" | tail -1 | grep -oE '^[0-9]+'; }
written=$(moves --as-written "$(plan 1 1230)")
check "as written it moves most of its 240 copies" [ "$written" -ge 120 ]
fewer() { [ "$(moves "$(plan 2 0123)")" -lt "$(moves --as-written "$(plan 2 0123)")" ] &&
    [ "$(moves "$(plan 2 0123)")" -eq "$(moves "$(plan 2 2301)")" ]; }
check "another plan moves fewer copies than as written, and as many however its ranks are ordered" fewer
tied() {
    sed 's/"provenance": *{}/"provenance": {"topology": "two boxes"}/' "$(plan 1 1230)" >"$work/tied.json"
    [ "$(moves "$work/tied.json")" -eq "$written" ]
}
check "a plan that was made for a topology means the ranks it names" tied
sed 's/"shape": .*/"shape": [2, 2],/; s/"ranks_per_host": 8/"ranks_per_host": 2/; /"parameters"/d' topologies/catalogue/dgx-a100.json >"$work/two.json"
far_bytes() { apply --dry-run --as-written --topology "$work/two.json" "$(plan 3 0123)" | sed -nE 's/^([0-9]+) bytes within cluster$/\1/p'; }
far=$(far_bytes)
check "the run ends well" stop

# ---- two boxes of two ----------------------------------------------------------------------------

check "a cluster that knows its topology starts" start --topology "$work/two.json"
check "the plan is applied" apply "$(plan 1 0123)" --wait >/dev/null
map >"$work/map"
near=$(far_bytes)
echo "# between boxes: $far bytes, $near with --topology"
check "copies come from the own box where it has one" [ "$near" -lt "$far" ]
check "ranks of one box are exchanged" nothing 1032
across() { [ "$(moves "$(plan 1 2301)")" -ge 120 ]; }
check "those of different boxes are not" across
check "a plan made for a topology is laid over the placement, too" [ "$(sed 's/"provenance": *{}/"provenance": {"topology": "two boxes"}/' "$(plan 1 1032)" >"$work/tied.json"; moves "$work/tied.json")" = 0 ]
check "the run ends well" stop
finish
