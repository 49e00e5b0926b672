#!/bin/bash
# run.sh [MUTANT...]: do the tests notice a broken transaction? Each *.mutant file is one wrong idea:
#
#     file: rebalancer/transaction.c
#     why: what a careless change could do
#     ---
#     text as it stands, found exactly once
#     ---
#     text that replaces it
#
# The replacement is made on a copy, the simulation (tests/test_transaction.c) is built against the
# copy, and it must fail. With a line "test: test_campaign" it is that program instead, whose other
# parts are those of a plain build in $BUILD. A text that is not found exactly once fails loudly: then the source has
# moved on and the mutant must follow. Prints TAP.
set -u
. tests/mutants/mutate.sh
cc=${CC:-cc}
seeds=${BALLAST_SIM_SEEDS:-100}
here=tests/mutants
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags='-std=c11 -D_POSIX_C_SOURCE=200809L -ffp-contract=off -O1 -I. -Iinclude'
shared='core/mem core/status core/placement core/hash core/json core/io tests/support/cluster_sim
        tests/support/cluster_sim_net tests/support/cluster_sim_setup tests/support/cluster_sim_store
        tests/support/support tests/test_transaction'
mutable='rebalancer/schedule rebalancer/schedule_check rebalancer/transaction
         rebalancer/transaction_lead rebalancer/transaction_loss'

compile() { # SOURCE OBJECT
    $cc $flags -c -o "$2" "$1" 2>"$2.log" || { cat "$2.log"; return 1; }
}
object() { echo "$work/$(echo "$1" | tr / _).o"; }
objects() { # [FILE REPLACEMENT]: all objects, one of them replaced
    for unit in $shared $mutable; do
        if [ "$unit.c" = "${1:-}" ]; then echo "$2"; else object "$unit"; fi
    done
}
link() { # OUTPUT OBJECT...
    local out=$1
    shift
    $cc -o "$out" "$@" -lcmocka -ljansson -lxxhash -lm -lpthread
}

# What a mutated object of FILE is linked with: the simulation's objects, or a built test and all parts.
# What stands before an archive takes the place of its member.
parts() { # FILE OBJECT TEST
    if [ -z "$3" ]; then objects "$1" "$2"; else
        echo "$2" "$BUILD/tests/$3.o" "$BUILD/tests/support/support.o" "$BUILD/parts.a"
    fi
}

try() { # MUTANT NUMBER: prints one line of TAP
    local name file test source="$work/$2.c" out="$work/$2.o"
    name=$(basename "$1" .mutant)
    file=$(sed -n 's/^file: //p' "$1")
    test=$(sed -n 's/^test: //p' "$1")
    if [ -n "$test" ] && { [[ ${BUILD:-} == *@(address|undefined|thread)* ]] || [ ! -e "${BUILD:-}/tests/$test.o" ]; }; then
        echo "ok $2 - $name # SKIP needs $test of a plain build"
        return
    fi
    if ! mutate "$1" "$file" "$source" || ! compile "$source" "$out" ||
        ! link "$work/$2" $(parts "$file" "$out" "$test"); then
        echo "not ok $2 - $name: could not be built"
        return
    fi
    (ulimit -c 0; timeout 120 "$work/$2") >"$work/$2.out" 2>&1
    local rc=$?
    if [ $rc -eq 0 ]; then
        echo "not ok $2 - $name: survives: $(sed -n 's/^why: //p' "$1")"
    else
        echo "ok $2 - $name: $(grep -aohE 'seed [0-9]+[^:]*: .*|Assertion .*failed' "$work/$2.out" | head -1)"
    fi
}

for unit in $shared $mutable; do
    compile "$unit.c" "$(object "$unit")" || exit 1
done
link "$work/whole" $(objects) || exit 1
n=1
export BALLAST_SIM_SEEDS=$seeds BALLAST_SIM_QUICK=1 CMOCKA_MESSAGE_OUTPUT=STDOUT
bad=0
if "$work/whole" >"$work/whole.out" 2>&1; then
    echo "ok 1 - without a mutation all is well"
else
    echo "not ok 1 - without a mutation all is well"
    bad=1
fi
[ $# -gt 0 ] || set -- "$here"/*.mutant
for mutant in "$@"; do
    n=$((n + 1))
    try "$mutant" $n >"$work/$n.tap" 2>/dev/null &
    [ $((n % 2)) -eq 1 ] && wait # two at a time
done
wait
i=2
while [ $i -le $n ]; do
    cat "$work/$i.tap"
    grep -q '^not ok' "$work/$i.tap" && bad=$((bad + 1))
    i=$((i + 1))
done
echo "1..$n"
[ $bad -eq 0 ]
