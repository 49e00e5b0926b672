#!/bin/bash
# Ranks on four hosts: network namespaces with links of 400, 200, 200 and 100 Mbit/s. Whatever plan,
# rule and dispatch mode they serve under, and however many they are, logits and texts are one process's,
# bit for bit. Rank r is on host r mod 4, so seven ranks are two, two, two and one.
#
# Of each of 2, 3, 4 and 7 ranks 50 random plans are served, of which 18 in a row are all pairs of the six rules
# and three dispatch modes: 200 in all. BALLAST_HOSTS_PLANS=500 serves so many of each;
# BALLAST_HOSTS_SEED=1000 begins with another plan.
. tests/tap.sh
. tests/hosts.sh
model=examples/tiny-moe
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE \
    BALLAST_RENDEZVOUS
first=${BALLAST_HOSTS_SEED:-1}
plans=${BALLAST_HOSTS_PLANS:-50}
[[ $BUILD == *address* ]] && plans=6 # of an instrumented build: every rule once for each number of ranks

if ! hosts_work; then
    for name in "random plans on 2 ranks" "random plans on 3 ranks" "random plans on 4 ranks" \
        "random plans on 7 ranks" "texts"; do
        skip "four hosts: $name" "needs root and network namespaces"
    done
    finish
fi
trap 'kill -9 "${pids[@]}" 2>/dev/null; hosts_down; rm -rf "$work"' EXIT
pids=()
hosts_up 400mbit 200mbit 200mbit 100mbit

# Ranks on the hosts, as torchrun would start them; waits for all. Output and errors in $work/PREFIX.*.
on_hosts() { # PREFIX RANKS COMMAND...
    local rank bad=0 prefix=$1 ranks=$2
    shift 2
    for ((rank = 0; rank < ranks; rank++)); do
        ip netns exec "$(hosts_name $((rank % 4)))" env RANK=$rank WORLD_SIZE="$ranks" MASTER_ADDR=10.77.0.1 \
            MASTER_PORT=29500 "$@" >"$work/$prefix.out.$rank" 2>"$work/$prefix.err.$rank" &
        pids[rank]=$!
    done
    for ((rank = 0; rank < ranks; rank++)); do
        wait ${pids[rank]} || bad=1
        sed 's/^/# /' "$work/$prefix.err.$rank"
    done
    pids=()
    return $bad
}

# ---- logits ---------------------------------------------------------------------------------------

# Tokens are bytes: one row of 80 of them, of several languages, as a u1 array.
for text in chinese python french json; do head -c 20 $model/prompts/$text.txt; done >"$work/text"
header=$(printf "%-117s" "{'descr': '|u1', 'fortran_order': False, 'shape': (80,), }")
{
    printf '\x93NUMPY\x01\x00\x76\x00%s\n' "$header"
    cat "$work/text"
} >"$work/tokens.npy"
"$ballast" run -n 1 --model $model --tokens "$work/tokens.npy" --logits "$work/logits.npy"

same_logits() { # RANKS
    on_hosts logits "$1" "$BUILD/tests/tools/same_logits" $model "$work/tokens.npy" "$work/logits.npy" \
        "$first" $((first + plans - 1)) 4 || return 1
    sed 's/^/# /' "$work/logits.out.0"
}
for ranks in 2 3 4 7; do
    check "four hosts: random plans on $ranks ranks" same_logits $ranks
done

# ---- texts ----------------------------------------------------------------------------------------

serve() { "$ballast" run --model $model --prompts $model/prompts/mixed.txt --max-tokens 12 "$@"; }
serve -n 1 >"$work/texts"
same_texts() {
    on_hosts texts 4 "$ballast" run --model $model --prompts $model/prompts/mixed.txt --max-tokens 12 || return 1
    cmp "$work/texts" "$work/texts.out.0" && [ ! -s "$work/texts.out.1" ]
}
check "four hosts: texts" same_texts
hosts_down
finish
