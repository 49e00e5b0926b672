#!/bin/bash
# No verb writes over a file it reads.
. tests/tap.sh
case $ballast in /*) ;; *) ballast=$PWD/$ballast ;; esac
cd "$work" || exit 1

echo '{"name":"toy","num_hidden_layers":1,"moe_layers":[0],"num_experts":4,"num_experts_per_tok":1,
 "hidden_size":64,"moe_intermediate_size":32}' >model.json
echo '[[5,1,1,1]]' >load.json
"$ballast" import --from load-json load.json --model model.json -o load.blt 2>/dev/null
"$ballast" plan load.blt --model model.json --ranks 2 --slots 6 -o new.plan.json 2>/dev/null
"$ballast" export new.plan.json --to sglang -o engine.json 2>/dev/null
"$ballast" topo show hgx-h100 --json >topology.json
printf '\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n' >smi.txt
ln load.blt hard.blt
ln -s load.blt soft.blt

# keeps FILE VERB...: the command that would write FILE, which it reads, is refused, and FILE stays.
keeps() {
    local file=$1
    shift
    cp "$file" before
    fails_with "would be lost" "$ballast" "$@" -o "$file" && cmp "$file" before
}
plan=(plan --model model.json --ranks 2 --slots 6)
check "import: a load" keeps load.json import --from load-json load.json --model model.json
check "import: the model" keeps model.json import --from load-json load.json --model model.json
check "synth: the model" keeps model.json synth --model model.json
check "plan: the trace" keeps load.blt "${plan[@]}" --trace load.blt
check "plan: the trace as argument" keeps load.blt "${plan[@]}" load.blt
check "plan: the trace by a link" keeps hard.blt "${plan[@]}" load.blt
check "plan: the trace by a symbolic link" keeps soft.blt "${plan[@]}" load.blt
check "plan: the model" keeps model.json "${plan[@]}" load.blt
check "plan: the topology" keeps topology.json "${plan[@]}" load.blt --topology topology.json
check "plan: an engine's placement" keeps engine.json "${plan[@]}" load.blt --current engine.json
check "export: the plan" keeps new.plan.json export new.plan.json --to sglang
check "export: the model" keeps model.json export new.plan.json --to sglang --model model.json
check "topo import: the matrix" keeps smi.txt topo import --from nvidia-smi smi.txt
check "topo import: the base" keeps topology.json topo import --from nvidia-smi smi.txt --base topology.json
mkdir ranks && cp load.blt ranks/rank0.blt
check "plan: a file of the trace's folder" keeps ranks/rank0.blt "${plan[@]}" ranks
in_place() { "$ballast" "${plan[@]}" load.blt --current new.plan.json -o new.plan.json 2>/dev/null; }
check "a plan may take the place of the one it starts from" in_place
# A file system without nameless files would keep a .tmp neighbour, which core/io.h says.
mkdir killed
"$ballast" synth --model model.json --steps 100000000 -o killed/long.blt 2>/dev/null &
writer=$!
sleep 0.3
if ls killed | grep -q .; then
    skip "a writer killed with -9 leaves nothing" "this file system has no nameless files"
    kill -9 $writer
else
    kill -9 $writer
    wait $writer 2>/dev/null
    check "a writer killed with -9 leaves nothing" [ -z "$(ls killed)" ]
fi
# a link is written through, as the shell does
mkdir kept && cp load.blt kept/today.blt && ln -s kept/today.blt latest.blt
through_link() {
    "$ballast" synth --model model.json --steps 3 -o latest.blt && [ -L latest.blt ] && ! cmp -s load.blt kept/today.blt &&
        cmp latest.blt kept/today.blt && [ "$(ls kept)" = today.blt ]
}
check "a symbolic link stays, and the file behind it is new" through_link

# Names need not be UTF-8, but JSON must be.
odd=$'l\xe4rm'
cp load.blt "$odd.blt"
says() { # says TEXT VERB...: exit 0 and one JSON document that holds TEXT
    local text=$1
    shift
    "$ballast" "$@" --json >answer.json 2>err && iconv -f utf-8 -t utf-8 answer.json >/dev/null && grep -qF "$text" answer.json
}
check "import: a name that is not UTF-8" says '"l?rm.2.blt"' import --from load-json load.json --model model.json -o "$odd.2.blt"
check "plan: a name that is not UTF-8" says '"l?rm.json"' "${plan[@]}" "$odd.blt" -o "$odd.json"
check "replay: a name that is not UTF-8" says 'l?rm.json"' replay --trace "$odd.blt" --topology local:ranks=2 "$odd.json"
check "topo import: a name that is not UTF-8" says '"l?rm.t.json"' topo import --from nvidia-smi smi.txt -o "$odd.t.json"
odd_error() {
    "$ballast" stat --phase "$odd" load.blt --json >answer.json 2>err
    [ $? -eq 2 ] && grep -q '^{"error"' answer.json
}
check "an error about what is not UTF-8" odd_error
check "an empty name" fails_with "is empty" "$ballast" synth --model model.json -o ""
finish
