#!/bin/bash
# rounds.sh [MUTANT...]: do the tests notice broken rounds? As run.sh, for rounds/*.mutant: the mutated
# object stands in for its member of the archive of a build, tests/test_nccl_move is linked anew, and it
# must fail. Prints TAP.
set -u
. tests/mutants/mutate.sh
cc=${CC:-cc}
build=${BUILD:-build/release}
here=tests/mutants/rounds
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags='-std=c11 -D_POSIX_C_SOURCE=200809L -ffp-contract=off -O1 -pthread -Itests/fake -I. -Iinclude'
fakes="$build/tests/fake/device_cuda.o $build/tests/fake/fake_nccl.o $build/tests/fake/fake_cuda.o"
libraries='-Wl,--as-needed -lglpk -lcsv -ljansson -lexpat -lyaml -lzstd -lxxhash -lmicrohttpd -lucp -lucs
           -lrt -lm -lcmocka'

link() { # OUTPUT OBJECT: the object, and the transport unless it is the object
    local transport=$build/tests/fake/transport_nccl.o
    [ "${2##*/}" = transport_nccl.o ] && transport=
    $cc -pthread -o "$1" "$build/tests/test_nccl_move.o" "$2" $transport $fakes \
        "$build"/tests/support/mover.o "$build"/tests/support/support.o "$build/parts.a" $libraries
}

try() { # MUTANT NUMBER: prints one line of TAP
    local name file source out
    name=$(basename "$1" .mutant)
    file=$(sed -n 's/^file: //p' "$1")
    mkdir -p "$work/$2"
    source=$work/$2/$(basename "$file") out=${work}/$2/$(basename "$file" .c).o
    if ! mutate "$1" "$file" "$source" || ! $cc $flags -c -o "$out" "$source" || ! link "$work/$2/test" "$out"; then
        echo "not ok $2 - $name: could not be built"
        return
    fi
    if (ulimit -c 0; timeout 120 "$work/$2/test") >"$work/$2.out" 2>&1; then
        echo "not ok $2 - $name: survives: $(sed -n 's/^why: //p' "$1")"
    else
        echo "ok $2 - $name: $(grep -aohE 'misuse of NCCL: .*|goal [0-9]+: .*|stood still.*|[^/]*\.c:[0-9]+: error.*' "$work/$2.out" | head -1)"
    fi
}

if [ "$build" != build/release ] || [ ! -e "$build/parts.a" ]; then
    echo "ok 1 - broken rounds # SKIP tried with objects of the plain build"
    echo "1..1"
    exit 0
fi
n=0 bad=0
export BALLAST_MOVE_QUICK=1 CMOCKA_MESSAGE_OUTPUT=STDOUT
[ $# -gt 0 ] || set -- "$here"/*.mutant
for mutant in "$@"; do
    n=$((n + 1))
    try "$mutant" $n >"$work/$n.tap" 2>"$work/$n.log" &
    [ $((n % 2)) -eq 0 ] && wait # two at a time
done
wait
i=1
while [ $i -le $n ]; do
    cat "$work/$i.tap"
    grep -q '^not ok' "$work/$i.tap" && { sed 's/^/# /' "$work/$i.log"; bad=$((bad + 1)); }
    i=$((i + 1))
done
echo "1..$n"
[ $bad -eq 0 ]
