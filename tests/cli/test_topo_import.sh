#!/bin/bash
# ballast topo import: files of other tools into topologies, one after the other, and what is refused.
. tests/tap.sh

printf '\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\nGPU0\t X \tNV18\tNV18\tNV18\tPIX\tSYS\t0\nGPU1\tNV18\t X \tNV18\tNV18\tSYS\tPIX\t0\nGPU2\tNV18\tNV18\t X \tNV18\tSYS\tSYS\t0\nGPU3\tNV18\tNV18\tNV18\t X \tSYS\tSYS\t0\n' >"$work/smi.txt"
# 4 ranks, 25 us and 3/4 of the bytes at 300 GB/s: 2.5 ps a byte.
{
    for rank in 0 1 2 3; do echo "#  Rank  $rank Pid 1 on host0 device  $rank [0x00] NVIDIA H100 80GB HBM3"; done
    echo '#       size         count    type   redop    root     time   algbw   busbw #wrong'
    awk 'BEGIN {for (s = 1024; s <= 2 ^ 30; s *= 4) {t = 25 + s * 2.5e-6
        printf "%d %d float none -1 %.4f %.4f %.4f 0 1 1 1 0\n", s, s / 4, t, s / t / 1e3, 0.75 * s / t / 1e3}}'
} >"$work/alltoall.log"

# Structure first, then a measurement on top of it.
chained() {
    "$ballast" topo import --from nvidia-smi "$work/smi.txt" --base hgx-h100 --nodes 2 -o "$work/a.json" 2>"$work/said" &&
        grep -q 'as in the base, hgx-h100' "$work/said" &&
        "$ballast" topo import --from nccl-tests "$work/alltoall.log" --base "$work/a.json" -o "$work/b.json" 2>/dev/null &&
        "$ballast" topo show "$work/b.json" >"$work/shown" &&
        grep -qE '^nvlink +2 +4 +24.4 us m +200 ns a +300 GB/s m +300 GB/s m +1 a' "$work/shown" &&
        grep -qE '^cluster +1 +8 +5 us a +1 us a +50 GB/s a +50 GB/s a +2 a' "$work/shown"
}
# The file's own sentences are those that were printed.
sources() {
    "$ballast" topo import --from nvidia-smi "$work/smi.txt" -o "$work/c.json" 2>"$work/said"
    python3 - "$work" <<'END'
import json, sys
t = json.load(open(sys.argv[1] + "/c.json"))
assert t["sources"] == open(sys.argv[1] + "/said").read().splitlines(), t["sources"]
assert t["devices"][0]["memory_bytes"]["source"] == "assumed" and t["name"] == "smi"
END
}
answer() {
    "$ballast" topo import --from nvidia-smi "$work/smi.txt" -o "$work/d.json" --json 2>"$work/err" |
        python3 -c 'import json,sys; a=json.load(sys.stdin); assert a["ranks"] == 4 and a["sources"], a' && [ ! -s "$work/err" ]
}
to_stdout() { "$ballast" topo import --from nvidia-smi - -o - <"$work/smi.txt" 2>/dev/null | "$ballast" topo show - >/dev/null; }
nothing_written() {
    ! "$ballast" topo import --from nccl-xml "$work/smi.txt" -o "$work/none.json" 2>/dev/null && [ ! -e "$work/none.json" ]
}
plans_on_it() {
    echo '{"name": "m", "num_hidden_layers": 2, "moe_layers": [0, 1], "num_experts": 8, "num_experts_per_tok": 2,
           "hidden_size": 64, "moe_intermediate_size": 32}' >"$work/m.json"
    "$ballast" size --model "$work/m.json" --topology "$work/b.json" --json | grep -q '"ranks": 8'
}

check "structure, then a measurement on top" chained
check "size takes an imported topology" plans_on_it
check "from standard input to standard output" to_stdout
if command -v python3 >/dev/null; then
    check "the file keeps what was said" sources
    check "an answer for scripts" answer
else
    skip "the file keeps what was said" "no python3"
    skip "an answer for scripts" "no python3"
fi
check "nothing is written on failure" nothing_written
check "a mistake names the line" fails_with "smi.txt: line 1: not XML" "$ballast" topo import --from nccl-xml "$work/smi.txt" -o "$work/x"
check "an operation that nothing names" fails_with "--op alltoall" \
    "$ballast" topo import --from nccl-tests - -o "$work/x" <"$work/alltoall.log"
check "an operation against the figures" fails_with "would be 1.500 for all_reduce" \
    "$ballast" topo import --from nccl-tests "$work/alltoall.log" --op all_reduce -o "$work/x"
check "a format is needed" fails_with "needs --from" "$ballast" topo import "$work/smi.txt" -o "$work/x"
check "an output is needed" fails_with "-o OUT" "$ballast" topo import --from nvidia-smi "$work/smi.txt"
check "a file is needed" fails_with "a file to read" "$ballast" topo import --from nvidia-smi -o "$work/x"
check "a format that is none" fails_with "nvidia-smi" "$ballast" topo import --from nvidia "$work/smi.txt" -o "$work/x"
check "a missing file" fails_with "cannot open" "$ballast" topo import --from nvidia-smi "$work/nix" -o "$work/x"
finish
