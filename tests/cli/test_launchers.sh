#!/bin/bash
# ballast run as ranks that others start: torchrun, mpirun and mpiexec, on one host and on four.
. tests/tap.sh
. tests/hosts.sh
. tests/live.sh
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE \
    BALLAST_RENDEZVOUS
port=$((20000 + $$ % 9000))

run() { "$ballast" run --model $model --prompts $model/prompts/mixed.txt --max-tokens 8 "$@"; }
run -n 1 >"$work/one.txt"

# torch/mpi/pmi RANK COMMAND...: as that launcher would start a rank of four
torch() {
    local rank=$1
    shift
    env RANK="$rank" WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port TORCHELASTIC_RUN_ID=t$$ "$@"
}
mpi() {
    local rank=$1
    shift
    env OMPI_COMM_WORLD_RANK="$rank" OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=4 \
        PMIX_NAMESPACE=job$$ "$@"
}
pmi() {
    local rank=$1
    shift
    env PMI_RANK="$rank" PMI_SIZE=4 MPI_LOCALNRANKS=4 PMI_JOBID=job$$ "$@"
}

# All four say what one process says, through rank 0 alone, and end well.
same_as_one() { # STARTER
    local rank pids=() ok=0
    for rank in 3 2 1 0; do
        $1 $rank "$ballast" run --model $model --prompts $model/prompts/mixed.txt --max-tokens 8 \
            >"$work/out.$rank" 2>"$work/err.$rank" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || ok=1
    done
    cat "$work"/err.? | sed 's/^/# /'
    [ $ok -eq 0 ] && cmp "$work/one.txt" "$work/out.0" && [ ! -s "$work/out.1" ] &&
        [ ! -s "$work/out.2" ] && [ ! -s "$work/out.3" ]
}
check "ranks that torchrun started" same_as_one torch
check "ranks that mpirun started" same_as_one mpi
check "ranks that mpiexec started" same_as_one pmi

check "another number of ranks than the launcher's" fails_with "started as rank 1 of 4, and -n says 2" \
    torch 1 "$ballast" run -n 2 --model $model --prompts $model/prompts/json.txt
check "neither -n nor a launcher" fails_with "run needs -n N" \
    "$ballast" run --model $model --prompts $model/prompts/json.txt
alone() {
    RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port run -n 2 >"$work/alone.txt" &&
        cmp "$work/one.txt" "$work/alone.txt"
}
check "a launcher of one process is passed by" alone

# ---- every rank parses for itself ----------------------------------------------------------------

# Rank 2 is started with OPTIONS of its own, the others with WITH: all end, with one line that says TEXT.
pids=()
differs() { # TEXT WITH OPTIONS
    local rank bad=0 options
    for rank in 0 1 2 3; do
        options=$2
        [ $rank = 2 ] && options=$3
        # shellcheck disable=SC2086
        env RANK=$rank WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$ballast" run $options \
            >"$work/out.$rank" 2>"$work/err.$rank" &
        pids[rank]=$!
    done
    for rank in 0 1 2 3; do
        wait ${pids[rank]} && bad=1
        [ "$(wc -l <"$work/err.$rank")" -eq 1 ] && grep -q "ranks 0 and 2 .* differ in $1" "$work/err.$rank" &&
            [ ! -s "$work/out.$rank" ] || bad=1
        [ $bad -eq 0 ] || sed "s/^/# rank $rank: /" "$work/err.$rank"
    done
    pids=()
    return $bad
}
short="--model $model --prompts $model/prompts/json.txt --max-tokens 4"
mkdir "$work/stale"
bytes=$(od -An -tu8 -N8 $model/model.safetensors | tr -d ' ')
stale() { # TENSOR: a checkpoint of the same shape in which one weight of it is another
    local at
    at=$(head -c "$bytes" $model/model.safetensors | grep -oaE "\"$1\":[^}]*" | grep -oE '\[[0-9]+,' | tail -1 | tr -d '[,')
    cp $model/config.json $model/model.safetensors "$work/stale"
    printf '\001' | dd of="$work/stale/model.safetensors" bs=1 seek="$((8 + bytes + at))" conv=notrunc status=none
    ! cmp -s $model/model.safetensors "$work/stale/model.safetensors"
}
"$BUILD/tests/tools/random_plan" 1 $model 4 10 >"$work/plan.1"
"$BUILD/tests/tools/random_plan" 2 $model 4 10 >"$work/plan.2"
check "ranks with different prompts are refused" differs "what to serve: --prompts" "$short" \
    "--model $model --prompts $model/prompts/c.txt --max-tokens 4"
check "ranks with different plans are refused, also where ranks may be lost" differs "where the experts live: --plan" \
    "$short --spares 1 --plan $work/plan.1" "$short --spares 1 --plan $work/plan.2"
check "ranks with different rules are refused" differs "how rows travel: --rule" "$short" "$short --rule nearest"
other_weight() {
    stale "$1" && differs "the checkpoint of --model" "$short" "--model $work/stale --prompts $model/prompts/json.txt --max-tokens 4"
}
for tensor in model.layers.3.mlp.gate.weight model.layers.1.self_attn.q_proj.weight lm_head.weight; do
    check "ranks with different checkpoints are refused: $tensor" other_weight $tensor
done
check "ranks with different seeds are refused" differs "how to serve it: .*--seed" "$short --temperature 1" \
    "$short --temperature 1 --seed 2"

# ---- recording and rebalancing without a launcher -----------------------------------------------

start_torch() { # OPTION...: four ranks; sets pids
    local rank
    for rank in 0 1 2 3; do
        env RANK=$rank WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$ballast" run --model $model "$@" \
            >"$work/out.$rank" 2>"$work/err.$rank" &
        pids[rank]=$!
    done
}
end_torch() { # all end well
    local rank bad=0
    for rank in 0 1 2 3; do
        wait ${pids[rank]} || bad=1
        sed "s/^/# rank $rank: /" "$work/err.$rank"
    done
    pids=()
    return $bad
}
figures() { "$ballast" stat "$1" | sed 1d; }
recorded() {
    start_torch --prompts $model/prompts/mixed.txt --max-tokens 8 --record "$work/traces" --json
    end_torch || return 1
    run -n 4 --record "$work/one.blt" >/dev/null
    [ "$(ls "$work/traces" | tr '\n' ' ')" = "rank-00000.000001.blt rank-00001.000001.blt rank-00002.000001.blt rank-00003.000001.blt " ] &&
        cmp <(figures "$work/traces") <(figures "$work/one.blt") &&
        grep -q '"trace":{"pushed":384,"written":384,"dropped":0,"rejected":0}' "$work/out.0"
}
check "each rank records into its file of a directory: the trace that -n makes" recorded
check "a directory with an earlier recording is refused" fails_with "an earlier recording is there" \
    torch 1 "$ballast" run --model $model --prompts $model/prompts/json.txt --record "$work/traces"
check "and so is a file" fails_with "is no directory" \
    torch 1 "$ballast" run --model $model --prompts $model/prompts/json.txt --record "$work/one.blt"

answered() { # TEXT: status says so
    local try
    for try in $(seq 600); do
        "$ballast" status --socket "$socket" 2>/dev/null | grep -qE "$1" && return 0
        kill -0 ${pids[1]} 2>/dev/null || break
        sleep 0.05
    done
    echo "# never: $1"
    "$ballast" status --socket "$socket" 2>&1 | sed 's/^/# /'
    return 1
}
for i in $(seq 12); do
    [ $i -gt 1 ] && echo ---
    tail -c +$((i * 12 + 1)) $model/prompts/chinese.txt | head -c 60 | tr -d '\n'
    echo
done >"$work/prompts"
"$ballast" run -n 4 --model $model --prompts "$work/prompts" --max-tokens 24 >"$work/reference"
moves_by_itself() { answered '^move [0-9]+ +moved' && grep -q "^window .*: move: imbalance" "$work/err.0"; }
# The controller goes with rank 0; rank 1 answers, has one of its own, and prints at the end.
taken_over() {
    kill -9 ${pids[0]}
    wait ${pids[0]} 2>/dev/null
    answered '^lost +rank 0$' && answered '^rank 1 '
}
collected() {
    local rank bad=0
    kill -TERM ${pids[1]}
    wait ${pids[1]} && bad=1
    for rank in 2 3; do
        wait ${pids[rank]} || bad=1
        sed "s/^/# rank $rank: /" "$work/err.$rank"
    done
    pids=()
    grep -q "^ballast run: rank 0 was lost; the others went on" "$work/err.1" || bad=1
    sed "s/^/# rank 1: /" "$work/err.1"
    [ $bad -eq 0 ] && survivors_equal "$work/out.1" 0
}
trap 'kill -9 "${pids[@]}" 2>/dev/null; rm -rf "$work"' EXIT
if [[ $BUILD == *address* ]]; then # a controller that waits for evidence makes a test of minutes there
    skip "--auto moves experts from a thread of rank 0" "instrumented ranks are too slow"
    skip "rank 0 is killed: the next one answers" "instrumented ranks are too slow"
    skip "and prints what the survivors answered, which is right" "instrumented ranks are too slow"
else
    start_torch --prompts "$work/prompts" --max-tokens 24 --repeat 100000 --slots 48 --spares 2 --auto \
        --rest 0 --window 16 --socket "$socket"
    check "--auto moves experts from a thread of rank 0" moves_by_itself
    check "rank 0 is killed: the next one answers" taken_over
    check "and prints what the survivors answered, which is right" collected
fi
check "a socket that --auto needs must open" fails_with "no-such-dir" env BALLAST_SOCKET="$work/no-such-dir/s" \
    "$ballast" run -n 2 --model $model --prompts $model/prompts/json.txt --spares 1 --auto

if command -v mpirun >/dev/null; then
    mpirun --allow-run-as-root --oversubscribe -n 4 "$ballast" run --model $model \
        --prompts $model/prompts/mixed.txt --max-tokens 8 >"$work/mpi.txt" 2>"$work/mpi.err"
    check "a real mpirun" cmp "$work/one.txt" "$work/mpi.txt"
else
    skip "a real mpirun" "not installed"
fi
if command -v torchrun >/dev/null; then
    torchrun --no-python --nproc-per-node 4 --master-port $port "$ballast" run --model $model \
        --prompts $model/prompts/mixed.txt --max-tokens 8 >"$work/torch.txt" 2>"$work/torch.err"
    check "a real torchrun" cmp "$work/one.txt" "$work/torch.txt"
else
    skip "a real torchrun" "not installed"
fi

# ---- four hosts -----------------------------------------------------------------------------

# Start rank I on host I; sets pids[I].
start_on_hosts() { # PREFIX OPTION...
    local rank prefix=$1
    shift
    for rank in 0 1 2 3; do
        ip netns exec "$(hosts_name $rank)" env RANK=$rank WORLD_SIZE=4 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 \
            "$ballast" run --model $model --silence 2 "$@" \
            >"$work/$prefix.out.$rank" 2>"$work/$prefix.err.$rank" &
        pids[$rank]=$!
    done
}
serves() { # PREFIX: the ranks have met and serve, which shows in their use of processor time
    local rank pid ticks tries
    for rank in 0 1 2 3; do
        for tries in $(seq 300); do
            ticks=$(awk '{print $14 + $15}' /proc/${pids[$rank]}/stat 2>/dev/null || echo 0)
            [ "$ticks" -gt 15 ] && break
            sleep 0.1
        done
    done
}
# The three others end by themselves, with one line that names rank 2.
survivors_name_it() { # PREFIX
    local rank bad=0 start=$SECONDS
    for rank in 0 1 3; do
        wait ${pids[$rank]} && bad=1
        [ "$(wc -l <"$work/$1.err.$rank")" -eq 1 ] && grep -q "rank 2 is lost" "$work/$1.err.$rank" || bad=1
        sed "s/^/# rank $rank: /" "$work/$1.err.$rank"
    done
    echo "# took $((SECONDS - start)) s"
    [ $bad -eq 0 ] && [ $((SECONDS - start)) -lt 25 ] # 2 s, and what a busy machine adds
}
endless="--prompts $model/prompts/mixed.txt --repeat 1000000"
# Who is named hangs on who hears first; instrumented ranks are too slow for two seconds of silence.
if [[ $BUILD != *address* ]] && hosts_work; then
    trap 'kill -9 "${pids[@]}" 2>/dev/null; hosts_down; rm -rf "$work"' EXIT
    hosts_up 200mbit 200mbit 200mbit 200mbit
    start_on_hosts four --prompts $model/prompts/mixed.txt --max-tokens 8
    wait "${pids[@]}"
    check "four hosts on shaped links say what one process says" cmp "$work/one.txt" "$work/four.out.0"

    start_on_hosts dead $endless
    serves
    kill -9 ${pids[2]}
    wait ${pids[2]} 2>/dev/null
    check "a killed rank is named by the survivors" survivors_name_it dead

    start_on_hosts stop $endless
    serves
    kill -STOP ${pids[2]}
    check "a stopped rank is named by the survivors" survivors_name_it stop
    kill -9 ${pids[2]}
    wait ${pids[2]} 2>/dev/null

    start_on_hosts cut $endless
    serves
    hosts_link 2 down
    check "a rank behind a dead link is named by the survivors" survivors_name_it cut
    wait ${pids[2]}
    check "and it ends as well" grep -q "is lost" "$work/cut.err.2"
    hosts_link 2 up
    hosts_down
else
    for name in "four hosts on shaped links say what one process says" \
        "a killed rank is named by the survivors" "a stopped rank is named by the survivors" \
        "a rank behind a dead link is named by the survivors" "and it ends as well"; do
        skip "$name" "needs root and network namespaces"
    done
fi
finish
